"""Models with several end tokens: each of them ends a text in every decoding mode."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from outrider.decoding import DecodeConfig, Request, decode
from outrider.errors import ModelError
from outrider.formats.spec import special_tokens
from outrider.runtime import load
from outrider.runtime.options import GenerationSettings
from outrider.torch.backend import TorchBackend
from outrider.torch.models.configs import CtcConfig, DrafterConfig
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.drafter import Drafter
from tests.helpers import drafted, tiny
from tests.helpers.loops import beam, greedy, sample

ENDS = (1, 4, 7, 9)


def backend() -> TorchBackend:
    """Random weights that favour all end tokens but the first."""
    target = tiny.seq2seq(dtype=torch.float64, eos_token_id=list(ENDS), logits_bias=True)
    config = target.config
    drafter = Drafter(DrafterConfig.for_target(config, block=6, train_block=4, rank=8)).double()
    ctc = Ctc(CtcConfig.for_target(config, layers=1)).double()
    with torch.no_grad():
        target.tokens.weight.mul_(3)
        for bias in (target.logits_bias, drafter.bias):
            bias[list(ENDS[1:])] = 12.0
    return TorchBackend(target, drafter=drafter, ctc=ctc)


REQUESTS = [Request(source=(5 + n, 12, 1), seed=n, max_new_tokens=12) for n in range(12)]
WAYS: list[dict[str, Any]] = [
    {},
    {"beams": 3, "n_best": 3},
    {"strategy": "sample"},
    {"mode": "tandem"},
    {"mode": "tandem", "gamma": 0.6},
    {"mode": "tandem", "strategy": "sample", "gamma": 0.3},
    {"decoder": "drafter"},
    {"decoder": "drafter", "iterations": 2, "candidates": 3},
    {"decoder": "ctc", "candidates": 2},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_no_mode_continues_after_an_end_token(way: dict[str, Any]) -> None:
    found = decode(backend(), REQUESTS, DecodeConfig(**way))
    texts = [hypothesis for row in found for hypothesis in row]
    assert all(not set(ENDS) & set(text.tokens) for text in texts)
    assert any(text.finish == "eos" for text in texts)


@pytest.mark.parametrize("way", [way for way in WAYS if "decoder" not in way], ids=str)
def test_min_new_tokens_delays_all_end_tokens(way: dict[str, Any]) -> None:
    config = DecodeConfig(**way, min_new_tokens=9)
    for row in decode(backend(), REQUESTS, config):
        assert all(len(text.tokens) >= 9 for text in row)


def test_the_first_end_token_is_forced(toy) -> None:
    model = toy()
    model.ends, model.eos = (4, 1), 4
    config = DecodeConfig(beams=2, max_new_tokens=3, min_new_tokens=2, force_eos=True)
    (found,) = beam(model, [Request()], config)
    assert (found[0].finish, len(found[0].tokens)) == ("length", 2)
    stepwise = greedy(model, [Request()], DecodeConfig(max_new_tokens=3, force_eos=True))
    assert len(stepwise[0].tokens) <= 2


def test_every_beam_has_a_continuation(toy) -> None:
    """With two end tokens, one beam can fill two ranks with endings in the first step."""

    class Ending(toy):
        ends = (1, 4)

        def logits(self, source, seen):
            return np.array([9.0 if token in self.ends else token for token in range(6)])

    config = DecodeConfig(beams=3, n_best=3, max_new_tokens=4, length_penalty=5.0)
    (found,) = beam(Ending(), [Request()], config)
    assert len(found) == 3


def test_a_sampled_text_stops_at_the_first_end_token(toy) -> None:
    model, config = toy(), DecodeConfig(strategy="sample", max_new_tokens=20)
    requests = [Request(source=(n,), seed=n) for n in range(20)]
    whole = sample(model, requests, config)
    model.ends = (1, 3, 5)
    for short, long in zip(sample(model, requests, config), whole, strict=True):
        ends = [place for place, token in enumerate(long.tokens) if token in model.ends]
        assert short.tokens == long.tokens[: ends[0] if ends else None]


def test_end_tokens_are_read_from_both_configs(tmp_path) -> None:
    folder = drafted.save_translator(tmp_path / "model", ctc=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["eos_token_id"] = [1, 6]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    values = {"eos_token_id": [8, 1], "forced_eos_token_id": [8]}
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    loaded = load(folder, backend="torch")
    assert (loaded.backend.eos, tuple(loaded.backend.ends)) == (1, (1, 6, 8))
    assert GenerationSettings(folder).defaults(loaded.backend)["force_eos"]
    values["eos_token_id"] = 8
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    assert GenerationSettings(folder).ends == [8]
    for wrong in ("8", [None], [True], {}):
        text = json.dumps({"eos_token_id": wrong})
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ModelError, match=r"json: eos_token_id must be a token id or a list"):
            _ = GenerationSettings(folder).ends


@pytest.mark.parametrize(
    ("own", "more", "message"),
    [
        ([1, 99], (), r"^eos_token_id in config.json is 99, not a token of this model"),
        (1, (-1,), r"^eos_token_id in generation_config.json is -1, not a token of this"),
        ([], (), r"^eos_token_id in config.json is an empty list; it must name an end token"),
    ],
)
def test_invalid_end_tokens_are_refused(own: Any, more: tuple[int, ...], message: str) -> None:
    """Ids in a config file are checked when it is read; this config was changed afterwards."""
    config = tiny.seq2seq().config
    config.eos_token_id = own
    with pytest.raises(ModelError, match=message):
        special_tokens(config, more)


def test_ctc_labels_end_with_any_end_token() -> None:
    target = tiny.seq2seq(eos_token_id=[1, 4])
    ctc = Ctc(CtcConfig.for_target(target.config, layers=1)).bind(target)
    labels = torch.tensor([[5, 6, 4, -100], [5, 1, -100, -100], [5, 6, 7, 1]])
    assert ctc.lengths(labels).tolist() == [2, 1, 3]
