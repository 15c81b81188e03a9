"""CTranslate2 folders: `model.bin`, `config.json` and vocabularies; Argos has them in `model/`.

int8 weights are kept, with the inverse of their stored scales. Unknown variables are refused.

Our models have the same ids of padding and of the end token on both sides, and start the decoder
with a token. CTranslate2 models may have different ids, no padding, and start from zeros: then two
tokens of the source are swapped, and tables get one more row, of zeros.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import JsonFolder, parse_json, read_limited
from outrider.formats.readers.ctranslate2_binary import Variable, read_binary
from outrider.formats.readers.weights import lengthened, stack
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec, build_spec

CONFIG = "config.json"
LARGEST = 64 << 20
TOKEN_LIMIT = 1 << 22
KEYS = {
    *("add_source_bos", "add_source_eos", "bos_token", "decoder_start_token", "eos_token"),
    *("layer_norm_epsilon", "unk_token"),
}
"""Supported keys of `config.json`; others must be false, zero, null or empty."""
PAD = "<pad>"
PADDINGS = (PAD, "<blank>")
"""Names of the padding token: of Marian and fairseq, of OpenNMT."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of both sides in the order of their ids, and the special ids."""

    source: list[str]
    target: list[str]
    end: int
    unknown: int
    padding: int
    start: int | None
    """First token of the decoder; None if the config names none."""
    swapped: tuple[int, int] | None
    """Rows of the source table that are swapped."""
    ends_source: bool
    """Whether a source ends with the end token."""

    @property
    def rows(self) -> int:
        """Stored rows of the longer table."""
        return max(len(self.source), len(self.target))


def read_vocabulary(files: JsonFolder) -> Vocabulary:
    """Read `config.json` and the vocabularies beside `model.bin`."""
    folder, config = files.path, _read_config(files)
    source, target = _read_sides(files)
    end = _token_id(folder, target, config, "eos_token", "</s>")
    unknown = _token_id(folder, target, config, "unk_token", "<unk>")
    swapped = None
    if source is not target and target[end] in source and source.index(target[end]) != end:
        swapped = source.index(target[end]), end
        if end >= len(source):
            raise ModelError(f"{folder}: the end token {end} is not in the source vocabulary")
        source[swapped[0]], source[end] = source[end], source[swapped[0]]
    return Vocabulary(
        source,
        target,
        end=end,
        unknown=unknown,
        padding=_padding(source, target),
        start=_start(folder, target, config),
        swapped=swapped,
        ends_source=_flag(folder, config, "add_source_eos"),
    )


def _read_config(files: JsonFolder) -> dict[str, Any]:
    """Read `config.json`; refuse keys that are not supported."""
    path = files.path / CONFIG
    config = parse_json(files.read(CONFIG), path)
    for key, value in config.items():
        if value and key not in KEYS:
            message = f"{key[:200]} is {repr(value)[:80]}, an unknown key; remove it if it does"
            raise ModelError(f"{path}: {message} not change the result")
    return config


def _start(folder: Path, target: list[str], config: Mapping[str, Any]) -> int | None:
    if _flag(folder, config, "add_source_bos"):
        raise ModelError(f"{folder / CONFIG}: add_source_bos is true: not supported")
    name = config.get("decoder_start_token", "<s>")
    return target.index(name) if name in target else None


def _padding(source: list[str], target: list[str]) -> int:
    """Return the id of the padding token that both sides have, or the id after all tokens."""
    for name in PADDINGS:
        index = target.index(name) if name in target else len(source)
        if index < len(source) and source[index] == name:
            return index
    return max(len(source), len(target))


def _token_id(
    folder: Path, tokens: list[str], config: Mapping[str, Any], key: str, default: str
) -> int:
    name = config.get(key, default)
    if name not in tokens:
        raise ModelError(f"{folder / CONFIG}: {key} is {str(name)[:80]!r}, which is no token")
    return tokens.index(name)


def _flag(folder: Path, config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ModelError(f"{folder / CONFIG}: {key} is {str(value)[:80]!r}, not true or false")
    return value


def _read_sides(files: JsonFolder) -> tuple[list[str], list[str]]:
    shared, source, target = (
        _read(files, f"{side}_vocabulary") for side in ("shared", "source", "target")
    )
    if shared is not None:
        return shared, shared
    if source is None or target is None:
        raise ModelError(
            f"{files.path}: has neither shared_vocabulary.json nor source and target vocabularies"
        )
    return source, target


def _read(files: JsonFolder, name: str) -> list[str] | None:
    paths = (files.path / f"{name}.json", files.path / f"{name}.txt")
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    tokens = list(_tokens(files, path))
    if not tokens or len(tokens) > TOKEN_LIMIT or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"{path}: is not a list of different tokens, at most {TOKEN_LIMIT} of them"
        )
    return tokens


