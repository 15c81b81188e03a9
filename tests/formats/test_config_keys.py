"""Keys of `config.json` for every reader: supported, without effect, or refused by name."""

import json
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from outrider.errors import ModelError
from outrider.formats import readers
from outrider.formats.folder import READERS, read_config, read_model
from outrider.formats.readers.config_keys import COMPUTED, GENERATION, LEGACY, ONLY, WRITTEN
from outrider.runtime.options import UNAPPLIED
from outrider.torch.models import load_model
from tests.helpers import families, published

UNKNOWN = {
    "attn_logit_softcapping": 50.0,
    "embedding_multiplier": 12.0,
    "final_logit_softcapping": 30.0,
    "logit_scale": {"encoder": 2},
    "no_such_key": "x",
    "pruned_heads": {"0": [1]},
    "qk_norm": True,
    "tie_encoder_decoder": True,
}
"""Keys that no reader supports."""
CHECKED = {
    "quantization_config": {"bits": 4},
    "auto_map": {"AutoModel": "x.Y"},
    "is_causal": False,
}
"""Keys that `formats.folder` checks."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of every reader."""
    found = {name: tmp_path_factory.mktemp(name) for name in READERS}
    for name, folder in found.items():
        families.make(name).save_pretrained(folder)
    return found


def copy(folder: Path, to: Path, **changes: Any) -> Path:
    """Link a folder's files, with changes to its config."""
    for path in folder.iterdir():
        (to / path.name).hardlink_to(path)
    config = to / "config.json"
    values = json.loads(config.read_text())
    config.unlink()
    config.write_text(json.dumps(values | changes))
    return to


def values_class(family: str) -> Any:
    """Return the class of the keys that a reader supports."""
    module = import_module(f"{readers.__name__}.{family}")
    (found,) = (
        one
        for name, one in vars(module).items()
        if name.endswith("Values") and one.__module__ == module.__name__ and name != "LayerValues"
    )
    return found


def reads(family: str) -> set[str]:
    cls = values_class(family)
    return {field.name for field in fields(cls)} | set(cls.ALIASES)


@pytest.mark.parametrize("key", [*UNKNOWN, *CHECKED])
@pytest.mark.parametrize("family", READERS)
def test_an_unknown_key_is_refused_by_name(
    family: str, key: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    copy(folders[family], tmp_path, **{key: (UNKNOWN | CHECKED)[key]})
    with pytest.raises(ModelError, match=rf"config\.json: {key}: (is|names) ") as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [False, None, 0, "", [], {}], ids=repr)
@pytest.mark.parametrize("family", READERS)
def test_an_unknown_key_that_is_off_is_accepted(
    family: str, value: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    copy(folders[family], tmp_path, no_such_key=value)
    assert read_config(tmp_path) == read_config(folders[family])


@pytest.mark.parametrize("family", READERS)
def test_a_misspelt_key_is_refused_with_the_nearest(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    copy(folders[family], tmp_path, vocabsize=3)
    with pytest.raises(ModelError, match=r"vocabsize: is 3, .* \(did you mean 'vocab_size'\?\)"):
        read_config(tmp_path)


@pytest.mark.parametrize("family", READERS)
def test_an_unknown_weight_is_refused_by_name(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    copy(folders[family], tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    path.unlink()
    save_file({**weights, "model.layers.0.q_norm.weight": torch.ones(4)}, path)
    with pytest.raises(ModelError, match=r"an unknown 'model\.layers\.0\.q_norm\.weight'"):
        read_model(tmp_path)


@pytest.mark.parametrize("family", READERS)
def test_every_key_of_transformers_is_read_listed_or_refused(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    known = reads(family) | WRITTEN | GENERATION | LEGACY
    known |= {key for key, kinds in ONLY.items() if family in kinds}
    config = type(families.make(family).config)()
    for key, value in config.to_dict().items():
        if key in known:
            continue
        assert not value, f"{key} is {value!r} by default"
        folder = tmp_path / key
        folder.mkdir()
        with pytest.raises(ModelError, match=f"{key}: is 3"):
            read_config(copy(folders[family], folder, **{key: 3}))


def test_the_generation_defaults_are_listed() -> None:
    written = {key for key in hf.GenerationConfig().to_dict() if not key.startswith("_")}
    read = {"bos_token_id", "eos_token_id", "pad_token_id"}
    assert written - read <= GENERATION | WRITTEN
    assert all(read <= reads(family) for family in READERS)
    assert {*UNAPPLIED} <= GENERATION


@pytest.mark.parametrize("family", READERS)
def test_listed_keys_do_not_change_the_logits_of_transformers(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Booleans are flipped, numbers doubled, and keys that transformers does not write are set."""
    values = json.loads((folders[family] / "config.json").read_text())
    changes = {key: one[family] for key, one in COMPUTED.items() if family in one}
    changes |= {key: 7 for key, kinds in ONLY.items() if family in kinds}
    for key in WRITTEN - {"is_causal", "is_encoder_decoder", "return_dict", "output_attentions"}:
        if isinstance(value := values.get(key), bool | int | float):
            changes[key] = not value if isinstance(value, bool) else 2 * value
    changes |= dict.fromkeys(LEGACY - {"attn_implementation", "num_labels", "torch_dtype"}, True)
    agree(copy(folders[family], tmp_path, **changes), type(families.make(family)))


@pytest.mark.parametrize("name", published.CONFIGS)
def test_a_published_config_loads_and_gives_the_logits_of_transformers(
    name: str, tmp_path: Path
) -> None:
    values = published.shrink(published.CONFIGS[name])
    (tmp_path / "config.json").write_text(json.dumps(values))
    cls = getattr(hf, values["architectures"][0])
    torch.manual_seed(0)
    model = cls(hf.AutoConfig.from_pretrained(tmp_path)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape))
        if getattr(model, "final_logits_bias", None) is not None:
            model.final_logits_bias.normal_()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(values))
    agree(tmp_path, cls)


def agree(folder: Path, cls: Any) -> None:
    """Compare logits of a folder with those of transformers for the same folder."""
    theirs = cls.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(4, 60, (2, 9), generator=torch.Generator().manual_seed(3))
    batch = {"input_ids": ids}
    if theirs.config.is_encoder_decoder:
        batch["decoder_input_ids"] = ids
    with torch.no_grad():
        expected, found = theirs(**batch).logits, load_model(folder)(**batch).logits
    assert (found - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()))
