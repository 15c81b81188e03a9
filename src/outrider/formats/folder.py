"""Model folders: `config.json` and safetensors, from us or from a family we know a map for.

A folder is untrusted input. Nothing in it is executed: weights are read from safetensors only,
`config.json` can name no code, and every name and shape must be exactly what the config implies.

Which weights a folder holds.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from outrider.errors import ConfigError, ModelError, OutriderError
from outrider.files import file_sha256, read_json
from outrider.formats import readers
from outrider.formats.layout import ctc_layout, drafter_layout, model_layout
from outrider.formats.readers import bergamot, ctranslate2
from outrider.formats.readers.weights import Stored
from outrider.formats.safetensors import Weight, read_safetensors
from outrider.formats.side_spec import CtcSpec, DrafterSpec, SideDecoderSpec
from outrider.formats.spec import (
    LanguageModelSpec,
    MaskedLmSpec,
    ModelSpec,
    Seq2SeqSpec,
    build_spec,
)
from outrider.formats.weights import FLOATS, Expected, check_weights, read_weights, weight_files

__all__ = [
    "CTC",
    "DRAFTER",
    "Part",
    "Parts",
    "model_files",
    "naming",
    "read_config",
    "read_ctc",
    "read_drafter",
    "read_masked_lm",
    "read_model",
    "read_parts",
    "read_values",
    "reader_of",
    "weights_of",
]

DRAFTER = "drafter"
"""Subfolder of a model that holds its drafter."""
CTC = "ctc"
"""Subfolder of a model that holds its parallel decoder."""
OWN: dict[str, type[ModelSpec]] = {
    Seq2SeqSpec.model_type: Seq2SeqSpec,
    LanguageModelSpec.model_type: LanguageModelSpec,
}


class Reader(Protocol):
    """A module of `readers`: how a model of another family becomes one of ours."""

    def import_config(self, values: Mapping[str, Any], /) -> ModelSpec:
        """Read its `config.json`."""
        ...

    def import_weights(
        self, theirs: Stored, config: Any, values: Mapping[str, Any], /
    ) -> dict[str, Weight]:
        """Give all its weights our names; `values` are those of its `config.json`."""
        ...


class FileReader(Protocol):
    """A module of `readers` for models that are no Hugging Face folder."""

    def find(self, folder: Path, /) -> Path | None:
        """Return the file that holds the weights; None where the folder is no such model."""
        ...

    def read(self, path: Path, /) -> tuple[ModelSpec, dict[str, Weight]]:
        """Say what model such a file holds, and give its weights our names."""
        ...


READERS = (
    "marian",
    "bart",
    "mbart",
    "m2m_100",
    "t5",
    "mt5",
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
)
"""Every `model_type` of other families that has a module in `readers`."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
REFUSED = {
    "auto_map": "asks for code of its own to be run, which is never done",
    "per_layer_config": "says that layers differ, which is not supported",
    "quantization_config": "says that the weights are quantised, which is not supported",
    "use_bidirectional_attention": "is true, not supported: a text is read from left to right",
}
"""Keys of other families' configs that change what the weights mean."""
ADAPTER = "adapter_config.json"
ONLY_READS = (
    "is a masked language model, which reads and does not write: test it with outrider evaluate "
    "--text, or let a seq2seq read with it (model.encoder.pretrained)"
)
FILE_READERS: tuple[FileReader, ...] = (ctranslate2, bergamot)
"""Readers of models that are known by their files."""
WORDS = 400
"""Letters of a value or a foreign message that an error repeats."""

ConfigT = TypeVar("ConfigT", bound=ModelSpec | SideDecoderSpec, covariant=True)
SideT = TypeVar("SideT", bound=SideDecoderSpec)


@dataclass(frozen=True)
class Part(Generic[ConfigT]):
    """A model, or a decoder beside one: what it is made of, and its weights by name."""

    folder: Path
    config: ConfigT
    weights: Mapping[str, Weight]
    stored: Stored | None = None
    """Weights of another family as its files name them."""

    def check_values(self) -> None:
        """Refuse NaN and Inf, and copies of a tied table that differ from it; reads all weights."""
        if (name := _first_infinite(self.weights)) is not None:
            name = (self.stored and _first_infinite(self.stored.read)) or name
            message = f"{name[:200]!r} holds NaN or infinite numbers"
            file = _file_of(self.folder, name)
            raise ModelError(f"{file}: {message}; use a checkpoint without them")
        for table, copy, name, copy_name in [] if self.stored is None else self.stored.copies:
            if not table.equals(copy):
                raise ModelError(
                    f"{self.folder}: {copy_name!r} differs from {name!r}, but the config ties "
                    "them: remove the wrong one, or untie them in config.json"
                )

    def check(self, expected: Mapping[str, Expected] | None = None) -> None:
        """Refuse weights that are not those expected: by default, those of a portable model."""
        config = self.config
        check_weights(self.folder, self.weights, _layout(config) if expected is None else expected)
        if isinstance(config, DrafterSpec) and config.shortlist:
            with naming(self.folder):
                config.check_shortlist(self.weights["kept_V"].data.tolist())
        if isinstance(config, CtcSpec) and (steps := int(self.weights["steps"].data)) < 0:
            raise ModelError(f"{self.folder}: 'steps' is {steps}, expected 0 or more")