def _tokens(files: JsonFolder, path: Path) -> Iterator[str]:
    if path.suffix == ".json":
        for token in files.json_list(path.name, limit=LARGEST):
            if not isinstance(token, str):
                raise ModelError(f"{path}: {str(token)[:80]!r} is no token")
            yield token
    else:
        raw = read_limited(path, limit=LARGEST)
        try:
            yield from raw.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise ModelError(f"{path}: is not UTF-8 text at byte {error.start}") from error


ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu"}
"""Number of an activation: its name."""
NORMS = {"weight": "gamma", "bias": "beta"}
SELF = {
    "attention.qkv": "self_attention/linear_0",
    "attention.out": "self_attention/linear_1",
    "attention_residual.norm": "self_attention/layer_norm",
}
CROSS = {
    "cross.q": "attention/linear_0",
    "cross.kv": "attention/linear_1",
    "cross.out": "attention/linear_2",
    "cross_residual.norm": "attention/layer_norm",
}
FEEDFORWARD = {
    "feedforward.up": "ffn/linear_0",
    "feedforward.down": "ffn/linear_1",
    "feedforward_residual.norm": "ffn/layer_norm",
}
"""Our part of a layer: their part."""
GATE = "ffn/linear_0_noact"
SETTINGS = ("activation", "num_heads", "pre_norm")
"""Settings of both sides, which must be equal."""
UNUSED = (
    *("alignment_heads", "alignment_layer", "alibi_use_positive_positions", "scale_alibi"),
    "embeddings_merge",
)
"""Settings that do not affect supported models."""
OFF = ("alibi", "multi_query_attention")
"""Settings that must be off."""
EPSILON = 1e-5
"""Default `norm_eps`."""
FORBIDDEN = -1e9
"""Bias of the additional row, so that it is never generated."""
POSITIONS = 1024
"""Positions of a model without a table of positions."""


def import_config(
    variables: Mapping[str, Variable], vocabulary: Vocabulary, values: Mapping[str, Any]
) -> Seq2SeqSpec:
    """Convert the config of a model; `values` are those of its `config.json`."""
    settings = {key: _scalar(variables, f"encoder/{key}") for key in SETTINGS}
    for key, value in settings.items():
        if _scalar(variables, f"decoder/{key}") != value:
            raise ModelError(f"{key} is not the same in the encoder and the decoder: not supported")
    for side in ("encoder", "decoder"):
        for key in OFF:
            if _scalar(variables, f"{side}/{key}", 0):
                raise ModelError(f"{side}/{key} is on: not supported")
    activation = int(settings["activation"])
    if activation not in ACTIVATIONS:
        raise ModelError(f"its activation is number {activation}: not supported")
    zeros = bool(_scalar(variables, "decoder/start_from_zero_embedding", 0))
    if not zeros and vocabulary.start is None:
        raise ModelError("decoder_start_token is no token: models that need one are not supported")
    tokens = _find_weight(variables, "decoder/embeddings/weight")
    if tokens.data.ndim != 2:
        raise ModelError("decoder/embeddings/weight is no table")
    width = tokens.data.shape[1]
    tables = [_positions(variables, side, width) for side in ("encoder", "decoder")]
    sinusoidal = all(map(_is_sinusoidal, tables[:1] if tables[0] is tables[1] else tables))
    return build_spec(
        Seq2SeqSpec,
        {
            "vocab_size": _rows(vocabulary, zeros),
            "hidden_size": width,
            "num_attention_heads": int(settings["num_heads"]),
            "intermediate_size": len(
                _find_weight(variables, "encoder/layer_0/ffn/linear_0/weight").data
            ),
            "encoder_layers": _depth(variables, "encoder"),
            "decoder_layers": _depth(variables, "decoder"),
            "activation": ACTIVATIONS[activation],
            "gated": f"encoder/layer_0/{GATE}/weight" in variables,
            "norm": "pre" if settings["pre_norm"] else "post",
            "norm_eps": values.get("layer_norm_epsilon") or EPSILON,
            "embedding_norm": "encoder/layernorm_embedding/gamma" in variables,
            "position": "sinusoidal" if sinusoidal else "learned",
            "max_positions": min(map(len, tables)),
            "scale_embedding": _scales(variables, width),
            "tie_word_embeddings": _is_same(variables, "decoder/projection", "decoder/embeddings"),
            "share_embeddings": _is_same(variables, _source(variables), "decoder/embeddings"),
            "logits_bias": True,
            "pad_token_id": vocabulary.padding,
            "eos_token_id": vocabulary.end,
            "decoder_start_token_id": vocabulary.rows if zeros else vocabulary.start,
            "source_end": vocabulary.ends_source,
        },
    )


