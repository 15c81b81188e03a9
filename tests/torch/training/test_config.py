"""Contradicting settings are refused before data is read."""

from typing import Any

import pytest

from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.run_config import TrainConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"patience": 3, "evaluate_every": 0}, r"train\.patience: stops on evaluations"),
        ({"schedule": "step"}, r"train\.decay_every: is required with train\.schedule: step"),
        ({"decay_every": 5}, r"train\.decay_every: has no effect on schedule 'inverse_sqrt'"),
        (
            {"average_by": "best", "save_every": 500, "evaluate_every": 400},
            r"train\.average_by: best needs an evaluation at every checkpoint",
        ),
        (
            {"batch_tokens": 3, "accumulate": 4},
            r"train\.accumulate: cannot split 3 tokens into 4 batches",
        ),
        ({"schedule": "invers_sqrt"}, r"train\.schedule: got 'invers_sqrt', expected"),
        (
            {"device": "cuda:1"},
            r"train\.device: got 'cuda:1', expected auto, .*; choose .*CUDA_VISIBLE_DEVICES=1",
        ),
        (
            {"device": "mps"},
            r"train\.device: got 'mps', expected auto, which takes the accelerator",
        ),
        ({"device": "cup"}, r"train\.device: got 'cup', expected 'auto' or 'cpu'"),
        ({"lerning_rate": 1}, r"train\.lerning_rate: unknown key \(did you mean 'learning_rate'"),
    ],
)
def test_contradictions_name_their_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(TrainConfig, values, prefix="train.")


def test_best_checkpoints_follow_the_metric() -> None:
    assert TrainConfig(average_by="best", stop_metric="bleu").averaged_by == "highest"
    assert TrainConfig(average_by="best", stop_metric="loss").averaged_by == "lowest"
    assert TrainConfig().averaged_by == "last"
