"""Model folders: ours, those of other families with a reader, and CTranslate2's and Marian's files.

A folder is untrusted input and nothing in it is executed: weights are never unpickled,
`config.json` cannot name code, and names and shapes of weights must match the config.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from outrider.errors import ConfigError, ModelError, OutriderError
from outrider.files import JsonFolder, Location, file_sha256
from outrider.formats import readers
from outrider.formats.layout import ctc_layout, drafter_layout, model_layout
from outrider.formats.readers import has_binary
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

CONFIG = "config.json"
GENERATION = "generation_config.json"
DRAFTER = "drafter"
"""Subfolder of a model's drafter."""
CTC = "ctc"
"""Subfolder of a model's parallel decoder."""
OWN: dict[str, type[ModelSpec]] = {
    Seq2SeqSpec.model_type: Seq2SeqSpec,
    LanguageModelSpec.model_type: LanguageModelSpec,
}


class Reader(Protocol):
    """A module of `readers` for a family of Hugging Face models."""

    def import_config(self, values: Mapping[str, Any], /) -> ModelSpec:
        """Convert the values of a `config.json`."""
        ...

    def import_weights(
        self, theirs: Stored, config: Any, values: Mapping[str, Any], /
    ) -> dict[str, Weight]:
        """Convert the weights; `values` are those of the `config.json`."""
        ...


class FileReader(Protocol):
    """A module of `readers` for models in other files."""

    def find(self, folder: Path, /) -> Path | None:
        """Return the file of the weights; None if the folder has none."""
        ...

    def read(self, path: Path, files: JsonFolder, /) -> tuple[ModelSpec, dict[str, Weight]]:
        """Read the config and the weights of a file in a folder."""
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
    "auto_map": "names remote code, which is never run",
    "quantization_config": "is set, but quantised weights are not supported",
}
"""Keys of other families' configs that change how a model computes."""
ADAPTER = "adapter_config.json"
ONLY_READS = (
    "is a masked language model, which cannot generate: test it with outrider evaluate --text, or "
    "use it as the encoder of a seq2seq (model.encoder.pretrained)"
)
FILE_READERS = ("ctranslate2", "bergamot")
MESSAGE_LENGTH = 400
"""Characters of a value or of another library's message that an error repeats."""

ConfigT = TypeVar("ConfigT", bound=ModelSpec | SideDecoderSpec, covariant=True)
AnyT = TypeVar("AnyT", bound=ModelSpec | SideDecoderSpec)
SideT = TypeVar("SideT", bound=SideDecoderSpec)


@dataclass(frozen=True)
class Part(Generic[ConfigT]):
    """A model or a side decoder: its config, and its weights by name."""

    folder: Path
    config: ConfigT
    weights: Mapping[str, Weight]
    stored: Stored | None = None
    """The weights of another family under their own names."""
    files: Sequence[Path] = ()
    """The files of the weights."""

    def check_values(self) -> None:
        """Refuse NaN and Inf, and tied tables that differ; reads all weights."""
        if (name := _first_infinite(self.weights)) is not None:
            name = (self.stored and _first_infinite(self.stored.read)) or name
            message = f"{name[:200]!r} holds NaN or infinite numbers"
            raise ModelError(f"{self._file_of(name)}: {message}; use a checkpoint without them")
        for table, copy, name, copy_name in [] if self.stored is None else self.stored.copies:
            if not table.equals(copy):
                raise ModelError(
                    f"{self.folder}: {copy_name!r} differs from {name!r}, but the config ties "
                    "them: remove the wrong one, or untie them in config.json"
                )

    def check(self, expected: Mapping[str, Expected] | None = None) -> None:
        """Refuse weights that differ from those expected, by default those of a portable model."""
        config = self.config
        check_weights(self.folder, self.weights, _layout(config) if expected is None else expected)
        if isinstance(config, DrafterSpec) and config.shortlist:
            with naming(self.folder):
                config.check_shortlist(self.weights["kept_V"].data.tolist())
        if isinstance(config, CtcSpec) and (steps := int(self.weights["steps"].data)) < 0:
            raise ModelError(f"{self.folder}: 'steps' is {steps}, expected 0 or more")

    def _file_of(self, name: str) -> Path:
        """Return the file of a weight."""
        files = [path for path in self.files if path.exists()]
        if len(files) > 1:
            files = [path for path in files if name in read_safetensors(path)]
        return files[0] if files else self.folder