@dataclass(frozen=True)
class Parts:
    """A model and the decoders that lie with it."""

    model: Part[ModelSpec]
    drafter: Part[DrafterSpec] | None = None
    ctc: Part[CtcSpec] | None = None

    def check_values(self) -> None:
        """Refuse NaN and Inf, and copies of tied tables that differ; reads all weights."""
        for part in (self.model, self.ctc, self.drafter):
            if part is not None:
                part.check_values()

    def check(self) -> None:
        """Refuse weights that are not those of portable models, and parts of another model."""
        self.model.check()
        for side in (self.ctc, self.drafter):
            if side is not None:
                side.check()
                side.config.check_target(self.model.config)


def read_parts(folder: str | Path) -> Parts:
    """Read a model and what lies with it."""
    model = read_model(folder)
    ctc = read_ctc(folder, model.config)
    return Parts(model, read_drafter(folder, model.config), ctc)


def read_model(folder: str | Path) -> Part[ModelSpec]:
    """Read a model of ours or of a family that a reader knows; nothing is downloaded."""
    folder = Path(folder)
    if (found := _find_file(folder)) is not None:
        with naming(found.file):
            return Part(folder, *found.reader.read(found.file))
    path = folder / "config.json"
    values = read_values(path)
    config = _describe_model(path, values)
    weights = read_weights(folder)
    _check_depth(path, config, weights)
    if values["model_type"] not in READERS:
        return Part(folder, config, weights)
    stored = Stored(weights)
    with naming(folder):
        weights = reader_of(values["model_type"]).import_weights(stored, config, values)
    return Part(folder, config, weights, stored)


def read_masked_lm(folder: str | Path) -> Part[MaskedLmSpec] | None:
    """Read a masked language model; None if the folder holds another model."""
    folder = Path(folder)
    path = folder / "config.json"
    if not path.exists() or read_values(path).get("model_type") != MaskedLmSpec.model_type:
        return None
    values = read_values(path)
    with naming(path):
        _check_dtype(values)
        config = build_spec(MaskedLmSpec, values)
    weights = read_weights(folder)
    _check_depth(path, config, weights)
    return Part(folder, config, weights)


def read_config(folder: str | Path) -> ModelSpec:
    """Read and check what a folder says of its model."""
    if _find_file(Path(folder)) is not None:
        return read_model(folder).config
    path = Path(folder) / "config.json"
    return _describe_model(path, read_values(path))


def model_files(folder: Path) -> list[Path]:
    """Name the files that hold the weights of a model."""
    found = _find_file(folder)
    return weight_files(folder) if found is None else [found.file]


def _first_infinite(weights: Mapping[str, Weight]) -> str | None:
    """Return the name of a weight that holds NaN or infinite numbers."""
    return next((name for name, weight in weights.items() if not weight.is_finite()), None)


def _file_of(folder: Path, name: str) -> Path:
    """Return the file that holds a weight."""
    files = [path for path in model_files(folder) if path.exists()]
    if len(files) > 1:
        files = [path for path in files if name in read_safetensors(path)]
    return files[0] if files else folder


def reader_of(model_type: str) -> Reader:
    """Return the reader of a family; the others are not imported, which takes time at the start."""
    return cast(Reader, import_module(f"{readers.__name__}.{model_type}"))


class _Found(NamedTuple):
    reader: FileReader
    file: Path


def _find_file(folder: Path) -> _Found | None:
    for reader in FILE_READERS:
        if (file := reader.find(folder)) is not None:
            return _Found(reader, file)
    return None


def read_drafter(folder: str | Path, target: ModelSpec) -> Part[DrafterSpec] | None:
    """Read the drafter that lies with a model; None if there is none."""
    folder = Path(folder) / DRAFTER
    if not folder.is_dir():
        return None
    part = _read_side_decoder(folder, DrafterSpec)
    with naming(folder):
        part.config.check_target(target)
    return part


def read_ctc(folder: str | Path, target: ModelSpec) -> Part[CtcSpec] | None:
    """Read the parallel decoder that lies with a model; None if there is none."""
    folder = Path(folder) / CTC
    if not folder.is_dir():
        return None
    if not isinstance(target, Seq2SeqSpec):
        raise ModelError(f"{folder}: a language model has no source for a CTC decoder to read")
    part = _read_side_decoder(folder, CtcSpec)
    part.config.check_target(target)
    return part


