"""Models of Marian, Bergamot and Firefox: one binary file with weights and config.

They are post-norm Transformers whose decoder may have an SSRU instead of self-attention. Their
sinusoids become a table of learned positions. Their decoder starts with an embedding of zeros,
which becomes an additional token that is never generated.

A lexical shortlist (`lex.*.bin`) lists the target tokens to score for a source:

    u64 x 6    magic number, checksum, number of frequent tokens, most tokens of a source token,
               count of offsets, count of tokens
    offsets    u64: the target tokens of source token w are those from offset w to offset w + 1
    tokens     u32

A source's shortlist is the frequent tokens, those of its tokens and, with a shared vocabulary, its
own tokens. A head that scores only these is many times smaller.
"""

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import JsonFolder, open_regular
from outrider.formats.readers.marian_binary import INT8, INTGEMM8, Item, read_marian_binary
from outrider.formats.readers.weights import Stored, lengthened, rename
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec, build_spec

CONFIG = "special:model.yml"
CONFIG_BYTES = 1 << 16
EOS = 0
"""Id of the end token in Marian's SentencePiece vocabularies."""
POSITIONS = 1024
"""Longest text; Marian truncates at 1,000."""
MATRIX = re.compile(r"(^|_)W[^_]*$")
"""Names of matrices; all others are vectors."""
BIAS = "decoder_ff_logit_out_b"
NEVER = -10_000.0
"""Bias of the additional token and of padding rows."""
SIZES = {
    "hidden_size": "dim-emb",
    "num_attention_heads": "transformer-heads",
    "intermediate_size": "transformer-dim-ffn",
    "encoder_layers": "enc-depth",
    "decoder_layers": "dec-depth",
}
"""Our key: their key."""
MIXERS = {"rnn": "ssru", "self-attention": "attention"}
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
EXPECTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "dec-cell": ("ssru",),
    "input-types": ([], None),
    "layer-normalization": (False,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "right-left": (False,),
    "skip": (False,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-depth": (2,),
    "transformer-no-affine": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-preprocess": ("", "d"),
    "transformer-rnn-projection": (False,),
    "transformer-tied-layers": ([], None),
    "transformer-train-position-embeddings": (False,),
    "ulr": (False,),
}
"""Supported values of keys; d is dropout."""
READ = {
    *SIZES.values(),
    *("dim-vocabs", "output-omit-bias", "transformer-decoder-autoreg"),
    *("transformer-decoder-dim-ffn", "transformer-ffn-activation"),
    *("tied-embeddings", "tied-embeddings-all", "tied-embeddings-src"),
}
WITHOUT_EFFECT = {
    *("bert-train-type-embeddings", "bert-type-vocab-size", "concat-factor-embed", "dim-rnn"),
    *("dec-cell-base-depth", "dec-cell-high-depth", "enc-cell", "enc-cell-depth", "enc-type"),
    *("factors-combine", "factors-dim-emb", "transformer-aan-activation", "transformer-aan-depth"),
    *("transformer-aan-nogate", "transformer-depth-scaling", "transformer-dim-aan"),
    *("transformer-guided-alignment-layer", "ulr-dim-emb", "ulr-trainable-transformation"),
    "version",
}
"""Keys of training, of other types, and of alignments."""


@dataclass(frozen=True)
class _Model:
    config: Seq2SeqSpec
    vocabularies: tuple[int, int]
    items: Mapping[str, Item]


def find(folder: Path) -> Path | None:
    """Return the binary model of a folder."""
    return find_files(folder, "model.*.bin")[0]


def find_files(folder: Path, *patterns: str) -> list[Path | None]:
    """Return the file of each pattern, None if it has none; several are refused."""
    matches: list[Path | None] = []
    for pattern in patterns:
        files = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(files) > 1:
            names = " and ".join(path.name for path in files[:2])
            raise ModelError(f"{folder}: holds {names}; keep one of them")
        matches.append(files[0] if files else None)
    return matches


def read(path: Path, _files: JsonFolder) -> tuple[Seq2SeqSpec, dict[str, Weight]]:
    """Read the config of a binary file and map its weights."""
    items = read_marian_binary(path)
    values = _values(items)
    model = _Model(*_import_config(values, "Wemb" in items), items)
    return model.config, _import_weights(model)


def _values(items: Mapping[str, Item]) -> Mapping[str, Any]:
    item = items.get(CONFIG)
    if item is None or item.type != INT8 or len(item.data) > CONFIG_BYTES:
        raise ModelError(f"has no readable {CONFIG}")
    from outrider.yaml12 import parse  # takes time to import

    try:
        values = parse(item.data.tobytes().rstrip(b"\0").decode())
    except ValueError as error:  # of YAML and of UTF-8
        raise ModelError(f"{CONFIG}: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{CONFIG}: is not a mapping")
    for key, value in values.items():
        if key not in EXPECTED and key not in READ and key not in WITHOUT_EFFECT:
            raise ModelError(f"{CONFIG}: unknown key {key!r}")
        if key in EXPECTED and not any(_same(value, expected) for expected in EXPECTED[key]):
            _refuse(key, value)
    return values


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _import_config(values: Mapping[str, Any], shared: bool) -> tuple[Seq2SeqSpec, tuple[int, int]]:
    sizes = {ours: _size(values, theirs) for ours, theirs in SIZES.items()}
    source, target = _vocabularies(values)
    for key in ("tied-embeddings-all",) if shared else ("tied-embeddings",):
        if values.get(key) is not True:
            _refuse(key, values.get(key))
    if shared and source != target:
        _refuse("dim-vocabs", values.get("dim-vocabs"))
    inner = values.get("transformer-decoder-dim-ffn", 0)
    if not _same(inner, 0) and inner != sizes["intermediate_size"]:
        _refuse("transformer-decoder-dim-ffn", inner)
    tokens = max(source, target)
    config = build_spec(
        Seq2SeqSpec,
        {
            **sizes,
            "vocab_size": tokens + 1,
            "decoder_core": _map(values, "transformer-decoder-autoreg", MIXERS, "self-attention"),
            "activation": _map(values, "transformer-ffn-activation", ACTIVATIONS, "swish"),
            "norm": "post",
            "norm_eps": 1e-6,
            "position": "learned",
            "max_positions": POSITIONS,
            "share_embeddings": shared,
            "logits_bias": True,
            "eos_token_id": EOS,
            "pad_token_id": tokens,
            "decoder_start_token_id": tokens,
        },
    )
    return config, (source, target)


def _size(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if type(value) is not int or value < 1:
        _refuse(key, value)
    return value


def _vocabularies(values: Mapping[str, Any]) -> tuple[int, int]:
    sizes = values.get("dim-vocabs")
    if not isinstance(sizes, list) or [*map(type, sizes)] != [int, int] or min(sizes) < 1:
        _refuse("dim-vocabs", sizes)
    return sizes[0], sizes[1]


def _map(values: Mapping[str, Any], key: str, known: Mapping[str, str], default: str) -> str:
    value = values.get(key, default)
    if not isinstance(value, str) or value not in known:
        _refuse(key, value)
    return known[value]


def _import_weights(model: _Model) -> dict[str, Weight]:
    config = model.config
    theirs = {name: _weight(name, item) for name, item in model.items.items() if name != CONFIG}
    source, target = model.vocabularies
    width, vocab_size = config.hidden_size, config.vocab_size
    tables = (
        {"Wemb": target}
        if config.share_embeddings
        else {"decoder_Wemb": target, "encoder_Wemb": source}
    )
    for name, rows in tables.items():
        if name in theirs:
            table = theirs[name]
            if table.shape != (rows, width):
                shapes = f"{list(table.shape)}, expected {[rows, width]}"
                raise ModelError(f"{name!r} has the shape {shapes}")
            theirs[name] = lengthened(table, vocab_size)
    for layer in range(1, config.decoder_layers + 1 if config.decoder_core == "ssru" else 1):
        theirs[f"decoder_l{layer}_rnn_b"] = Weight("float32", np.zeros(width, np.float32))
    stored = Stored(theirs)
    ours = rename(stored, _names(config))
    for side in ("encoder", "decoder"):
        ours[f"{side}_position.table.weight"] = Weight("float32", _positions(width))
    ours["logits_bias"] = _logits_bias(stored, target, vocab_size)
    stored.check_left()
    return ours


def _weight(name: str, item: Item) -> Weight:
    """Convert an item: rows of matrices become outputs, vectors lose a dimension."""
    if item.type == INT8:
        raise ModelError(f"{name!r} is int8, expected float32 or intgemm8")
    matrix = MATRIX.search(name) is not None
    if len(item.shape) != 2 or (not matrix and item.shape[0] != 1):
        expected = "two lengths" if matrix else "1 and a length"
        raise ModelError(f"{name!r} has the shape {list(item.shape)}, expected {expected}")
    if not matrix:
        data = item.data
    elif name.endswith("Wemb"):
        data = item.data.reshape(item.shape)
    elif item.type == INTGEMM8:  # transposed already
        data = item.data.reshape(item.shape[::-1])
    else:
        data = np.ascontiguousarray(item.data.reshape(item.shape).T)
    if item.factor is None:
        return Weight("float32", data)
    if not matrix:
        raise ModelError(f"{name!r} is intgemm8, expected float32")
    scale = np.full(len(data), 1 / np.float32(item.factor), np.float32)
    return Weight("int8", data, scale)


def _logits_bias(theirs: Mapping[str, Weight], target: int, vocab_size: int) -> Weight:
    bias_V = np.full(vocab_size, NEVER, np.float32)
    bias_V[:target] = 0.0
    given = theirs.get(BIAS)
    if given is not None:
        if given.shape != (target,):
            raise ModelError(f"{BIAS!r} has the shape {list(given.shape)}, expected [1, {target}]")
        bias_V[:target] = given.as_float32()
    return Weight("float32", bias_V)


def _positions(width: int) -> NDArray[np.float32]:
    """Return sines, then cosines, of wavelengths from 2 pi to 2 pi times 10,000."""
    half = width // 2
    speed = np.exp(np.arange(half) * -(math.log(10_000) / max(1, half - 1)))
    angle = np.arange(POSITIONS)[:, None] * speed
    table = np.zeros((POSITIONS, width), np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angle), np.cos(angle)
    return table


def _names(config: Seq2SeqSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each of our weights with the names that it is stacked from."""
    if config.share_embeddings:
        yield "tokens.weight", ["Wemb"]
    else:
        yield "tokens.weight", ["decoder_Wemb"]
        yield "source_tokens.weight", ["encoder_Wemb"]
    for layer in range(config.encoder_layers):
        yield from _block(f"encoder.blocks.{layer}", f"encoder_l{layer + 1}", "self")
    ssru = config.decoder_core == "ssru"
    for layer in range(config.decoder_layers):
        ours, theirs = f"decoder.blocks.{layer}", f"decoder_l{layer + 1}"
        yield from _block(ours, theirs, "rnn" if ssru else "self")
        yield from _attention(f"{ours}.cross", f"{theirs}_context", {"q": "q", "kv": "kv"})
        yield from _norm(f"{ours}.cross_residual", f"{theirs}_context_Wo")


def _block(ours: str, theirs: str, mixer: str) -> Iterator[tuple[str, list[str]]]:
    if mixer == "rnn":
        yield f"{ours}.attention.into.weight", [f"{theirs}_rnn_W", f"{theirs}_rnn_Wf"]
        yield f"{ours}.attention.into.bias", [f"{theirs}_rnn_b", f"{theirs}_rnn_bf"]
        yield from _norm(f"{ours}.attention_residual", f"{theirs}_rnn_ffn")
    else:
        yield from _attention(f"{ours}.attention", f"{theirs}_self", {"qkv": "qkv"})
        yield from _norm(f"{ours}.attention_residual", f"{theirs}_self_Wo")
    for part, number in (("up", 1), ("down", 2)):
        yield f"{ours}.feedforward.{part}.weight", [f"{theirs}_ffn_W{number}"]
        yield f"{ours}.feedforward.{part}.bias", [f"{theirs}_ffn_b{number}"]
    yield from _norm(f"{ours}.feedforward_residual", f"{theirs}_ffn_ffn")


def _attention(ours: str, theirs: str, parts: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for name, letters in {**parts, "out": "o"}.items():
        yield f"{ours}.{name}.weight", [f"{theirs}_W{letter}" for letter in letters]
        yield f"{ours}.{name}.bias", [f"{theirs}_b{letter}" for letter in letters]


def _norm(ours: str, theirs: str) -> Iterator[tuple[str, list[str]]]:
    yield f"{ours}.norm.weight", [f"{theirs}_ln_scale"]
    yield f"{ours}.norm.bias", [f"{theirs}_ln_bias"]


def _refuse(key: str, value: Any) -> NoReturn:
    raise ModelError(f"{CONFIG}: {key} is {str(value)[:80]!r}: not supported")


LEX_MAGIC = 0xF11A48D5013417F5
LEX_HEADER = struct.Struct("<6Q")


@dataclass(frozen=True)
class Shortlist:
    """Target tokens by source token."""

    frequent: int
    """Number of first tokens that are always listed."""
    offsets: NDArray[np.uint64]
    tokens: NDArray[np.uint32]
    shared: bool
    """List the tokens of the source too: both sides share a vocabulary."""

    def listed(self, source: Sequence[int]) -> list[int]:
        """Return the shortlist of a source, in ascending order."""
        own = sorted({token for token in source if 0 <= token < len(self.offsets) - 1})
        parts = [self.tokens[self.offsets[token] : self.offsets[token + 1]] for token in own]
        parts.append(np.arange(self.frequent, dtype=np.uint32))
        if self.shared:
            parts.append(np.array(own, np.uint32))
        return np.unique(np.concatenate(parts)).tolist()


def read_shortlist(path: Path, *, vocab_size: int, shared: bool) -> Shortlist:
    """Read a shortlist; every count and token is checked."""
    with open_regular(path) as file:
        size = path.stat().st_size
        head = file.read(LEX_HEADER.size)
        if len(head) < LEX_HEADER.size:
            raise _damaged(path, "it ends too soon")
        magic, _, frequent, _, count, total = LEX_HEADER.unpack(head)
        if magic != LEX_MAGIC:
            raise _damaged(path, "its magic number is wrong")
        if size != LEX_HEADER.size + 8 * count + 4 * total:
            raise _damaged(path, f"its length differs from {count} offsets and {total} tokens")
        offsets = np.fromfile(file, "<u8", count)
        tokens = np.fromfile(file, "<u4", total)
    if len(offsets) != count or len(tokens) != total:
        raise _damaged(path, "it ends too soon")
    if count < 2 or offsets[-1] > total or (offsets[1:] < offsets[:-1]).any():
        raise _damaged(path, "its offsets are not in order")
    if frequent > vocab_size or (total and tokens.max() >= vocab_size):
        raise _damaged(path, f"it lists tokens beyond the model's {vocab_size}")
    if not frequent:
        raise _damaged(path, "it lists no frequent tokens, which include the end token")
    return Shortlist(frequent, offsets, tokens, shared)


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path}: damaged or not a lexical shortlist ({reason})")
