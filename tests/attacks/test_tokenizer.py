"""An invalid `tokenizer.json` gives one error message and never a crash."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked import attack, attack_each

Copy = Callable[[Path], Path]
Dress = Callable[[Path, str, str], Path]
Change = Callable[[dict[str, Any]], object]
TEXT = "a small dog runs"

LONG_PATTERN = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}


def _put(*path: Any) -> Change:
    """Set the value at a path of keys; the last argument is the value."""
    *keys, last, value = path

    def change(pipeline: dict[str, Any]) -> None:
        for key in keys:
            pipeline = pipeline[key]
        pipeline[last] = value

    return change


def _grow(count: int, factor: int) -> dict[str, Any]:
    """Replace every letter by `factor` letters, `count` times."""
    step = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * factor}
    return {"type": "Sequence", "normalizers": [step] * count}


WORDS = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}
CHANGES: dict[str, Change] = {
    "version": _put("version", "9.0"),
    "no model": lambda p: p.pop("model"),
    "model null": _put("model", None),
    "model text": _put("model", "x"),
    "model unknown": _put("model", {"type": "Nothing"}),
    "model wordlevel": _put("model", WORDS),
    "wordlevel without unk": _put("model", {"type": "WordLevel", "vocab": {"a": 0}}),
    "wordlevel id beyond": _put("model", {**WORDS, "vocab": {"a": 10**6, "<unk>": 1}}),
    "wordlevel id huge": _put("model", {**WORDS, "vocab": {"a": 2**32 - 1, "<unk>": 1}}),
    "wordlevel id negative": _put("model", {**WORDS, "vocab": {"a": -1, "<unk>": 1}}),
    "wordlevel id twice": _put("model", {**WORDS, "vocab": {"a": 1, "<unk>": 1}}),
    "wordlevel empty": _put("model", {**WORDS, "vocab": {}}),
    "wordpiece": _put(
        "model",
        {
            **WORDS,
            "type": "WordPiece",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 0,
        },
    ),
    "bpe bad merges": _put("model", {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}),
    "bpe empty": _put("model", {"type": "BPE", "vocab": {}, "merges": []}),
    "bpe dropout": _put("model", {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 9}),
    "unigram empty": _put("model", {"type": "Unigram", "vocab": [], "unk_id": 0}),
    "unigram unk beyond": _put("model", {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9}),
    "unigram no unk": _put("model", {"type": "Unigram", "vocab": [["q", 0.0]], "unk_id": None}),
    "unigram nan": _put("model", {"type": "Unigram", "vocab": [["a", 1e308]] * 3, "unk_id": 0}),
    "added id far": _put("added_tokens", 0, "id", 2**31),
    "added id negative": _put("added_tokens", 0, "id", -3),
    "added empty": _put("added_tokens", 0, "content", ""),
    "added twice": lambda p: p["added_tokens"].append(p["added_tokens"][0]),
    "added none": _put("added_tokens", []),
    "added text": _put("added_tokens", "x"),
    "added normalised": _put("added_tokens", 0, "normalized", True),
    "added letter": lambda p: p["added_tokens"].append(
        {**p["added_tokens"][0], "id": 9999, "content": "a", "special": False}
    ),
    "truncation": _put(
        "truncation",
        {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
    ),
    "truncation to nothing": _put(
        "truncation",
        {"direction": "Left", "max_length": 0, "strategy": "OnlyFirst", "stride": 10**6},
    ),
    "padding": _put(
        "padding",
        {
            **{"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None},
            **{"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"},
        },
    ),
    "normalizer unknown": _put("normalizer", {"type": "Nothing"}),
    "normalizer bad pattern": _put(
        "normalizer", {"type": "Replace", "pattern": {"Regex": "(("}, "content": ""}
    ),
    "normalizer slow pattern": _put("normalizer", LONG_PATTERN),
    "normalizer empty pattern": _put(
        "normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": "aa"}
    ),
    "normalizer grows": _put("normalizer", _grow(6, 100)),
    "normalizer grows at once": _put("normalizer", _grow(1, 10**7)),
    "normalizer removes all": _put(
        "normalizer", {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}
    ),
    "normalizer deep": _put("normalizer", _grow(2000, 1)),
    "precompiled": _put("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "precompiled broken": _put(
        "normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    ),
    "pre unknown": _put("pre_tokenizer", {"type": "Nothing"}),
    "pre null": _put("pre_tokenizer", None),
    "pre split": _put(
        "pre_tokenizer",
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": False},
    ),
    "pre metaspace long": _put(
        "pre_tokenizer",
        {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always", "split": True},
    ),
    "decoder unknown": _put("decoder", {"type": "Nothing"}),
    "decoder null": _put("decoder", None),
    "decoder grows": _put(
        "decoder", {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 10**6}
    ),
    "decoder strip": _put("decoder", {"type": "Strip", "content": "a", "start": 10**9, "stop": 9}),
    "decoder bytes": _put("decoder", {"type": "ByteFallback"}),
    "decoder ctc": _put(
        "decoder",
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    ),
    "post unknown": _put("post_processor", {"type": "Nothing"}),
    "post null": _put("post_processor", None),
    "post beyond": _put(
        "post_processor", {"type": "BertProcessing", "sep": ["x", 10**9], "cls": ["y", 10**9]}
    ),
    "post template": _put(
        "post_processor",
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
    ),
    "extra key": _put("surprise", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_invalid_pipeline(copy: Copy, translator: Path, tmp_path: Path, change: str) -> None:
    model = copy(translator)
    path = model / "tokenizer.json"
    pipeline = json.loads(path.read_text())
    CHANGES[change](pipeline)
    path.write_text(json.dumps(pipeline))
    attack("translate", "--model", model, TEXT, "a" * 60, folder=tmp_path)


CONFIGS: dict[str, Any] = {
    "pad number": {"pad_token": 3},
    "pad list": {"pad_token": ["<pad>"]},
    "pad dictionary": {"pad_token": {"content": 3}},
    "pad empty dictionary": {"pad_token": {}},
    "pad unknown": {"pad_token": "<nothing>"},
    "eos null": {"eos_token": None},
    "eos is pad": {"eos_token": "<pad>"},
    "eos letter": {"eos_token": "a"},
    "class": {"tokenizer_class": "os.system"},
    "auto map": {"auto_map": {"AutoTokenizer": ["evil.py", "Evil"]}},
}


def test_an_invalid_tokenizer_config(dress: Dress, translator: Path, tmp_path: Path) -> None:
    name = "tokenizer_config.json"
    config = json.loads((translator / name).read_text())
    texts = [json.dumps({**config, **change}) for change in CONFIGS.values()]
    models = [dress(translator, name, text) for text in texts]
    attack_each([("translate", "--model", model, TEXT) for model in models], tmp_path)


GENERATION: dict[str, Any] = {
    "words text": {"bad_words_ids": "x"},
    "words number": {"bad_words_ids": 3},
    "words flat": {"bad_words_ids": [1, 2]},
    "words text inside": {"bad_words_ids": [["a"]]},
    "words beyond": {"bad_words_ids": [[10**9]]},
    "words negative": {"bad_words_ids": [[-1]]},
    "words fraction": {"bad_words_ids": [[1.5]]},
    "words infinite": {"bad_words_ids": [[1e999]]},
    "words all": {"bad_words_ids": [[token] for token in range(64)]},
    "eos list": {"eos_token_id": [1, 5]},
    "eos text": {"eos_token_id": "x"},
    "eos beyond": {"eos_token_id": 10**9},
    "eos empty": {"eos_token_id": []},
    "forced text": {"forced_eos_token_id": "x"},
    "forced list": {"forced_eos_token_id": [1]},
    "other keys": {"num_beams": -3, "max_length": 10**30, "temperature": float("nan")},
}


def test_an_invalid_generation_config(dress: Dress, translator: Path, tmp_path: Path) -> None:
    texts = [json.dumps(change) for change in GENERATION.values()]
    models = [dress(translator, "generation_config.json", text) for text in texts]
    attack_each([("translate", "--model", model, TEXT) for model in models], tmp_path)
