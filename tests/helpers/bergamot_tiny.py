"""Tiny Marian students as files, and their scores by the equations."""

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from outrider.formats.readers.bergamot import LEX_MAGIC

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model."""

    width: int
    heads: int
    inner: int
    encoder_layers: int
    decoder_layers: int
    gain: float = 6.0
    """Standard deviation of a matrix product with independent inputs of unit variance."""


TINY = Sizes(12, 3, 20, 2, 2)
TEXT = ["the cat sees the dog", "the dog sees a cat", "a bird sings in the tree", "we go home"] * 9
CONFIG: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": TINY.width,
    "enc-depth": TINY.encoder_layers,
    "dec-depth": TINY.decoder_layers,
    "transformer-heads": TINY.heads,
    "transformer-dim-ffn": TINY.inner,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "relu",
    "transformer-decoder-autoreg": "rnn",
    "dec-cell": "ssru",
    "transformer-preprocess": '""',
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "tied-embeddings": "false",
    "tied-embeddings-all": "true",
    "input-types": "[]",
    "version": "v1.9.56 94aeaa46 2021-04-28 00:28:35 +0100",
}


def config_text(words: int, **changes: Any) -> str:
    """Return the config of a student; keys with value None are omitted."""
    values = {**CONFIG, "dim-vocabs": f"\n  - {words}\n  - {words}"}
    values |= {key.replace("_", "-"): value for key, value in changes.items()}
    return "".join(f"{key}: {value}\n" for key, value in values.items() if value is not None)


def arrays(words: int, *, shared: bool = True, seed: int = 4, sizes: Sizes = TINY) -> Arrays:
    """Return weights under Marian's names; matrices are [in][out]."""
    dice = np.random.default_rng(seed)
    width, inner = sizes.width, sizes.inner

    def normal(*shape: int, size: float = 1.0) -> NDArray[np.float32]:
        return (size * dice.normal(size=shape)).astype(np.float32)

    found: Arrays = {}

    def linear(name: str, rows: int, columns: int, *ends: str) -> None:
        for end in ends:
            found[f"{name}_W{end}"] = normal(rows, columns, size=sizes.gain / rows**0.5)
            found[f"{name}_b{end}"] = normal(1, columns, size=0.3)

    def norm(name: str) -> None:
        found[f"{name}_ln_scale"] = 1 + normal(1, width, size=0.2)
        found[f"{name}_ln_bias"] = normal(1, width, size=0.2)

    for table in ["Wemb"] if shared else ["encoder_Wemb", "decoder_Wemb"]:
        found[table] = normal(words, width, size=0.25)
    found["decoder_ff_logit_out_b"] = normal(1, words, size=0.3)
    for side, layers in (("encoder", sizes.encoder_layers), ("decoder", sizes.decoder_layers)):
        for layer in range(1, layers + 1):
            name = f"{side}_l{layer}"
            if side == "decoder":
                linear(f"{name}_rnn", width, width, "", "f")
                del found[f"{name}_rnn_b"]
                norm(f"{name}_rnn_ffn")
                linear(f"{name}_context", width, width, *"qkvo")
                norm(f"{name}_context_Wo")
            else:
                linear(f"{name}_self", width, width, *"qkvo")
                norm(f"{name}_self_Wo")
            linear(f"{name}_ffn", width, inner, "1")
            linear(f"{name}_ffn", inner, width, "2")
            norm(f"{name}_ffn_ffn")
    return found


def to_int8(given: Arrays) -> tuple[list[tuple[str, int, tuple[int, ...], bytes]], Arrays]:
    """Return items with matrices in intgemm's layout, and the float32 weights they represent."""
    items, meant = [], {}
    for name, array in given.items():
        if "_W" not in f"_{name}" or "_ln_" in name:
            items.append((name, 0x404, array.shape, array.tobytes()))
            meant[name] = array
            continue
        factor = np.float32(127 / np.abs(array).max())
        whole = np.rint(array * factor).astype(np.int8)
        laid = whole if name.endswith("Wemb") else np.ascontiguousarray(whole.T)
        raw = laid.tobytes() + struct.pack("<f", factor)
        items.append((name, 0x4101, array.shape, raw + bytes(-len(raw) % 256)))
        items.append((f"{name}_QuantMultA", 0x404, (1, 1), bytes(256)))
        meant[name] = whole.astype(np.float32) * (1 / factor)
    return items, meant


def binary(items: list[tuple[str, int, tuple[int, ...], bytes]], config: str) -> bytes:
    """Return a Marian binary file."""
    raw = config.encode() + b"\0"
    items = [*items, ("special:model.yml", 0x101, (len(raw),), raw)]
    names = [name.encode() + b"\0" for name, *_ in items]
    front = struct.pack("<QQ", 1, len(items))
    for name, (_, kind, shape, data) in zip(names, items, strict=True):
        front += struct.pack("<QQQQ", len(name), kind, len(shape), len(data))
    front += b"".join(names) + b"".join(struct.pack(f"<{len(s)}i", *s) for _, _, s, _ in items)
    gap = -(len(front) + 8) % 256
    return front + struct.pack("<Q", gap) + bytes(gap) + b"".join(item[3] for item in items)