def import_weights(
    variables: Mapping[str, Variable], vocabulary: Vocabulary, config: Seq2SeqSpec
) -> dict[str, Weight]:
    """Rename the variables of a `model.bin`."""
    known: set[str] = set()
    ours = {}
    for name, theirs in _names(config):
        ours[name] = _weight(variables, theirs, known)
    if config.gated:
        depths = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
        for side, layer in ((side, n) for side, depth in depths.items() for n in range(depth)):
            for leaf in ("weight", "bias"):
                up = f"{side}.blocks.{layer}.feedforward.up.{leaf}"
                gate = _weight(variables, f"{side}/layer_{layer}/{GATE}/{leaf}", known)
                ours[up] = stack([ours[up], gate])
    ours |= _tables(variables, vocabulary, config, known)
    settings = (
        *(*SETTINGS, *UNUSED, *OFF, "scale_embeddings"),
        *("start_from_zero_embedding", "position_encodings/encodings"),
    )
    known |= {f"{side}/{key}" for side in ("encoder", "decoder") for key in settings}
    for name in variables:
        if name not in known:
            raise ModelError(f"it holds {name[:120]!r}, which is not supported")
    return ours


def _tables(
    variables: Mapping[str, Variable],
    vocabulary: Vocabulary,
    config: Seq2SeqSpec,
    known: set[str],
) -> dict[str, Weight]:
    rows, width = config.vocab_size, config.hidden_size
    tables = {"tokens.weight": "decoder/embeddings"}
    if not config.tie_word_embeddings:
        tables["head.weight"] = "decoder/projection"
    if not config.share_embeddings:
        tables["source_tokens.weight"] = _source(variables)
    for theirs in {"decoder/projection", _source(variables)} - set(tables.values()):
        _weight(variables, f"{theirs}/weight", known)  # a copy of another table
    ours = {}
    for name, theirs in tables.items():
        table = _weight(variables, f"{theirs}/weight", known)
        tokens = vocabulary.source if name == "source_tokens.weight" else vocabulary.target
        if table.shape != (len(tokens), width):
            shapes = f"{list(table.shape)}, the vocabulary implies {[len(tokens), width]}"
            raise ModelError(f"{theirs}/weight has shape {shapes}")
        if name == "source_tokens.weight" and vocabulary.swapped is not None:
            order = np.arange(len(tokens))
            order[list(vocabulary.swapped)] = order[list(reversed(vocabulary.swapped))]
            table = table.rows(order)
        ours[name] = lengthened(table, rows)
    bias = np.full(rows, FORBIDDEN, np.float32)
    bias[: len(vocabulary.target)] = 0
    if "decoder/projection/bias" in variables:
        given = _weight(variables, "decoder/projection/bias", known).as_float32()
        if given.shape != (len(vocabulary.target),):
            raise ModelError(f"decoder/projection/bias has shape {list(given.shape)}")
        bias[: len(given)] = given
    ours["logits_bias"] = Weight("float32", bias)
    if config.position == "learned":
        for side in ("encoder", "decoder"):
            positions = _positions(variables, side, width)[: config.max_positions]
            ours[f"{side}_position.table.weight"] = Weight("float32", positions)
    return ours


def _names(config: Seq2SeqSpec) -> Iterator[tuple[str, str]]:
    for side, layers, parts in (
        ("encoder", config.encoder_layers, SELF | FEEDFORWARD),
        ("decoder", config.decoder_layers, SELF | CROSS | FEEDFORWARD),
    ):
        for layer in range(layers):
            for ours, theirs in parts.items():
                for leaf in ("weight", "bias"):
                    name = f"{side}.blocks.{layer}.{ours}.{leaf}"
                    yield name, f"{side}/layer_{layer}/{theirs}/{_leaf(ours, leaf)}"
        for leaf in ("weight", "bias"):
            if config.norm == "pre":
                yield f"{side}.norm.{leaf}", f"{side}/layer_norm/{NORMS[leaf]}"
            if config.embedding_norm:
                ours = f"{side}_embedding_norm.{leaf}"
                yield ours, f"{side}/layernorm_embedding/{NORMS[leaf]}"


def _leaf(ours: str, leaf: str) -> str:
    return NORMS[leaf] if ours.endswith(".norm") else leaf


