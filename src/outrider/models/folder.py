"""Model folders: `config.json` and safetensors, from us or from a family we know a map for.

A folder is untrusted input. Nothing in it is executed: weights are read from safetensors only,
`config.json` can name no code, and every name and shape must be exactly what the config implies.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from outrider.errors import ModelError, OutriderError
from outrider.models import marian
from outrider.models.base import Model
from outrider.models.config import LanguageModelConfig, Seq2SeqConfig, check_keys
from outrider.models.drafter import Ahead, Drafter, DrafterConfig
from outrider.models.language_model import LanguageModel
from outrider.models.pretrained import PretrainedEncoder, import_encoder
from outrider.models.seq2seq import Seq2Seq

__all__ = [
    "DRAFTER",
    "load_config",
    "load_drafter",
    "load_encoder",
    "load_model",
    "load_rider",
    "read_encoder",
    "read_weights",
]

DRAFTER = "drafter"
"""Subfolder of a model that holds its drafter."""

_Rider = TypeVar("_Rider", bound=PreTrainedModel)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OWN = {
    Seq2SeqConfig.model_type: (Seq2SeqConfig, Seq2Seq),
    LanguageModelConfig.model_type: (LanguageModelConfig, LanguageModel),
}
CONFIG_BYTES = 1 << 24
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Ends of names in the first files of BERT and its kin: what they are called now."""


def load_model(
    folder: str | Path, *, dtype: str = "float32", device: str | torch.device = "cpu"
) -> Seq2Seq | LanguageModel:
    """Load a model of ours or of Marian's; nothing is downloaded."""
    folder = Path(folder)
    if dtype not in DTYPES:
        raise ModelError(f"dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    values = _read_json(folder / "config.json")
    foreign = values.get("model_type") == marian.MODEL_TYPE
    config = load_config(folder)
    weights = read_weights(folder)
    if foreign:
        weights = marian.import_weights(weights, config)
    model_class = OWN[config.model_type][1]
    with torch.device("meta"):
        model = model_class(config)
    _fill(model, weights, folder, DTYPES[dtype], device)
    if isinstance(model, Seq2Seq) and model.pretrained is not None:
        model.pretrained.make_buffers(device)
    return model.eval()


def read_encoder(folder: str | Path) -> dict[str, Any]:
    """Read the config of a pretrained encoder, reduced to what says how it computes."""
    path = Path(folder) / "config.json"
    values = _read_json(path)
    with _naming(path):
        return import_encoder(values)


def load_encoder(encoder: PretrainedEncoder, folder: str | Path) -> None:
    """Give an encoder the weights it was pretrained to; heads on top of it are left out."""
    folder, model = Path(folder), encoder.model
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    weights = {}
    for name, tensor in read_weights(folder).items():
        name = name.removeprefix(f"{model.base_model_prefix}.")
        for old, new in OLD_NAMES.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name in expected:
            weights[name] = tensor
    _check_weights(folder, weights, expected)
    model.load_state_dict(weights)


def load_drafter(
    folder: str | Path, target: Seq2Seq | LanguageModel, ahead: Ahead | None = None
) -> Drafter | None:
    """Load the drafter that lies with a model and bind it to that model; None if there is none.

    `ahead` is the model's CTC decoder, which the drafter may read.
    """
    folder = Path(folder) / DRAFTER
    if not folder.is_dir():
        return None
    drafter = load_rider(folder, DrafterConfig, Drafter, target)
    return drafter.bind(target, ahead)


def load_rider(
    folder: Path, config_class: type[PreTrainedConfig], model_class: type[_Rider], target: Model
) -> _Rider:
    """Load a small model that belongs to `target`, in its number type and on its device."""
    path = folder / "config.json"
    values = _read_json(path)
    if values.get("model_type") != config_class.model_type:
        raise ModelError(
            f"{path}: model_type is {values.get('model_type')!r}, "
            f"expected {config_class.model_type!r}"
        )
    config = _build_config(path, config_class, values)
    with torch.device("meta"):
        model = model_class(config)
    _fill(model, read_weights(folder), folder, target.dtype, target.device)
    return model.eval()


def _fill(
    model: PreTrainedModel,
    weights: dict[str, Tensor],
    folder: Path,
    dtype: torch.dtype,
    device: str | torch.device,
) -> None:
    """Give a model on the meta device its weights, which must be exactly those it asks for."""
    _check_weights(folder, weights, {name: t.shape for name, t in model.state_dict().items()})
    weights = {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
        for name, tensor in weights.items()
    }
    model.load_state_dict(weights, assign=True)


def load_config(folder: str | Path) -> Seq2SeqConfig | LanguageModelConfig:
    """Read and check `config.json`."""
    path = Path(folder) / "config.json"
    values = _read_json(path)
    kind = values.get("model_type")
    if kind != marian.MODEL_TYPE and kind not in OWN:
        known = ", ".join([*OWN, marian.MODEL_TYPE])
        raise ModelError(f"{path}: model_type is {kind!r}; Outrider can load: {known}")
    return _build_config(path, None if kind == marian.MODEL_TYPE else OWN[kind][0], values)


def _build_config(
    path: Path, config_class: type[PreTrainedConfig] | None, values: dict[str, Any]
) -> Any:
    """Check every key; without a class the config is Marian's."""
    with _naming(path):
        if config_class is None:
            return marian.import_config(values)
        check_keys(config_class, {k: v for k, v in values.items() if k != "transformers_version"})
        return config_class.from_dict(values)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file it is that is wrong."""
    try:
        yield
    except OutriderError as error:
        raise ModelError(f"{path}: {error}") from None
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise ModelError(f"{path}: {' '.join(str(error).split())}") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read `model.safetensors`, or its shards where there is an index."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelError(f"{index}: has no weight_map")
        names = sorted({str(name) for name in shards.values()})
        if any(Path(name).name != name for name in names):
            raise ModelError(f"{index}: a shard lies outside the folder")
    weights: dict[str, Tensor] = {}
    for name in names:
        weights |= _read_file(folder / name)
    return weights


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        pickled = sorted(p.name for p in path.parent.glob("*.bin"))
        fix = f" (only {pickled[0]}; pickled weights are never read: convert it)" if pickled else ""
        raise ModelError(f"{path.parent}: has no {path.name}{fix}")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged or not safetensors ({error})") from None


def _check_weights(
    folder: Path, weights: dict[str, Tensor], expected: dict[str, torch.Size]
) -> None:
    missing, extra = sorted(expected.keys() - weights), sorted(weights.keys() - expected)
    if missing or extra:
        word, name = ("lack", missing[0]) if missing else ("have an unknown", extra[0])
        count = len(missing) + len(extra)
        raise ModelError(
            f"{folder}: the weights {word} {name!r} ({count} names differ from config.json)"
        )
    for name, shape in expected.items():
        if weights[name].shape != shape:
            got, wanted = list(weights[name].shape), list(shape)
            raise ModelError(f"{folder}: {name!r} has shape {got}, config.json implies {wanted}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > CONFIG_BYTES:
            raise ModelError(f"{path}: larger than {CONFIG_BYTES >> 20} MiB, not a config")
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent}: is not a model folder, it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: must hold one JSON object")
    return values
