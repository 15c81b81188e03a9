"""A smaller model of a larger one: some of its layers and units, and the words its texts need;
the same in the other direction, if that is asked for.

Nothing is learnt here. What is left out is missed until the model is trained again, which
`model.start` does; what is kept computes what it did.

Which layers a model can do without: the one missed least is left out, then the next.

What a layer is worth depends on those beside it and on the language, so it is not guessed but
tried: on pairs that the model should find likely, and without any training.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from transformers.utils import logging as transformers_logging

from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import ConfigError, ModelError
from outrider.files import working_folder
from outrider.files.hub import model_folder
from outrider.formats.quantised import (
    EMBEDDINGS,
    FEEDFORWARD,
    INT4,
    TABLES,
    check_parts,
    check_width,
    int4_groups,
)
from outrider.formats.safetensors import Weight
from outrider.text.tokenizer import Tokenizer, load_tokenizer
from outrider.text.tokenizer.pair import reversed_tokenizer
from outrider.text.tokenizer.vocabulary import Cut, check_same_tokenizer, cut_like, cut_tokenizer
from outrider.torch.compress.student.narrow import draw, input_moments, narrow, round_feedforwards
from outrider.torch.models import Seq2Seq, load_model
from outrider.torch.models.reshape import Layers, keep_layers, keep_positions, keep_tokens, rebuild
from outrider.torch.models.reshape import reverse as reverse_model
from outrider.torch.training.batches import valid_batches
from outrider.torch.training.objectives.base import Inputs
from outrider.torch.training.objectives.translation import TranslationObjective

__all__ = ["choose_layers", "shrink"]

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


def shrink(
    model: str | Path,
    out: str | Path,
    *,
    layers: Mapping[str, int | Sequence[int]] | None = None,
    feedforward: int | None = None,
    words: int | None = None,
    like: str | Path | None = None,
    int4: Collection[str] = (),
    positions: int | None = None,
    reverse: bool = False,
    data: str | Path | None = None,
    console: Console | None = None,
) -> Path:
    """Write a model folder with less in it.

    Args:
        model: A model folder, an `.argosmodel` file or a Hub name; an encoder-decoder.
        out: The folder to write.
        layers: Which layers of `encoder` and `decoder` stay, or how many: then those without which
            the model would find validation pairs of `data` least likely. All of a side that is not
            named.
        feedforward: How many inner units of each feed-forward stay; what was made of the others is
            made of these as well as can be.
        words: How many words of each side stay.
        like: A model folder whose words stay instead, with its numbers for them.
        int4: Parts that are rounded to 4 bits: `embeddings`, the tables of words; `feedforward`,
            whose rounding is made up for as well as can be.
        positions: How many tokens a text may have.
        reverse: Whether it is to read what it wrote, and write what it read; it has to learn that.
        data: A prepared folder of this model's tokenizer whose texts say which layers, units and
            words those are, and what rounding changes; what `outrider distill` writes.
        console: Where to report; by default nowhere.
    """
    out = Path(out)
    if out.exists():
        raise ModelError(f"{out}: exists already; name a new folder")
    layers = layers or {}
    named = {side: kept for side, kept in layers.items() if not isinstance(kept, int)}
    counts = {side: kept for side, kept in layers.items() if isinstance(kept, int)}
    numbers = {"layers": counts or None, "units": feedforward, "words": words}
    which = [name for name, number in numbers.items() if number is not None]
    check_parts(int4)
    if data is None and which:
        raise ConfigError("data", f"is missing: a number alone does not say which {which[0]} stay")
    if data is None and FEEDFORWARD in int4:
        raise ConfigError("data", "is missing: it says what rounding feed-forwards changes")
    if data is not None and not which and FEEDFORWARD not in int4:
        raise ConfigError("words", "is missing: without it, data changes nothing")
    if words is not None and FEEDFORWARD in int4:
        message = "feedforward is rounded on texts in the words that are left: shrink twice"
        raise ConfigError("int4", message)
    if like is not None and words is not None:
        raise ConfigError("words", "is those of the other model; leave out words or like")
    folder = model_folder(model)
    loaded, tokenizer = load_model(folder), load_tokenizer(folder)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{folder}: is a language model; shrink takes one that translates")
    if named:
        loaded = keep_layers(loaded, named)
    if positions is not None:
        loaded = keep_positions(loaded, positions)
    if data is not None:
        prepared = open_prepared(data)
        check_same_tokenizer(prepared.tokenizer, tokenizer, data=prepared.folder, model=folder)
        if counts:
            chosen = choose_layers(loaded, prepared, counts, console=console)
            loaded = keep_layers(loaded, chosen)
        if feedforward is not None:
            moments = input_moments(loaded, draw(loaded, prepared))
            loaded = narrow(loaded, moments, feedforward, console=console)
        if FEEDFORWARD in int4:
            moments = input_moments(loaded, draw(loaded, prepared))
            loaded = round_feedforwards(loaded, moments, console=console)
        if words is not None:
            sides = [_count(prepared, side, tokenizer.vocab_size) for side in ("source", "target")]
            cut = cut_tokenizer(tokenizer, *sides, words=words)
            loaded, tokenizer = _keep_words(loaded, tokenizer, cut), cut.tokenizer
    if like is not None:
        cut = cut_like(tokenizer, load_tokenizer(model_folder(like)))
        loaded, tokenizer = _keep_words(loaded, tokenizer, cut), cut.tokenizer
    if reverse:
        loaded, tokenizer = reverse_model(loaded), reversed_tokenizer(tokenizer)
    if EMBEDDINGS in int4:
        loaded = _round_tables(loaded)
    transformers_logging.disable_progress_bar()
    with working_folder(out) as draft:
        loaded.save_pretrained(draft)
        tokenizer.save(draft)
    return out


def _keep_words(model: Seq2Seq, tokenizer: Tokenizer, cut: Cut) -> Seq2Seq:
    """Leave out all rows of words but those of `cut`."""
    extra = range(tokenizer.vocab_size, model.config.vocab_size)  # rows that are no words
    return keep_tokens(model, [*cut.source, *extra], [*cut.target, *extra])


def _round_tables(model: Seq2Seq) -> Seq2Seq:
    """Round the tables of words to what a file of 4 bits holds."""
    weights = dict(model.state_dict())
    for name in TABLES:
        if name in weights:
            array = weights[name].numpy()
            check_width(name, array.shape[1])
            weights[name] = torch.from_numpy(Weight(INT4, *int4_groups(array)).as_float32())
    return rebuild(model, weights)


def _count(prepared: Prepared, side: str, words: int) -> Sequence[int]:
    """Count how often each word occurs in the training text."""
    reader, count_V = prepared.reader("train"), np.zeros(words, np.int64)
    for block in range(len(reader.block_rows)):
        count_V += np.bincount(reader.ids(block, f"{side}_ids").flat, minlength=words)
    counted: list[int] = count_V.tolist()
    return counted