def _weight(variables: Mapping[str, Variable], name: str, known: set[str]) -> Weight:
    """Return a weight; whole numbers are divided by their scale."""
    kind, data = _find_weight(variables, name)
    known.add(name)
    if not kind.startswith("int"):
        return Weight(kind, data)
    scale = _find_weight(variables, f"{name}_scale").data.astype(np.float32)
    known.add(f"{name}_scale")
    whole = scale.size == 1
    valid = bool(np.all((scale > 0) & np.isfinite(scale)))
    if data.ndim != 2 or (not whole and scale.shape != data.shape[:1]) or not valid:
        raise ModelError(f"{name}_scale does not belong to {name}")
    per_row = np.full(len(data), 1, np.float32) / scale.reshape(-1)
    if kind == "int8":
        return Weight(kind, data, per_row)
    return Weight("float32", data * per_row[:, None])


def _rows(vocabulary: Vocabulary, zeros: bool) -> int:
    return vocabulary.rows + (zeros or vocabulary.padding == vocabulary.rows)


def _source(variables: Mapping[str, Variable]) -> str:
    numbered = "encoder/embeddings_0"
    return numbered if f"{numbered}/weight" in variables else "encoder/embeddings"


def _depth(variables: Mapping[str, Variable], side: str) -> int:
    layers = 0
    while f"{side}/layer_{layers}/ffn/linear_0/weight" in variables:
        layers += 1
    return layers


def _is_same(variables: Mapping[str, Variable], name: str, other: str) -> bool:
    """Whether two tables are equal."""
    table, copy = (_weight(variables, f"{n}/weight", set()) for n in (name, other))
    return table.equals(copy)


def _positions(variables: Mapping[str, Variable], side: str, width: int) -> NDArray[np.float32]:
    """Return the table of positions; OpenNMT's sinusoids if the file has none."""
    stored = variables.get(f"{side}/position_encodings/encodings")
    if stored is not None:
        table = Weight(stored.kind, stored.data).as_float32()
        if table.ndim != 2 or table.shape[1] != width or not len(table):
            raise ModelError(f"{side}/position_encodings/encodings is no table of width {width}")
        return table
    half = width // 2
    rates = np.exp(np.arange(half) * -(math.log(10000) / (half - 1)))
    angles = np.arange(1, POSITIONS + 1)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def _is_sinusoidal(table: NDArray[np.float32]) -> bool:
    """Whether a table holds the sinusoids of our models, which are Marian's."""
    rows, width = table.shape
    if width % 2:
        return False
    rates = 10000.0 ** (-2 * np.arange(width // 2) / width)
    angles = np.arange(rows)[:, None] * rates
    sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    return bool(np.abs(table - sinusoids).max() < 1e-4)


def _scales(variables: Mapping[str, Variable], width: int) -> bool:
    """Whether embeddings are multiplied by the root of the width, by flag or factor."""
    factors = set()
    for side in ("encoder", "decoder"):
        value = _scalar(variables, f"{side}/scale_embeddings", 1)
        if _find_weight(variables, f"{side}/scale_embeddings").kind == "int8":
            value = math.sqrt(width) if value else 1.0
        factors.add(round(value, 3))
    if factors == {round(math.sqrt(width), 3)}:
        return True
    if factors != {1.0}:
        raise ModelError(f"scale_embeddings is {factors}, expected the square root of the width")
    return False


def _scalar(variables: Mapping[str, Variable], name: str, default: float | None = None) -> float:
    if name not in variables and default is not None:
        return default
    kind, data = _find_weight(variables, name)
    if data.size != 1:
        raise ModelError(f"{name} is not one number")
    return float(Weight(kind, data).as_float32().reshape(-1)[0])


def _find_weight(variables: Mapping[str, Variable], name: str) -> Variable:
    if name not in variables:
        raise ModelError(f"it lacks {name!r}")
    return variables[name]


FILE = "model.bin"
SPECIFICATION = "TransformerSpec"


def find(folder: Path) -> Path | None:
    """Return the `model.bin` of a folder or of its subfolder `model`."""
    for path in (folder / FILE, folder / "model" / FILE):
        if path.is_file():
            return path
    return None


def read(path: Path, files: JsonFolder) -> tuple[Seq2SeqSpec, dict[str, Weight]]:
    """Read the config of a `model.bin` and map its weights."""
    files = files.inner(path.parent)
    specification, variables = read_binary(path)
    if specification != SPECIFICATION:
        message = f"it holds a {specification[:80]}; of CTranslate2's models, Outrider reads"
        raise ModelError(f"{message} encoder-decoders ({SPECIFICATION})")
    vocabulary = read_vocabulary(files)
    config = import_config(variables, vocabulary, files.json(CONFIG))
    return config, import_weights(variables, vocabulary, config)
