"""`docs/add-a-model-family.md`, followed literally: the reader equals transformers."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as hf

from outrider.decoding import DecodeConfig, Request
from outrider.decoding.session import decode
from outrider.errors import OutriderError
from outrider.formats import folder as folders
from outrider.formats import readers
from outrider.runtime.backend import build_backend, choose_backend
from outrider.torch.models import load_model

SIZES = {
    "vocab_size": 48,
    "hidden_size": 24,
    "word_embed_proj_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "ffn_dim": 40,
    "max_position_embeddings": 30,
    "init_std": 0.3,
}


@pytest.fixture
def _reader(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the page's file in `formats/readers` and add its name to the list."""
    page = (repository / "docs" / "add-a-model-family.md").read_text(encoding="utf-8")
    assert "`src/outrider/formats/readers/opt.py`" in page
    source = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "opt.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(folders, "READERS", (*folders.READERS, "opt"))
    readers.__path__.append(str(tmp_path / "readers"))
    yield
    readers.__path__.remove(str(tmp_path / "readers"))
    sys.modules.pop(f"{readers.__name__}.opt", None)
    vars(readers).pop("opt", None)


def save(folder: Path, **options: object) -> hf.OPTForCausalLM:
    torch.manual_seed(1)
    model = hf.OPTForCausalLM(hf.OPTConfig(**SIZES, **options)).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("tied", [True, False])
def test_the_reader_of_the_page_equals_transformers(tmp_path: Path, tied: bool) -> None:
    theirs = save(tmp_path / "opt", tie_word_embeddings=tied, activation_function="gelu")
    ours = load_model(tmp_path / "opt").eval()
    ids = torch.randint(3, 48, (3, 11))
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
        assert torch.allclose(ours(input_ids=ids).logits, expected, atol=1e-4)


@pytest.mark.usefixtures("_reader")
def test_the_native_core_computes_it(tmp_path: Path) -> None:
    pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    theirs = save(tmp_path / "opt")
    engine = choose_backend("native", "float32")
    backend = build_backend(engine, folders.read_parts(tmp_path / "opt"))
    prompts = [[5, 6, 7], [9], [11, 4, 30, 8]]
    rows = [Request(start=2, prompt=prompt, max_new_tokens=9) for prompt in prompts]
    found = decode(backend, rows, DecodeConfig())
    for prompt, (best, *_) in zip(prompts, found, strict=True):
        ids = torch.tensor([[2, *prompt]])
        written = theirs.generate(ids, max_new_tokens=9, do_sample=False)[
            0, ids.shape[1] :
        ].tolist()
        assert list(best.tokens) == [token for token in written if token != 2]


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    "change", [{"do_layer_norm_before": False}, {"enable_bias": False}, {"word_embed_proj_dim": 12}]
)
def test_the_reader_of_the_page_refuses_unsupported_configs(
    tmp_path: Path, change: dict[str, object]
) -> None:
    config = hf.OPTConfig(**(SIZES | change))
    hf.OPTForCausalLM(config).save_pretrained(tmp_path / "opt")
    with pytest.raises(OutriderError, match="not supported"):
        load_model(tmp_path / "opt")
