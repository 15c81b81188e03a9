"""Which layers a model can do without: the one missed least is left out, then the next.

What a layer is worth depends on those beside it and on the language, so it is not guessed but
tried: on pairs that the model should find likely, and without any training.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

import torch
from rich.console import Console

from outrider.data.prepared import Prepared
from outrider.errors import ConfigError
from outrider.torch.models import Seq2Seq
from outrider.torch.models.reshape import Layers, keep_layers
from outrider.torch.training.batches import valid_batches
from outrider.torch.training.objectives.base import Inputs
from outrider.torch.training.objectives.translation import TranslationObjective

__all__ = ["choose_layers"]

BATCHES, TOKENS = 4, 1024
"""What a choice is tried on: validation pairs, in batches of so many tokens."""


def choose_layers(
    model: Seq2Seq,
    prepared: Prepared,
    counts: Mapping[str, int],
    *,
    console: Console | None = None,
) -> Layers:
    """Return for each side that is named which of its layers stay, so many.

    Args:
        model: The whole model.
        prepared: Pairs in its words, with validation pairs.
        counts: Layers of `encoder` and `decoder` that stay.
        console: Where to say what goes, and what it costs; by default nowhere.
    """
    console = console or Console(quiet=True)
    config = model.config
    kept = {side: list(range(getattr(config, f"{side}_layers"))) for side in counts}
    for side, count in counts.items():
        if not 1 <= count <= len(kept[side]):
            raise ConfigError(side, f"got {count} layers, expected 1 to {len(kept[side])}")
    rows = valid_batches(
        prepared,
        tokens=TOKENS,
        max_length=config.longest_source,
        source_end=config.source_end,
        right_to_left=config.right_to_left,
    )
    batches = list(islice(rows, BATCHES))
    console.print(f"all layers: loss {_loss(model, batches):.3f}")
    for side, count in counts.items():
        while len(kept[side]) > count:
            tries = {
                layer: {**kept, side: [one for one in kept[side] if one != layer]}
                for layer in kept[side]
            }
            losses = {
                layer: _loss(keep_layers(model, tried), batches) for layer, tried in tries.items()
            }
            spared = min(losses, key=losses.__getitem__)
            kept = tries[spared]
            console.print(f"without layer {spared} of the {side}: loss {losses[spared]:.3f}")
    return kept


@torch.inference_mode()
def _loss(model: Seq2Seq, batches: Sequence[Inputs]) -> float:
    """Return the mean loss of a token of the pairs."""
    objective, was_training = TranslationObjective(), model.training
    model.eval()
    losses = (objective.loss(model, one, divisor=1.0, smoothing=0.0) for one in batches)
    nats = sum(float(loss) for loss in losses)
    model.train(was_training)
    return nats / sum(objective.count(one) for one in batches)