@dataclass(frozen=True)
class Parts:
    """A model and its side decoders."""

    model: Part[ModelSpec]
    drafter: Part[DrafterSpec] | None = None
    ctc: Part[CtcSpec] | None = None

    def check_values(self) -> None:
        """Check the values of all parts."""
        for part in (self.model, self.ctc, self.drafter):
            if part is not None:
                part.check_values()

    def check(self) -> None:
        """Refuse weights that are not portable, and side decoders of another model."""
        self.model.check()
        for side in (self.ctc, self.drafter):
            if side is not None:
                side.check()
                side.config.check_target(self.model.config)


def read_parts(folder: Location) -> Parts:
    """Read a model and its side decoders."""
    folder = JsonFolder.of(folder)
    model = read_model(folder)
    ctc = read_ctc(folder, model.config)
    return Parts(model, read_drafter(folder, model.config), ctc)


def read_model(folder: Location) -> Part[ModelSpec]:
    """Read a model of ours or of a family with a reader; nothing is downloaded."""
    files = JsonFolder.of(folder)
    folder = files.path
    reader, file = _find_file(folder)
    if reader is not None and file is not None:
        with naming(file):
            return Part(folder, *reader.read(file, files), files=[file])
    path, values = folder / CONFIG, read_values(files)
    part = _read_part(folder, _read_spec(path, values))
    if values["model_type"] not in READERS:
        return part
    stored = Stored(part.weights)
    with naming(folder):
        weights = reader_of(values["model_type"]).import_weights(stored, part.config, values)
    return replace(part, weights=weights, stored=stored)


def read_masked_lm(folder: str | Path) -> Part[MaskedLmSpec] | None:
    """Read a masked language model; None if the folder holds another model."""
    folder = Path(folder)
    path = folder / CONFIG
    values = read_values(JsonFolder(folder)) if path.exists() else {}
    if values.get("model_type") != MaskedLmSpec.model_type:
        return None
    return _read_part(folder, _build(path, MaskedLmSpec, values))


def read_config(folder: Location) -> ModelSpec:
    """Read and check the config of a model."""
    files = JsonFolder.of(folder)
    if _find_file(files.path) != (None, None):
        return read_model(files).config
    return _read_spec(files.path / CONFIG, read_values(files))


def is_language_model(folder: JsonFolder) -> bool:
    """Whether a folder holds a language model; files of other formats hold none."""
    if _find_file(folder.path) != (None, None):
        return False
    return isinstance(read_config(folder), LanguageModelSpec)


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model's weights."""
    _, file = _find_file(folder)
    return weight_files(folder) if file is None else [file]


def weights_of(folder: Path) -> dict[str, str]:
    """Return the checksums of a model's weights, which identify the model."""
    return {path.name: file_sha256(path) for path in model_files(folder) if path.is_file()}


def _first_infinite(weights: Mapping[str, Weight]) -> str | None:
    """Return the name of a weight with NaN or infinite numbers."""
    return next((name for name, weight in weights.items() if not weight.is_finite()), None)


def reader_of(model_type: str) -> Reader:
    """Import and return the reader of a family."""
    return cast(Reader, import_module(f"{readers.__name__}.{model_type}"))


def _find_file(folder: Path) -> tuple[FileReader, Path] | tuple[None, None]:
    for name in FILE_READERS if has_binary(folder) else ():
        reader = cast(FileReader, import_module(f"{readers.__name__}.{name}"))
        if (file := reader.find(folder)) is not None:
            return reader, file
    return None, None


def read_drafter(folder: Location, target: ModelSpec) -> Part[DrafterSpec] | None:
    """Read the drafter of a model; None if it has none."""
    folder = JsonFolder.of(folder).path / DRAFTER
    if not folder.is_dir():
        return None
    part = _read_side_decoder(folder, DrafterSpec)
    with naming(folder):
        part.config.check_target(target)
    return part


def read_ctc(folder: Location, target: ModelSpec) -> Part[CtcSpec] | None:
    """Read the parallel decoder of a model; None if it has none."""
    folder = JsonFolder.of(folder).path / CTC
    if not folder.is_dir():
        return None
    if not isinstance(target, Seq2SeqSpec):
        raise ModelError(f"{folder}: a CTC decoder needs a source, a language model has none")
    part = _read_side_decoder(folder, CtcSpec)
    part.config.check_target(target)
    return part


