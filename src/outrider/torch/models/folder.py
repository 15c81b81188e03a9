"""Build PyTorch models from model folders, which `formats` reads and checks, and back."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from outrider.errors import ModelError, within_memory
from outrider.files import JsonFolder
from outrider.formats.folder import (
    Part,
    Parts,
    naming,
    read_config,
    read_ctc,
    read_drafter,
    read_masked_lm,
    read_model,
    read_values,
)
from outrider.formats.safetensors import Weight
from outrider.formats.side_spec import CtcSpec, DrafterSpec
from outrider.formats.spec import ModelSpec
from outrider.formats.weights import (
    DTYPES,
    FLOATS,
    Expected,
    check_weights,
    read_weights,
    weight_files,
)
from outrider.torch.models.configs import (
    CtcConfig,
    DrafterConfig,
    LanguageModelConfig,
    MaskedLmConfig,
    Seq2SeqConfig,
)
from outrider.torch.models.ctc import Ctc, split_weights
from outrider.torch.models.drafter import Drafter, ParallelDecoder
from outrider.torch.models.language_model import LanguageModel
from outrider.torch.models.masked_lm import MaskedLm
from outrider.torch.models.pretrained import PretrainedEncoder, import_encoder
from outrider.torch.models.seq2seq import Seq2Seq

OWN: dict[str, tuple[type[PreTrainedConfig], type[Seq2Seq | LanguageModel]]] = {
    Seq2SeqConfig.model_type: (Seq2SeqConfig, Seq2Seq),
    LanguageModelConfig.model_type: (LanguageModelConfig, LanguageModel),
}
BUFFERS = ("position_ids", "token_type_ids", "attn.bias", "attn.masked_bias", "rotary_emb.inv_freq")
"""Suffixes of buffers that pretrained encoders compute themselves."""
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Suffixes of names in early BERT checkpoints, and their current form."""

_Built = TypeVar("_Built", bound=PreTrainedModel)


