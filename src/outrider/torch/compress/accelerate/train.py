"""From translated text to a drafter: which shape it gets, and how long it trains."""

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
from outrider.torch.training.batches import BatchStream
from outrider.torch.training.build import (
    build_model,
    context_length,
    reads_source_end,
    writes_right_to_left,
)
from outrider.torch.training.objectives import DrafterObjective
from outrider.torch.training.precision import choose_precision

__all__ = ["settle_run"]

FILE = "run.json"
COVERED = 0.98
"""Share of the translated text that the drafter's words are to cover; what it lacks costs a guess,
never the text."""
SHORTLIST_STEP = 512
BATCH_TOKENS = 512
"""Small updates: of the same 43,000 tokens of OPUS-MT's text a drafter made 1.31 tokens a round,
with twice as many tokens an update 1.21."""
BLOCK = 4
"""Slots of a draft. Text is new to a drafter: it is right for one or two tokens, so that more
slots would learn what is hardly ever asked of them."""
ANCHORS = 10
"""Blocks of a row: the model's own pass over it is 40 % of an update with 16 slots, and no more."""
DECAY = 0.7
"""Weight of a slot over that of the one before it, which is asked for more often."""
EPOCHS = 16
"""Most passes over the text: after these, more time would be better spent on more text."""
EVALUATIONS = 16
PATIENCE = 4
OVERHEAD = 1.15
"""Time of an update over that of its passes: the optimiser, evaluations, checkpoints."""


def settle_run(
    plan: Plan, target: Path, prepared: Prepared, work: Path, console: Console
) -> RunConfig:
    """Return the run that was settled before, or settle one by timing a few batches."""
    path = work / FILE
    if path.is_file():
        return RunConfig.model_validate(read_json(path, error=DataError))
    config = _draft(target, prepared, work)
    seconds, precision = _time(config, prepared)
    affordable = int(60 * plan.training_minutes / (OVERHEAD * seconds))
    rows = prepared.manifest.splits["train"]
    longest = int(EPOCHS * (rows.target_tokens + rows.rows) / BATCH_TOKENS) + 1
    steps = max(EVALUATIONS, min(affordable, longest))
    every = max(1, steps // EVALUATIONS)
    values = config.model_dump(mode="json")
    values["train"] |= {
        "steps": steps,
        "warmup": min(100, steps // 10),
        "evaluate_every": every,
        "save_every": every,
        "precision": precision,
    }
    settled = RunConfig.model_validate(values)
    write_json(path, settled.model_dump(mode="json"))
    minutes = OVERHEAD * seconds * steps / 60
    console.print(
        f"training a drafter: {steps:,} updates of {1000 * seconds:,.0f} ms, about "
        f"{minutes:,.0f} minutes; it ends sooner where acceptance has stopped rising",
        highlight=False,
        soft_wrap=True,
    )
    return settled


def _draft(target: Path, prepared: Prepared, work: Path) -> RunConfig:
    described = load_config(target)
    last = described.decoder_depth - 1
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
                "rank": min(256, described.hidden_size),
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
    """Count the commonest words that cover nearly all of the text; 0 where that is most of them."""
    reader, words = prepared.reader("train"), prepared.tokenizer.vocab_size
    count_V = np.zeros(words, np.int64)
    for block in range(len(reader.block_rows)):
        count_V += np.bincount(reader.ids(block, "target_ids").flat, minlength=words)
    ordered = np.sort(count_V)[::-1].cumsum()
    needed = int(np.searchsorted(ordered, COVERED * ordered[-1])) + 1
    rounded = -(-needed // SHORTLIST_STEP) * SHORTLIST_STEP
    return rounded if rounded < words else 0


def _time(config: RunConfig, prepared: Prepared) -> tuple[float, str]:
    """Return the seconds of an update, and the precision that is faster here."""
    set_seed(config.seed)
    model = build_model(config, prepared)
    stream = BatchStream(
        prepared,
        tokens=config.train.batch_tokens,
        seed=config.seed,
        rank=0,
        world_size=1,
        cursor=None,
        max_length=context_length(prepared),
        source_end=reads_source_end(model),
        right_to_left=writes_right_to_left(model),
    )
    choice = choose_precision(model, DrafterObjective, next(iter(stream)).tensors)
    return choice.seconds[choice.precision], choice.precision
