"""CTranslate2 computes the same with an exported folder as Outrider, for all layer options."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.cli.main import run
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError, MissingExtraError, ModelError
from outrider.runtime import Translator, load
from outrider.torch.export import export_ctranslate2, export_marian
from outrider.torch.models import Seq2Seq
from tests.helpers import tiny

ctranslate2 = pytest.importorskip("ctranslate2", reason="install outrider[peers] to test exports")

TEXT = ["the cat sees the dog", "the dog sees a cat", "a bird sings in the tree"] * 5
SOURCES = ["the dog sees the bird", "a cat", "bird bird bird sings in the the tree", "dog"]


def save(folder: Path, **parts: Any) -> Path:
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
    words = tokenizer.vocab_size
    model = tiny.seq2seq(vocab_size=words + 3, **parts)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # With plain random weights every text repeats one token, and all biases are zero.
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(3.0 if ".feedforward." in name else 8.0)
            elif name.endswith("bias"):
                weight.add_(torch.randn_like(weight), alpha=0.2)
            elif name.endswith("norm.weight"):
                weight.add_(torch.randn_like(weight), alpha=0.1)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    forbidden = {"bad_words_ids": [[token] for token in (2, 3, 7, words, words + 1, words + 2)]}
    (folder / "generation_config.json").write_text(json.dumps(forbidden), encoding="utf-8")
    return folder


def theirs(
    folder: Path, translator: Translator, *, compute_type: str = "float32"
) -> list[list[int]]:
    words = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    engine = ctranslate2.Translator(str(folder), compute_type=compute_type, intra_threads=1)
    sources = [[words[i] for i in row] for row in translator.tokenizer.encode_batch(SOURCES)]
    found = engine.translate_batch(sources, beam_size=1, max_decoding_length=20)
    return [[words.index(word) for word in one.hypotheses[0]] for one in found]


def ours(folder: Path) -> tuple[Translator, list[list[int]]]:
    translator = load(folder)
    assert isinstance(translator, Translator)
    found = translator.results(SOURCES, max_new_tokens=20)
    return translator, [list(best.tokens) for best, *_ in found]


def test_tokens_equal_ours(tmp_path: Path) -> None:
    folder = save(tmp_path / "ours", norm="pre", position="learned", max_positions=64)
    translator, wanted = ours(folder)
    assert len({token for row in wanted for token in row}) > 4, "the model says nothing"
    target = export_ctranslate2(folder, tmp_path / "theirs")
    assert theirs(target, translator) == wanted


@pytest.mark.parametrize(
    "parts",
    [
        {"norm": "post", "logits_bias": True},
        {"norm": "pre", "activation": "gelu"},
        {"norm": "post", "activation": "silu", "position": "learned", "max_positions": 64},
        {"norm": "pre", "gated": True, "activation": "silu", "tie_word_embeddings": False},
        {"norm": "post", "share_embeddings": False, "scale_embedding": False, "encoder_layers": 1},
    ],
    ids=["marian", "pre", "learned", "gated", "unshared"],
)
def test_token_probabilities_equal_ours(parts: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path / "ours", **parts)
    target = export_ctranslate2(folder, tmp_path / "theirs")
    words = json.loads((target / "shared_vocabulary.json").read_text(encoding="utf-8"))
    source, wanted = [5, 9, 12, 6, 10], [8, 11, 4, 14, 9, 9, 5]
    engine = ctranslate2.Translator(str(target), compute_type="float32", intra_threads=1)
    (found,) = engine.score_batch([[words[i] for i in source]], [[words[i] for i in wanted]])

    model = Seq2Seq.from_pretrained(folder).eval()
    labels = torch.tensor([[*wanted, 1]])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*source, 1]]), labels=labels).logits
        forbidden = [0, 2, 3, 7, *range(len(words) - 3, len(words))]
        logits[..., forbidden] = -torch.inf
        expected = logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze()
    assert found.log_probs == pytest.approx(expected.tolist(), rel=1e-4)


def test_suppressed_tokens_are_exported(tmp_path: Path) -> None:
    folder = save(tmp_path / "ours", norm="post")
    model = Seq2Seq.from_pretrained(folder)
    with torch.no_grad():
        model.tokens.weight[7] = 20 * model.tokens.weight[12]
    model.save_pretrained(folder)
    translator, wanted = ours(folder)
    assert theirs(export_ctranslate2(folder, tmp_path / "theirs"), translator) == wanted
    assert not any(7 in row for row in wanted)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")  # from MarianTokenizer
def test_marian_folders_can_be_exported_too(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(iter(TEXT), TokenizerConfig(kind="unigram", vocab_size=400))
    tiny.marian_like(vocab_size=tokenizer.vocab_size).save_pretrained(tmp_path / "ours")
    tokenizer.save(tmp_path / "ours")
    folder = export_marian(tmp_path / "ours", tmp_path / "marian")
    target = export_ctranslate2(folder, tmp_path / "theirs")
    translator, wanted = ours(folder)
    assert theirs(target, translator) == wanted


def test_the_command_writes_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = save(tmp_path / "ours", norm="post"), tmp_path / "theirs"
    options = ["--to", "ctranslate2", "--quantization"]
    assert run(["export", str(folder), str(target), *options, "int8"]) == 0
    assert (target / "tokenizer.json").is_file()
    translator, _ = ours(folder)
    assert len(theirs(target, translator, compute_type="int8")) == len(SOURCES)
    assert run(["export", str(folder), str(tmp_path / "b"), *options, "int3"]) == 2
    assert "quantization: got 'int3', expected float32 or int8" in capsys.readouterr().err
    assert run(["export", str(folder), str(tmp_path / "b"), "--quantization", "int8"]) == 2
    assert "--quantization: has no effect with --to marian" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"position": "rotary"}, "position is 'rotary'; a CTranslate2 model has 'sinusoidal'"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1; a CTranslate2 model has None or"),
        ({"depth": "shared"}, "depth is 'shared'; a CTranslate2 model has 'stacked'"),
        (
            {"eos_token_id": [2, 5]},
            "eos_token_id lists 2, 5; a folder of CTranslate2 has one",
        ),
    ],
)
def test_unsupported_layers_are_refused(
    parts: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "ours", **parts)
    with pytest.raises(ModelError, match=message):
        export_ctranslate2(folder, tmp_path / "theirs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_language_models_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "ours")
    tiny.language_model(vocab_size=400).save_pretrained(folder)
    with pytest.raises(ModelError, match="is a language model; only models that translate"):
        export_ctranslate2(folder, tmp_path / "theirs")


def test_a_missing_library_is_named_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "ours")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'outrider\[peers\]'"):
        export_ctranslate2(folder, tmp_path / "theirs")
    with pytest.raises(ConfigError, match="quantization: got 'int4'"):
        export_ctranslate2(folder, tmp_path / "theirs", quantization="int4")