def _read_side_decoder(folder: Path, cls: type[SideT]) -> Part[SideT]:
    path = folder / "config.json"
    values = read_values(path)
    if values.get("model_type") != cls.model_type:
        kind = repr(values.get("model_type"))[:WORDS]
        raise ModelError(f"{path}: model_type is {kind}, expected {cls.model_type!r}")
    with naming(path):
        _check_dtype(values)
        config = build_spec(cls, values)
    return Part(folder, config, read_weights(folder))


def read_values(path: Path) -> dict[str, Any]:
    """Read a `config.json`, of whatever model."""
    if path.with_name(ADAPTER).exists():
        raise ModelError(
            f"{path.with_name(ADAPTER)}: belongs to a PEFT adapter, which is not supported: merge "
            "it into the model (merge_and_unload), save the result and load that"
        )
    if not path.exists():
        raise ModelError(f"{path.parent}: is not a model folder, it has no {path.name}")
    values = read_json(path)
    return values if values.get("model_type") not in READERS else _completed(path, values)


def _completed(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the special tokens that models of other families may name in another file."""
    beside = path.with_name("generation_config.json")
    further = read_json(beside) if beside.exists() else {}
    told = {key: further.get(key) for key in TOKENS if values.get(key) is None}
    if (start := further.get("decoder_start_token_id")) is not None:
        told["decoder_start_token_id"] = start
    return {**values, **{key: token for key, token in told.items() if token is not None}}


def _describe_model(path: Path, values: Mapping[str, Any]) -> ModelSpec:
    kind = values.get("model_type")
    if kind == MaskedLmSpec.model_type:
        raise ModelError(f"{path.parent}: {ONLY_READS}")
    if not isinstance(kind, str) or kind not in {*OWN, *READERS}:
        known = ", ".join([*OWN, *READERS])
        raise ModelError(f"{path}: model_type is {repr(kind)[:WORDS]}; Outrider can load: {known}")
    with naming(path):
        _check_dtype(values)
        if kind in OWN:
            return build_spec(OWN[kind], values)
        for key, why in REFUSED.items():
            if values.get(key):
                raise ConfigError(key, why)
        config = reader_of(kind).import_config(values)
        _check_masks(config, values)
        return config


def _check_masks(config: ModelSpec, values: Mapping[str, Any]) -> None:
    """Refuse keys that any config of transformers may have and that change the attention masks."""
    translates = isinstance(config, Seq2SeqSpec)
    # In transformers, true masks the encoder as well, and every other value unmasks the decoder.
    if "is_causal" in values and (translates or values["is_causal"] is not True):
        message = f"is {values['is_causal']!r}, which changes the attention: not supported"
        raise ConfigError("is_causal", message)
    if values.get("is_encoder_decoder", translates) is not translates:
        what = "an encoder-decoder" if translates else "a language model"
        message = f"is {values['is_encoder_decoder']!r}, but {values['model_type']} is {what}"
        raise ConfigError("is_encoder_decoder", message)


def _check_dtype(values: Mapping[str, Any]) -> None:
    dtype = values.get("dtype")
    if dtype is not None and dtype not in FLOATS:
        raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(FLOATS)}")


def _check_depth(path: Path, config: ModelSpec, weights: Mapping[str, Weight]) -> None:
    """Refuse more layers than there are weights for, before any layer is built."""
    if config.depth == "shared":
        return
    layers = {key: getattr(config, key) for key in config.layer_keys}
    encoder = getattr(config, "encoder", None)
    if encoder is not None:
        inner = encoder.get("config")
        count = _inner_layers(inner) if isinstance(inner, dict) else 0
        layers["encoder_layers"] = count if type(count) is int else 0
    if sum(layers.values()) > len(weights):
        counts = ", ".join(f"{key} {count}" for key, count in layers.items())
        raise ModelError(f"{path}: has {counts}, but there are only {len(weights)} weights")


def _inner_layers(inner: Mapping[str, Any]) -> Any:
    """Layers of a pretrained encoder, as its family or ours names them."""
    if inner.get("model_type") != MaskedLmSpec.model_type:
        return inner.get("num_hidden_layers", 0)
    return 0 if inner.get("depth") == "shared" else inner.get("layers", 0)


def _layout(config: ModelSpec | SideDecoderSpec) -> dict[str, Expected]:
    if isinstance(config, DrafterSpec):
        return drafter_layout(config)
    if isinstance(config, CtcSpec):
        return ctc_layout(config)
    assert isinstance(config, ModelSpec)
    return model_layout(config)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say which file it is that is wrong."""
    try:
        yield
    except (OutriderError, ArithmeticError, LookupError) as error:
        raise ModelError(_name(path, error)) from None
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(_name(path, error)) from None


def _name(path: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= WORDS else f"{text[:WORDS]}..."
    return text if text.startswith(str(path.parent)) else f"{path}: {text}"


def weights_of(folder: Path) -> dict[str, str]:
    """Checksums of the weights of a model, which say exactly which model it is."""
    return {path.name: file_sha256(path) for path in model_files(folder) if path.is_file()}
