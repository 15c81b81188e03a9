"""CTranslate2 folders: `model.bin`, `config.json`, vocabularies; Argos puts them into `model/`.

A CTranslate2 folder as a model of ours.

CTranslate2's encoder-decoder: the map between its names and ours.

Theirs stack queries, keys and values as ours do. Int8 weights come with the scale each row was
multiplied by, and stay as they are. Whatever a file holds is either known here or refused by name.

The vocabularies of a CTranslate2 folder, numbered so that a model of ours can use them.

Ours have one number each for padding and for the end of a text, on both sides, and feed the decoder
an ordinary token first. Theirs may number the sides apart, have no padding, and start from zeros:
then two tokens of the source change places, and the tables get one more row, of zeros.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import read_json, read_json_list, read_limited
from outrider.formats.readers.ctranslate2_binary import Variable, read_binary
from outrider.formats.readers.weights import stack
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec, build_spec

__all__ = [
    "PAD",
    "Vocabulary",
    "find",
    "import_config",
    "import_weights",
    "read",
    "read_vocabulary",
]

LARGEST = 64 << 20
TOKEN_LIMIT = 1 << 22
PAD = "<pad>"
PADDINGS = (PAD, "<blank>")
"""Names of a padding token: Marian's and fairseq's, OpenNMT's."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of both sides by their numbers, and the special ones among them."""

    source: list[str]
    target: list[str]
    end: int
    """Number of the end of a text, on both sides."""
    unknown: int
    padding: int
    start: int | None
    """What the decoder is fed first; None where the config names nothing."""
    swapped: tuple[int, int] | None
    """Rows of the source that changed places."""
    ends_source: bool
    """Whether a source ends with the end token."""

    @property
    def rows(self) -> int:
        """Rows of the longer table, as it is in the file."""
        return max(len(self.source), len(self.target))


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read `config.json` and the vocabularies that lie beside `model.bin`."""
    config = read_json(folder / "config.json")
    source, target = _read_sides(folder)
    end, unknown = (
        _number(folder, target, config, key, usual)
        for key, usual in (("eos_token", "</s>"), ("unk_token", "<unk>"))
    )
    swapped = None
    if source is not target and target[end] in source and source.index(target[end]) != end:
        swapped = source.index(target[end]), end
        if end >= len(source):
            raise ModelError(f"{folder}: the end token {end} is no token of the source")
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


def _start(folder: Path, target: list[str], config: Mapping[str, Any]) -> int | None:
    if _flag(folder, config, "add_source_bos"):
        raise ModelError(f"{folder / 'config.json'}: add_source_bos is true: not supported")
    name = config.get("decoder_start_token", "<s>")
    return target.index(name) if name in target else None


def _padding(source: list[str], target: list[str]) -> int:
    """Return the padding token that both sides have, or the number after all tokens."""
    for name in PADDINGS:
        number = target.index(name) if name in target else len(source)
        if number < len(source) and source[number] == name:
            return number
    return max(len(source), len(target))


def _number(
    folder: Path, tokens: list[str], config: Mapping[str, Any], key: str, usual: str
) -> int:
    name = config.get(key, usual)
    if name not in tokens:
        raise ModelError(
            f"{folder / 'config.json'}: {key} is {str(name)[:80]!r}, which is no token"
        )
    return tokens.index(name)


def _flag(folder: Path, config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ModelError(
            f"{folder / 'config.json'}: {key} is {str(value)[:80]!r}, not true or false"
        )
    return value


def _read_sides(folder: Path) -> tuple[list[str], list[str]]:
    shared = _find(folder, "shared_vocabulary")
    if shared is not None:
        tokens = _read(shared)
        return tokens, tokens
    sides = [_find(folder, f"{side}_vocabulary") for side in ("source", "target")]
    if None in sides:
        raise ModelError(f"{folder}: has neither shared_vocabulary.json nor one of each side")
    source, target = (_read(path) for path in sides if path is not None)
    return source, target


def _find(folder: Path, name: str) -> Path | None:
    for path in (folder / f"{name}.json", folder / f"{name}.txt"):
        if path.is_file():
            return path
    return None


def _read(path: Path) -> list[str]:
    tokens = list(_tokens(path))
    if not tokens or len(tokens) > TOKEN_LIMIT or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"{path}: is not a list of different tokens, at most {TOKEN_LIMIT} of them"
        )
    return tokens


def _tokens(path: Path) -> Iterator[str]:
    if path.suffix == ".json":
        for token in read_json_list(path, limit=LARGEST):
            if not isinstance(token, str):
                raise ModelError(f"{path}: {str(token)[:80]!r} is no token")
            yield token
    else:
        raw = read_limited(path, limit=LARGEST)
        try:
            yield from raw.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as problem:
            raise ModelError(f"{path}: is not UTF-8 text at byte {problem.start}") from None


ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu"}
"""Their number of an activation: its name."""
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
"""Our part of a layer: theirs."""
GATE = "ffn/linear_0_noact"
SAID = ("activation", "num_heads", "pre_norm")
"""Settings that both sides have, and must agree on."""
UNUSED = (
    *("alignment_heads", "alignment_layer", "alibi_use_positive_positions", "scale_alibi"),
    "embeddings_merge",
)
"""Settings that say nothing of how an ordinary model computes."""
OFF = ("alibi", "multi_query_attention")
"""Settings that must be off."""
EPSILON = 1e-5
"""What is added to the variance in a norm, unless their config says."""
FORBIDDEN = -1e9
"""Bias of the row that was added: nobody may write it."""
POSITIONS = 1024
"""Positions of a model that has no table of them; theirs is computed for as many as are asked."""


def import_config(
    variables: Mapping[str, Variable], vocabulary: Vocabulary, values: Mapping[str, Any]
) -> Seq2SeqSpec:
    """Say what model a `model.bin` holds; `values` is its `config.json`."""
    said = {key: _scalar(variables, f"encoder/{key}") for key in SAID}
    for key, value in said.items():
        if _scalar(variables, f"decoder/{key}") != value:
            raise ModelError(f"{key} is not the same in the encoder and the decoder: not supported")
    for side in ("encoder", "decoder"):
        for key in OFF:
            if _scalar(variables, f"{side}/{key}", 0):
                raise ModelError(f"{side}/{key} is on: not supported")
    activation = int(said["activation"])
    if activation not in ACTIVATIONS:
        raise ModelError(f"its activation is number {activation}: not supported")
    zeros = bool(_scalar(variables, "decoder/start_from_zero_embedding", 0))
    if not zeros and vocabulary.start is None:
        raise ModelError("decoder_start_token is no token: models that need one are not supported")
    tokens = _find_weight(variables, "decoder/embeddings/weight")
    if tokens.data.ndim != 2:
        raise ModelError("decoder/embeddings/weight is no table")
    width = tokens.data.shape[1]
    places = [_positions(variables, side, width) for side in ("encoder", "decoder")]
    shared = places[0] is places[1]
    usual = all(map(_is_sinusoidal, places[:1] if shared else places))
    return build_spec(
        Seq2SeqSpec,
        {
            "vocab_size": _rows(vocabulary, zeros),
            "hidden_size": width,
            "num_attention_heads": int(said["num_heads"]),
            "intermediate_size": len(
                _find_weight(variables, "encoder/layer_0/ffn/linear_0/weight").data
            ),
            "encoder_layers": _depth(variables, "encoder"),
            "decoder_layers": _depth(variables, "decoder"),
            "activation": ACTIVATIONS[activation],
            "gated": f"encoder/layer_0/{GATE}/weight" in variables,
            "norm": "pre" if said["pre_norm"] else "post",
            "norm_eps": values.get("layer_norm_epsilon") or EPSILON,
            "embedding_norm": "encoder/layernorm_embedding/gamma" in variables,
            "position": "sinusoidal" if usual else "learned",
            "max_positions": min(map(len, places)),
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
    """Give the arrays of a `model.bin` our names."""
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
        *(*SAID, *UNUSED, *OFF, "scale_embeddings"),
        *("start_from_zero_embedding", "position_encodings/encodings"),
    )
    known |= {f"{side}/{key}" for side in ("encoder", "decoder") for key in settings}
    for name in variables:
        if name not in known:
            raise ModelError(f"it holds {name[:120]!r}, which Outrider does not compute")
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
        _weight(variables, f"{theirs}/weight", known)  # the same table as another
    found = {}
    for name, theirs in tables.items():
        table = _weight(variables, f"{theirs}/weight", known)
        words = vocabulary.source if name == "source_tokens.weight" else vocabulary.target
        if table.shape != (len(words), width):
            got, wanted = list(table.shape), [len(words), width]
            raise ModelError(f"{theirs}/weight has shape {got}, the vocabulary implies {wanted}")
        if name == "source_tokens.weight" and vocabulary.swapped is not None:
            order = np.arange(len(words))
            order[list(vocabulary.swapped)] = order[list(reversed(vocabulary.swapped))]
            table = table.rows(order)
        found[name] = _lengthen(table, rows)
    bias = np.full(rows, FORBIDDEN, np.float32)
    bias[: len(vocabulary.target)] = 0
    if "decoder/projection/bias" in variables:
        given = _weight(variables, "decoder/projection/bias", known).as_float32()
        if given.shape != (len(vocabulary.target),):
            raise ModelError(f"decoder/projection/bias has shape {list(given.shape)}")
        bias[: len(given)] = given
    found["logits_bias"] = Weight("float32", bias)
    if config.position == "learned":
        for side in ("encoder", "decoder"):
            places = _positions(variables, side, width)
            places = places[: config.max_positions]
            found[f"{side}_position.table.weight"] = Weight("float32", places)
    return found


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
    """Return an array as it is; whole numbers stand for themselves over a scale."""
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


def _lengthen(table: Weight, rows: int) -> Weight:
    """Add rows of zeros."""
    more = rows - len(table.data)
    if not more:
        return table
    data = np.concatenate([table.data, np.zeros((more, table.shape[1]), table.data.dtype)])
    scale = table.scale
    if scale is not None:
        scale = np.concatenate([scale, np.ones(more, np.float32)])
    return Weight(table.kind, data, scale)


def _rows(vocabulary: Vocabulary, zeros: bool) -> int:
    return vocabulary.rows + (zeros or vocabulary.padding == vocabulary.rows)


def _source(variables: Mapping[str, Variable]) -> str:
    return (
        "encoder/embeddings_0"
        if "encoder/embeddings_0/weight" in variables
        else "encoder/embeddings"
    )


def _depth(variables: Mapping[str, Variable], side: str) -> int:
    layers = 0
    while f"{side}/layer_{layers}/ffn/linear_0/weight" in variables:
        layers += 1
    return layers


def _is_same(variables: Mapping[str, Variable], one: str, other: str) -> bool:
    """Whether two tables are one: under two names, or stored twice with the same scales."""
    first, second = (_weight(variables, f"{name}/weight", set()) for name in (one, other))
    return first.equals(second)


def _positions(variables: Mapping[str, Variable], side: str, width: int) -> NDArray[np.float32]:
    """Return what is added at every position; a file without a table has OpenNMT's sinusoids."""
    found = variables.get(f"{side}/position_encodings/encodings")
    if found is not None:
        places = Weight(found.kind, found.data).as_float32()
        if places.ndim != 2 or places.shape[1] != width or not len(places):
            raise ModelError(f"{side}/position_encodings/encodings is no table of width {width}")
        return places
    half = width // 2
    rates = np.exp(np.arange(half) * -(math.log(10000) / (half - 1)))
    angles = np.arange(1, POSITIONS + 1)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def _is_sinusoidal(places: NDArray[np.float32]) -> bool:
    """Whether a table holds what our models add without one: Marian's sinusoids."""
    rows, width = places.shape
    if width % 2:
        return False
    rates = 10000.0 ** (-2 * np.arange(width // 2) / width)
    angles = np.arange(rows)[:, None] * rates
    usual = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    return bool(np.abs(places - usual).max() < 1e-4)


def _scales(variables: Mapping[str, Variable], width: int) -> bool:
    """Whether embeddings are multiplied by the root of the width; theirs is a flag or a factor."""
    found = set()
    for side in ("encoder", "decoder"):
        value = _scalar(variables, f"{side}/scale_embeddings", 1)
        if _find_weight(variables, f"{side}/scale_embeddings").kind == "int8":
            value = math.sqrt(width) if value else 1.0
        found.add(round(value, 3))
    if found == {round(math.sqrt(width), 3)}:
        return True
    if found != {1.0}:
        raise ModelError(f"scale_embeddings is {found}, expected the square root of the width")
    return False


def _scalar(variables: Mapping[str, Variable], name: str, usual: float | None = None) -> float:
    if name not in variables and usual is not None:
        return usual
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
    """Return the `model.bin` of a folder; Argos packages have it one level further down."""
    for path in (folder / FILE, folder / "model" / FILE):
        if path.is_file():
            return path
    return None


def read(path: Path) -> tuple[Seq2SeqSpec, dict[str, Weight]]:
    """Say what model a `model.bin` holds, and map its weights."""
    found = read_binary(path)
    if found.specification != SPECIFICATION:
        kind = f"it holds a {found.specification[:80]}; of CTranslate2's models, Outrider reads"
        raise ModelError(f"{kind} encoder-decoders ({SPECIFICATION})")
    vocabulary = read_vocabulary(path.parent)
    config = import_config(found.variables, vocabulary, read_json(path.parent / "config.json"))
    return config, import_weights(found.variables, vocabulary, config)