def _read_side_decoder(folder: Path, cls: type[SideT]) -> Part[SideT]:
    path, values = folder / CONFIG, read_values(JsonFolder(folder))
    if values.get("model_type") != cls.model_type:
        kind = repr(values.get("model_type"))[:MESSAGE_LENGTH]
        raise ModelError(f"{path}: model_type is {kind}, expected {cls.model_type!r}")
    return _read_part(folder, _build(path, cls, values))


def _read_part(folder: Path, config: AnyT) -> Part[AnyT]:
    files = weight_files(folder)
    weights = read_weights(folder, files)
    if isinstance(config, ModelSpec):
        _check_depth(folder / CONFIG, config, weights)
    return Part(folder, config, weights, files=files)


def read_values(folder: JsonFolder) -> dict[str, Any]:
    """Read the `config.json`, with special tokens that other families keep in another file."""
    if (adapter := folder.path / ADAPTER).exists():
        raise ModelError(
            f"{adapter}: belongs to a PEFT adapter, which is not supported: merge "
            "it into the model (merge_and_unload), save the result and load that"
        )
    if not (folder.path / CONFIG).exists():
        raise ModelError(f"{folder.path}: is not a model folder, it has no {CONFIG}")
    values = folder.json(CONFIG)
    if values.get("model_type") in READERS:
        further = folder.json(GENERATION)
        tokens = {key: further.get(key) for key in TOKENS if values.get(key) is None}
        tokens["decoder_start_token_id"] = further.get("decoder_start_token_id")
        values |= {key: token for key, token in tokens.items() if token is not None}
    return values


def _read_spec(path: Path, values: Mapping[str, Any]) -> ModelSpec:
    kind = values.get("model_type")
    if kind == MaskedLmSpec.model_type:
        raise ModelError(f"{path.parent}: {ONLY_READS}")
    if not isinstance(kind, str) or kind not in {*OWN, *READERS}:
        kind, known = repr(kind)[:MESSAGE_LENGTH], ", ".join([*OWN, *READERS])
        raise ModelError(f"{path}: model_type is {kind}; Outrider can load: {known}")
    if kind in OWN:
        return _build(path, OWN[kind], values)
    with naming(path):
        _check_dtype(values)
        for key, why in REFUSED.items():
            if values.get(key):
                raise ConfigError(key, why)
        config = reader_of(kind).import_config(values)
        _check_masks(config, values)
        return config


def _build(path: Path, cls: type[AnyT], values: Mapping[str, Any]) -> AnyT:
    with naming(path):
        _check_dtype(values)
        return build_spec(cls, values)


def _check_masks(config: ModelSpec, values: Mapping[str, Any]) -> None:
    """Refuse keys of transformers that change attention masks."""
    seq2seq = isinstance(config, Seq2SeqSpec)
    # In transformers, true masks the encoder as well, and every other value unmasks the decoder.
    if "is_causal" in values and (seq2seq or values["is_causal"] is not True):
        message = f"is {values['is_causal']!r}, which changes the attention: not supported"
        raise ConfigError("is_causal", message)
    if values.get("is_encoder_decoder", seq2seq) is not seq2seq:
        kind = "an encoder-decoder" if seq2seq else "a language model"
        message = f"is {values['is_encoder_decoder']!r}, but {values['model_type']} is {kind}"
        raise ConfigError("is_encoder_decoder", message)


def _check_dtype(values: Mapping[str, Any]) -> None:
    dtype = values.get("dtype")
    if dtype is not None and dtype not in FLOATS:
        raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(FLOATS)}")


def _check_depth(path: Path, config: ModelSpec, weights: Mapping[str, Weight]) -> None:
    """Refuse more layers than there are weights, before any layer is built."""
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
    """Return the number of layers of a pretrained encoder, under either name."""
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
    """Prefix errors with the path of the damaged file."""
    try:
        yield
    except (OutriderError, IndexError, OverflowError, ValueError) as error:
        # numpy raises the last three for shapes and sizes that do not fit.
        text = " ".join(str(error).split())
        text = text if len(text) <= MESSAGE_LENGTH else f"{text[:MESSAGE_LENGTH]}..."
        named = text.startswith(str(path.parent))
        raise ModelError(text if named else f"{path}: {text}") from error