def as_floats(given: Arrays) -> list[tuple[str, int, tuple[int, ...], bytes]]:
    return [(name, 0x404, array.shape, array.tobytes()) for name, array in given.items()]


def pieces(text: list[str], words: int = 40) -> bytes:
    """Train a SentencePiece model as Marian does: id 0 ends a text, id 1 is unknown."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=made,
        vocab_size=words,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return made.getvalue()


def write_folder(folder: Path, *, shared: bool = True, int8: bool = True) -> Arrays:
    """Write a folder as Firefox does; return the float32 weights that it represents."""
    folder.mkdir(parents=True, exist_ok=True)
    model = pieces(TEXT)
    words = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    names = ["vocab.xxyy.spm"] if shared else ["srcvocab.xxyy.spm", "trgvocab.xxyy.spm"]
    for name in names:
        (folder / name).write_bytes(model)
    given = arrays(words, shared=shared)
    tied = {} if shared else {"tied_embeddings": "true", "tied_embeddings_all": "false"}
    items, meant = to_int8(given) if int8 else (as_floats(given), given)
    (folder / "model.xxyy.intgemm.alphas.bin").write_bytes(
        binary(items, config_text(words, **tied))
    )
    return meant


def write_shortlist(path: Path, words: int, *, frequent: int = 4) -> None:
    """Write a lexical shortlist of three random tokens for every token."""
    offsets = np.arange(words + 1, dtype="<u8") * 3
    listed = np.random.default_rng(5).integers(0, words, 3 * words, dtype="<u4")
    front = struct.pack("<6Q", LEX_MAGIC, 0, frequent, 3, len(offsets), len(listed))
    path.write_bytes(front + offsets.tobytes() + listed.tobytes())


def equations(
    w: Arrays, source: list[int], target: list[int], sizes: Sizes = TINY
) -> NDArray[np.float64]:
    """Return the scores after each decoder input; the first input is a zero embedding."""
    table = w.get("Wemb", w.get("decoder_Wemb"))
    assert table is not None
    heads = sizes.heads
    x = _embed(w.get("Wemb", w.get("encoder_Wemb")), source)  # type: ignore[arg-type]
    for layer in [f"encoder_l{number + 1}" for number in range(sizes.encoder_layers)]:
        x = _norm(w, f"{layer}_self_Wo", x + _attend(w, f"{layer}_self", x, x, heads))
        x = _norm(w, f"{layer}_ffn_ffn", x + _feed_forward(w, f"{layer}_ffn", x))
    memory, x = x, _embed(table, [-1, *target])
    for layer in [f"decoder_l{number + 1}" for number in range(sizes.decoder_layers)]:
        x = _norm(w, f"{layer}_rnn_ffn", x + _recur(w, f"{layer}_rnn", x))
        x = _norm(w, f"{layer}_context_Wo", x + _attend(w, f"{layer}_context", x, memory, heads))
        x = _norm(w, f"{layer}_ffn_ffn", x + _feed_forward(w, f"{layer}_ffn", x))
    return x @ table.T.astype(np.float64) + w["decoder_ff_logit_out_b"]


def _embed(table: NDArray[Any], ids: list[int]) -> NDArray[np.float64]:
    """Embed tokens; -1 has a zero embedding."""
    width = table.shape[1]
    x = table[ids].astype(np.float64) * np.sqrt(width)
    for position, (row, number) in enumerate(zip(x, ids, strict=True)):
        row *= number >= 0
        for i in range(width // 2):
            angle = position * np.exp(-i * np.log(10_000) / (width // 2 - 1))
            row[i] += np.sin(angle)
            row[width // 2 + i] += np.cos(angle)
    return x


def _norm(w: Arrays, name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x - x.mean(1, keepdims=True)
    x = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    return x * w[f"{name}_ln_scale"] + w[f"{name}_ln_bias"]


def _attend(
    w: Arrays, name: str, x: NDArray[Any], memory: NDArray[Any], count: int
) -> NDArray[np.float64]:
    q, k, v = (
        side @ w[f"{name}_W{letter}"] + w[f"{name}_b{letter}"]
        for side, letter in ((x, "q"), (memory, "k"), (memory, "v"))
    )
    heads = []
    for columns in np.split(np.arange(x.shape[1]), count):
        scores = np.exp(q[:, columns] @ k[:, columns].T / np.sqrt(len(columns)))
        heads.append(scores / scores.sum(1, keepdims=True) @ v[:, columns])
    return np.hstack(heads) @ w[f"{name}_Wo"] + w[f"{name}_bo"]


def _feed_forward(w: Arrays, name: str, x: NDArray[Any]) -> NDArray[np.float64]:
    inner = np.maximum(x @ w[f"{name}_W1"] + w[f"{name}_b1"], 0)
    return inner @ w[f"{name}_W2"] + w[f"{name}_b2"]


def _recur(w: Arrays, name: str, x: NDArray[Any]) -> NDArray[np.float64]:
    c, out = np.zeros(x.shape[1]), []
    for row in x:
        forget = 1 / (1 + np.exp(-(row @ w[f"{name}_Wf"] + w[f"{name}_bf"][0])))
        c = forget * c + (1 - forget) * (row @ w[f"{name}_W"])
        out.append(np.maximum(c, 0))
    return np.stack(out)
