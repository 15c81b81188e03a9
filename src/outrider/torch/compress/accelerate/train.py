"""The training run of an acceleration: the drafter's shape and the number of updates."""

from pathlib import Path

import numpy as np
from rich.console import Console
from transformers import set_seed

from outrider.data.prepared import Prepared
from outrider.errors import DataError
from outrider.files import read_json, write_json
from outrider.run_config import RunConfig
from outrider.torch.compress.accelerate.plan import Plan
from outrider.torch.models import load_config
from outrider.torch.training.batches import Processes, count_tokens
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.precision import choose_precision

FILE = "run.json"
COVERED = 0.98
"""Share of the translated text that the shortlist must cover; other tokens cannot be drafted."""
SHORTLIST_STEP = 512
BATCH_TOKENS = 512
"""Small updates learn faster: from the same 43,000 tokens of OPUS-MT output a drafter reached 1.31
tokens per round, with twice as many tokens per update 1.21.
"""
BLOCK = 4
"""Slots of a draft. After so little training one or two tokens are right, so more slots would be
trained but hardly used.
"""
ANCHORS = 10
"""Blocks per row: with 16, the target's own pass takes 40 % of an update."""
DECAY = 0.7
"""Weight of a slot relative to the previous one, which is used more often."""
EPOCHS = 16
"""Maximum passes over the text; beyond this, more text helps more than more time."""
EVALUATIONS = 16
PATIENCE = 4
OVERHEAD = 1.15
"""Time of an update relative to its passes: optimizer, evaluations, checkpoints."""


def load_or_make_run(
    plan: Plan, target: Path, prepared: Prepared, work: Path, console: Console
) -> RunConfig:
    """Return the run of an earlier start, or make one by timing a few batches."""
    path = work / FILE
    if path.is_file():
        return RunConfig.model_validate(read_json(path, error=DataError))
    config = _draft(target, prepared, work)
    seconds, precision = _time(config, prepared)
    affordable = int(60 * plan.training_minutes / (OVERHEAD * seconds))
    rows = prepared.manifest.splits["train"]
    longest = int(EPOCHS * (rows.target_tokens + rows.rows) / BATCH_TOKENS) + 1
    steps = max(EVALUATIONS, min(affordable, longest))
    interval = max(1, steps // EVALUATIONS)
    values = config.model_dump(mode="json")
    values["train"] |= {
        "steps": steps,
        "warmup": min(100, steps // 10),
        "evaluate_every": interval,
        "save_every": interval,
        "precision": precision,
    }
    run = RunConfig.model_validate(values)
    write_json(path, run.model_dump(mode="json"))
    minutes = OVERHEAD * seconds * steps / 60
    console.print(
        f"training a drafter: {steps:,} updates of {1000 * seconds:,.0f} ms, about "
        f"{minutes:,.0f} minutes; it stops early when acceptance no longer rises",
        highlight=False,
        soft_wrap=True,
    )
    return run


def _draft(target: Path, prepared: Prepared, work: Path) -> RunConfig:
    target_config = load_config(target)
    last = target_config.decoder_depth - 1
    return RunConfig.model_validate(
        {
            "name": target.name,
            "folder": str(work / "run"),
            "seed": 1,
            "data": {"folder": str(prepared.folder)},
            "model": {
                "type": "drafter",
                "target": str(target),
                "copy_layers": True,
                "taps": sorted({last // 2, max(0, last - 1), last}),
                "rank": min(256, target_config.hidden_size),
                "candidates": 32,
                "shortlist": _shortlist(prepared),
                "whole": False,
                "block": BLOCK,
                "train_block": BLOCK,
                "anchors": ANCHORS,
                "decay": DECAY,
                "soft_labels": True,
            },
            "train": {
                "batch_tokens": BATCH_TOKENS,
                "learning_rate": 0.0012,
                "schedule": "cosine",
                "label_smoothing": 0.0,
                "stop_metric": "tokens_per_round",
                "patience": PATIENCE,
                "average": 3,
                "log_every": 20,
            },
        }
    )


def _shortlist(prepared: Prepared) -> int:
    """Count the most frequent tokens that cover COVERED of the text; 0 if that is most of them."""
    ordered = np.sort(count_tokens(prepared, "target_ids"))[::-1].cumsum()
    needed = int(np.searchsorted(ordered, COVERED * ordered[-1])) + 1
    rounded = -(-needed // SHORTLIST_STEP) * SHORTLIST_STEP
    return rounded if rounded < len(ordered) else 0


def _time(config: RunConfig, prepared: Prepared) -> tuple[float, str]:
    """Return the seconds of an update, and the faster precision."""
    set_seed(config.seed)
    kind = kind_of(config)
    model = kind.build(prepared)
    batch = next(iter(kind.stream(model, prepared, Processes())))
    choice = choose_precision(model, kind.training_objective, batch.tensors)
    return choice.seconds[choice.precision], choice.precision
