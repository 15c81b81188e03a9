"""Models of random parts: all decoding modes give the same text, on every backend.

A text does not depend on the other rows of a batch or on the drafter; the native core gives the
text of PyTorch. Model i has parts drawn with seed i: `pytest --random-models 500
tests/test_combinations.py` tests more of them.
"""

import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.errors import OutriderError
from outrider.torch.nn.attention import attention_kinds
from outrider.torch.nn.score import score_names
from tests.helpers import drafted, tiny

TEXTS = ["a small dog runs", "two men play where the station is. it is late", "we go home!", "dog"]
LANGUAGE_MODEL: dict[str, list[Any]] = {"core": ["gru", "lstm", "ssru"], "memory": [4]}
TRANSLATOR: dict[str, list[Any]] = {
    "decoder_core": ["gru", "ssru"],
    "encoder_core": ["gru", "lstm"],
    "pair_attention": [True],
    "right_to_left": [True],
}
PARTS: dict[str, list[Any]] = {
    "position": [
        *("none", "sinusoidal", "learned", "rotary", "alibi"),
        *("relative", "coordinate", "distance", "bucketed"),
    ],
    "norm": ["pre", "post"],
    "residual": ["gru", "reversible"],
    "depth": ["shared"],
    "transition": ["separable_conv"],
    "activation": ["gelu", "silu"],
    "rms_norm": [True],
    "gated": [True],
    "num_key_value_heads": [1],
    "tie_word_embeddings": [False],
    "embedding_norm": [True],
    "logits_bias": [True],
}
BACKENDS: list[dict[str, Any]] = [{"backend": "torch"}]
if find_spec("outrider_native") is not None:
    BACKENDS += [{"backend": "native", "dtype": dtype} for dtype in ("float32", "int8")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", range(metafunc.config.getoption("random_models")))


def attention(dice: random.Random, *, cross: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if not cross:
        kind = dice.choice(attention_kinds())
        spec = {"kind": kind, **tiny.SMALL.get(kind, {})}
    options = {"score": score_names(), "normaliser": ["tanh_exp"], "head_gate": ["glu"]}
    return spec | {k: dice.choice(v) for k, v in options.items() if dice.random() < 0.3}


def draw(dice: random.Random, *, translator: bool) -> dict[str, Any]:
    own, keys = LANGUAGE_MODEL, ["attention"]
    if translator:
        own, keys = TRANSLATOR, ["encoder_attention", "decoder_attention", "cross_attention"]
    parts = {k: dice.choice(v) for k, v in (PARTS | own).items() if dice.random() < 0.2}
    attentions = {key: attention(dice, cross="cross" in key) for key in keys}
    return parts | {key: spec for key, spec in attentions.items() if dice.random() < 0.25}


def save(dice: random.Random, folder: Path) -> tuple[bool, dict[str, Any]]:
    """Save a model of compatible random parts; return whether it is a translator, and its parts."""
    while True:
        translator = dice.random() < 0.6
        parts = draw(dice, translator=translator)
        try:
            if translator:
                drafted.save_translator(folder, ctc=dice.random() < 0.3, **parts)
            else:
                drafted.save_language_model(folder, **parts)
        except OutriderError:
            continue
        return translator, parts


def attempt(write: Callable[..., Any], *texts: Any, **options: Any) -> Any:
    """Return the text, or the type of the OutriderError; other exceptions propagate."""
    try:
        return write(*texts, **options)
    except OutriderError as error:
        return type(error)


@pytest.mark.slow
def test_all_decoding_modes_give_the_same_text(seed: int, tmp_path: Path) -> None:
    translator, parts = save(random.Random(seed), tmp_path / "model")
    greedy = {}
    for options in BACKENDS:
        try:
            model = outrider.load(tmp_path / "model", **options)
        except OutriderError:
            assert options["backend"] == "native", parts
            continue
        fixed: dict[str, Any] = {"max_new_tokens": 12}
        write = model.translate if translator else model.generate
        if translator:
            fixed["split"] = False
        ways: dict[str, dict[str, Any]] = {
            "greedy": {"mode": "ar"},
            "beams": {"mode": "ar", "beams": 3},
            "sampled": {"mode": "ar", "strategy": "sample"},
            "tandem": {"mode": "tandem", "draft_tokens": 4},
        }
        told = {}
        for name, way in ways.items():
            which = f"{name} with {options}: {parts}"
            seeds = [{"seed": 3 + i} if name == "sampled" else {} for i in range(len(TEXTS))]
            told[name] = attempt(write, TEXTS, **fixed, **way, **seeds[0])
            if not isinstance(told[name], list):
                assert name != "greedy", which
                continue
            alone = [
                write(text, **fixed, **way, **own) for text, own in zip(TEXTS, seeds, strict=True)
            ]
            assert alone == told[name], which
        if isinstance(told["tandem"], list):
            assert told["tandem"] == told["greedy"], f"{options}: {parts}"
        if options.get("dtype") != "int8":
            greedy[options["backend"]] = told["greedy"], told["beams"]
    if "native" in greedy:
        assert greedy["native"] == greedy["torch"], parts
