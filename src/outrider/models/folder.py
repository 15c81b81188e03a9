"""Model folders: `config.json` and safetensors, from us or from a family we know a map for.

A folder is untrusted input. Nothing in it is executed: weights are read from safetensors only,
`config.json` can name no code, and every name and shape must be exactly what the config implies.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from outrider.errors import ConfigError, ModelError, OutriderError, within_memory
from outrider.files import read_json
from outrider.models import marian
from outrider.models.base import Model
from outrider.models.config import LanguageModelConfig, Seq2SeqConfig, check_keys
from outrider.models.drafter import Ahead, Drafter, DrafterConfig
from outrider.models.language_model import LanguageModel
from outrider.models.pretrained import PretrainedEncoder, import_encoder
from outrider.models.seq2seq import Seq2Seq
from outrider.models.weights import DTYPES, check_weights, read_weights

__all__ = [
    "DRAFTER",
    "load_config",
    "load_drafter",
    "load_encoder",
    "load_model",
    "load_side_decoder",
    "read_encoder",
]

DRAFTER = "drafter"
"""Subfolder of a model that holds its drafter."""

_Rider = TypeVar("_Rider", bound=PreTrainedModel)

OWN = {
    Seq2SeqConfig.model_type: (Seq2SeqConfig, Seq2Seq),
    LanguageModelConfig.model_type: (LanguageModelConfig, LanguageModel),
}
CONFIG_DTYPES = (*DTYPES, "float64")
"""What a config may say its weights are stored in."""
GENERAL = {
    *("architectures", "chunk_size_feed_forward", "id2label", "label2id", "output_hidden_states"),
    *("problem_type", "return_dict", "transformers_version"),
}
"""Keys that Hugging Face gives every config, and that say nothing of how ours compute."""
WORDS = 400
"""Letters of a value or a foreign message that an error repeats."""
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Ends of names in the first files of BERT and its kin: what they are called now."""


def load_model(
    folder: str | Path, *, dtype: str = "float32", device: str | torch.device = "cpu"
) -> Seq2Seq | LanguageModel:
    """Load a model of ours or of Marian's; nothing is downloaded."""
    folder = Path(folder)
    if dtype not in DTYPES:
        raise ModelError(f"dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    path = folder / "config.json"
    values = _read_config(path)
    config = _build_config(path, _own_config(path, values), values)
    weights = read_weights(folder)
    _check_depth(path, config, weights)
    if values["model_type"] == marian.MODEL_TYPE:
        with _naming(folder):
            weights = marian.import_weights(weights, config)
    model_class = OWN[config.model_type][1]
    with torch.device("meta"), _naming(path):
        model = model_class(config)
    _fill(model, weights, folder, DTYPES[dtype], device)
    if isinstance(model, Seq2Seq) and model.pretrained is not None:
        model.pretrained.make_buffers(device)
    return model.eval()


def read_encoder(folder: str | Path) -> dict[str, Any]:
    """Read the config of a pretrained encoder, reduced to what says how it computes."""
    path = Path(folder) / "config.json"
    values = _read_config(path)
    with _naming(path):
        return import_encoder(values)


def load_encoder(encoder: PretrainedEncoder, folder: str | Path) -> None:
    """Give an encoder the weights it was pretrained to; heads on top of it are left out."""
    folder, model = Path(folder), encoder.model
    expected = model.state_dict()
    weights = {}
    for name, tensor in read_weights(folder).items():
        name = name.removeprefix(f"{model.base_model_prefix}.")
        for old, new in OLD_NAMES.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name in expected:
            weights[name] = tensor
    check_weights(folder, weights, expected)
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
    drafter = load_side_decoder(folder, DrafterConfig, Drafter, target)
    with _naming(folder):
        return drafter.bind(target, ahead)


def load_side_decoder(
    folder: Path, config_class: type[PreTrainedConfig], model_class: type[_Rider], target: Model
) -> _Rider:
    """Load a small model that belongs to `target`, in its number type and on its device."""
    path = folder / "config.json"
    values = _read_config(path)
    if values.get("model_type") != config_class.model_type:
        kind = repr(values.get("model_type"))[:WORDS]
        raise ModelError(f"{path}: model_type is {kind}, expected {config_class.model_type!r}")
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
    check_weights(folder, weights, model.state_dict())
    with within_memory(str(folder)):
        weights = {
            name: tensor.to(
                device, dtype if tensor.is_floating_point() else tensor.dtype, copy=True
            )
            for name, tensor in weights.items()
        }
    model.load_state_dict(weights, assign=True)


def load_config(folder: str | Path) -> Seq2SeqConfig | LanguageModelConfig:
    """Read and check `config.json`."""
    path = Path(folder) / "config.json"
    values = _read_config(path)
    return _build_config(path, _own_config(path, values), values)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ModelError(f"{path.parent}: is not a model folder, it has no {path.name}")
    return read_json(path)


def _own_config(path: Path, values: Mapping[str, Any]) -> type[PreTrainedConfig] | None:
    """Return the class of a config of ours, None if it is Marian's."""
    kind = values.get("model_type")
    if kind == marian.MODEL_TYPE:
        return None
    if isinstance(kind, str) and kind in OWN:
        return OWN[kind][0]
    known = ", ".join([*OWN, marian.MODEL_TYPE])
    raise ModelError(f"{path}: model_type is {repr(kind)[:WORDS]}; Outrider can load: {known}")


def _build_config(
    path: Path, config_class: type[PreTrainedConfig] | None, values: dict[str, Any]
) -> Any:
    """Check every key; without a class the config is Marian's."""
    with _naming(path):
        dtype = values.get("dtype")
        if dtype is not None and dtype not in CONFIG_DTYPES:
            raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(CONFIG_DTYPES)}")
        if config_class is None:
            return marian.import_config(values)
        # Names with an underscore are transformers' own, and one of them names code to fetch.
        values = {k: v for k, v in values.items() if k not in GENERAL and not k.startswith("_")}
        check_keys(config_class, values)
        return config_class.from_dict(values)


def _check_depth(
    path: Path, config: Seq2SeqConfig | LanguageModelConfig, weights: Mapping[str, Tensor]
) -> None:
    """Refuse more layers than there are weights for, before any layer is built."""
    if config.depth == "shared":
        return
    layers = {key: getattr(config, key) for key in config.layer_keys}
    if isinstance(config, Seq2SeqConfig) and config.encoder is not None:
        layers["encoder_layers"] = config.encoder["config"].get("num_hidden_layers", 0)
    if sum(layers.values()) > len(weights):
        counts = ", ".join(f"{key} {count}" for key, count in layers.items())
        raise ModelError(f"{path}: has {counts}, but there are only {len(weights)} weights")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file it is that is wrong."""
    try:
        yield
    except (ArithmeticError, LookupError, OutriderError, StrictDataclassError) as error:
        raise ModelError(f"{path}: {_short(error)}") from None
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: {_short(error)}") from None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= WORDS else f"{text[:WORDS]}..."