def load_model(
    folder: str | Path, *, dtype: str = "float32", device: str | torch.device = "cpu"
) -> Seq2Seq | LanguageModel:
    """Load a model from a local folder."""
    if dtype not in DTYPES:
        raise ModelError(f"dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    return build_model(read_model(folder), dtype=dtype, device=device)


def build_model(
    part: Part[ModelSpec],
    *,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    copy: bool = True,
) -> Seq2Seq | LanguageModel:
    """Build a model from the parts of a folder; without `copy`, on their memory if possible."""
    config_class, model_class = OWN[part.config.model_type]
    model = _build(part, config_class, model_class, getattr(torch, dtype), device, copy=copy)
    if isinstance(model, Seq2Seq) and model.pretrained is not None:
        model.pretrained.make_buffers(device)
    return model


def load_masked_lm(folder: str | Path) -> MaskedLm | None:
    """Load a masked language model; None if the folder contains another model."""
    part = read_masked_lm(folder)
    return None if part is None else _build(part, MaskedLmConfig, MaskedLm, torch.float32, "cpu")


def load_config(folder: str | Path) -> Seq2SeqConfig | LanguageModelConfig:
    """Read and check `config.json`."""
    spec = read_config(folder)
    with _naming(Path(folder) / "config.json"):
        return _config(OWN[spec.model_type][0], spec)


def load_drafter(
    folder: str | Path, target: Seq2Seq | LanguageModel, parallel: ParallelDecoder | None = None
) -> Drafter | None:
    """Load the drafter of a model folder and bind it to the model; None without a drafter.

    `parallel` is the model's CTC decoder, which the drafter may read.
    """
    part = read_drafter(folder, target.config)
    return None if part is None else build_drafter(part, target, parallel)


def build_drafter(
    part: Part[DrafterSpec],
    target: Seq2Seq | LanguageModel,
    parallel: ParallelDecoder | None = None,
) -> Drafter:
    """Build a drafter from the parts of a folder, and bind it to its target."""
    drafter = _build(part, DrafterConfig, Drafter, target.dtype, target.device)
    with naming(part.folder):
        return drafter.bind(target, parallel)


def load_ctc(folder: str | Path, target: Seq2Seq | LanguageModel) -> Ctc | None:
    """Load the parallel decoder of a model folder and bind it; None if there is none."""
    part = read_ctc(folder, target.config)
    return None if part is None else build_ctc(part, target)


def build_ctc(part: Part[CtcSpec], target: Seq2Seq | LanguageModel) -> Ctc:
    """Build a parallel decoder from the parts of a folder, and bind it to its target."""
    assert isinstance(target, Seq2Seq), "a language model has no source to read"
    return _build(part, CtcConfig, Ctc, target.dtype, target.device).bind(target)


def read_encoder(folder: str | Path) -> dict[str, Any]:
    """Read the config of a pretrained encoder, reduced to the keys that affect its computation."""
    files = JsonFolder(Path(folder))
    values = read_values(files)
    with _naming(files.path / "config.json"):
        return import_encoder(values)


def load_encoder(encoder: PretrainedEncoder, folder: str | Path) -> None:
    """Load the pretrained weights of an encoder, without its heads."""
    folder, model = Path(folder), encoder.model
    expected = model.state_dict()
    parts = {name for name, _ in model.named_children()}
    weights: dict[str, Weight] = {}
    files = weight_files(folder)
    for name, weight in read_weights(folder, files).items():
        name = name.removeprefix(f"{model.base_model_prefix}.")
        for old, new in OLD_NAMES.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        part_of = name.partition(".")[0]
        if name in weights:
            raise ModelError(f"{folder}: holds {name!r} under two names; remove one of them")
        if name in expected:
            weights[name] = weight
        elif part_of in parts and not name.endswith(BUFFERS):
            raise ModelError(f"{folder}: {name[:200]!r} is not part of the encoder in config.json")
    check_weights(folder, weights, _expected(expected))
    Part[Any](folder, model.config, weights, files=files).check_values()
    model.load_state_dict({name: as_tensor(weight) for name, weight in weights.items()})


def as_tensor(weight: Weight) -> Tensor:
    """Return a stored array as a read-only tensor over the same memory.

    Quantised arrays are dequantised into new memory.
    """
    if weight.scale is not None:
        return torch.from_numpy(weight.as_float32())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(weight.data)
    return tensor.view(getattr(torch, weight.kind))


def _build(
    part: Part[Any],
    config_class: type[PreTrainedConfig],
    model_class: type[_Built],
    dtype: torch.dtype,
    device: str | torch.device,
    *,
    copy: bool = True,
) -> _Built:
    with torch.device("meta"), _naming(part.folder / "config.json"):
        model = model_class(_config(config_class, part.config))
    _fill(model, part, dtype, device, copy=copy)
    return model.eval()


def _config(config_class: type[PreTrainedConfig], spec: Any) -> Any:
    """Convert a spec to a PyTorch config."""
    return config_class(**{field.name: getattr(spec, field.name) for field in fields(spec)})


def _fill(
    model: PreTrainedModel,
    part: Part[Any],
    dtype: torch.dtype,
    device: str | torch.device,
    *,
    copy: bool,
) -> None:
    """Load the weights into a model on the meta device; names and shapes must match exactly."""
    part.check(_expected(model.state_dict()))
    part.check_values()
    with within_memory(str(part.folder)):
        tensors = {name: as_tensor(weight) for name, weight in part.weights.items()}
        weights = {
            name: tensor.to(
                device, dtype if tensor.is_floating_point() else tensor.dtype, copy=copy
            )
            for name, tensor in tensors.items()
        }
    if dtype is torch.float16:
        for name, tensor in weights.items():
            if not tensor.isfinite().all():
                message = f"{name!r} holds numbers beyond float16"
                raise ModelError(f"{part.folder}: {message}; load the model in another dtype")
    model.load_state_dict(weights, assign=True)


def _expected(tensors: Mapping[str, Tensor]) -> dict[str, Expected]:
    return {
        name: Expected(
            tuple(tensor.shape),
            FLOATS if tensor.is_floating_point() else (str(tensor.dtype).removeprefix("torch."),),
        )
        for name, tensor in tensors.items()
    }


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Prefix errors with the file's path, including those of Hugging Face's config checks."""
    with naming(path):
        try:
            yield
        except StrictDataclassError as error:
            raise ValueError(str(error)) from error


def parts_of(
    model: Seq2Seq | LanguageModel, drafter: Drafter | None = None, ctc: Ctc | None = None
) -> Parts:
    """Return the parts of a model in memory, with weights in float32."""
    return Parts(
        _part(model),
        None if drafter is None else _part(drafter),
        None if ctc is None else _part(ctc),
    )


def _part(model: PreTrainedModel) -> Part[Any]:
    own, _ = split_weights(model.state_dict())
    weights = {name: _weight(tensor) for name, tensor in own.items()}
    return Part(Path(type(model).__name__), model.config, weights)


def _weight(tensor: Tensor) -> Weight:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.is_floating_point():
        return Weight("float32", tensor.float().numpy())
    return Weight(str(tensor.dtype).removeprefix("torch."), tensor.numpy())
