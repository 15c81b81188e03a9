"""Make a model smaller: fewer layers, units, tokens or positions, int4, or reversed.

Nothing is trained. Kept parts compute what they did; `model.start` trains the model further.

Layers are removed greedily: the one whose removal increases the loss on validation pairs least,
then the next. Each removal is measured, as the importance of a layer depends on the other layers
and on the language.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path

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
from outrider.torch.training.batches import count_tokens, valid_batches
from outrider.torch.training.objective import Inputs, Objective

BATCHES, TOKENS = 4, 1024
"""Batches of validation pairs, and tokens per batch, on which removals are measured."""


def choose_layers(
    model: Seq2Seq,
    prepared: Prepared,
    counts: Mapping[str, int],
    *,
    console: Console | None = None,
) -> Layers:
    """Return the layers to keep of each side in `counts`.

    Args:
        model: The whole model.
        prepared: Pairs in its vocabulary, with a validation set.
        counts: Number of layers of `encoder` and `decoder` to keep.
        console: Where to report each removal; by default nowhere.
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
                layer: {**kept, side: [other for other in kept[side] if other != layer]}
                for layer in kept[side]
            }
            losses = {
                layer: _loss(keep_layers(model, tried), batches) for layer, tried in tries.items()
            }
            removed = min(losses, key=losses.__getitem__)
            kept = tries[removed]
            console.print(f"without layer {removed} of the {side}: loss {losses[removed]:.3f}")
    return kept


@torch.inference_mode()
def _loss(model: Seq2Seq, batches: Sequence[Inputs]) -> float:
    """Return the mean loss per token of the pairs."""
    objective, was_training = Objective(), model.training
    model.eval()
    losses = (objective.loss(model, batch, divisor=1.0, smoothing=0.0) for batch in batches)
    nats = sum(float(loss) for loss in losses)
    model.train(was_training)
    return nats / sum(objective.count(batch) for batch in batches)


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
    """Write a smaller model folder.

    Args:
        model: A model folder, an `.argosmodel` file or a Hub name; an encoder-decoder.
        out: The folder to write.
        layers: Layers of `encoder` and `decoder` to keep, or their number: then those whose
            removal increases the loss on validation pairs of `data` most. By default all.
        feedforward: Inner units of each feed-forward to keep; their weights are adjusted to
            replace the others.
        words: Number of tokens of each side to keep.
        like: A model folder whose vocabulary to use instead.
        int4: Parts to round to 4 bits: `embeddings`; `feedforward`, whose weights are adjusted
            to compensate the rounding.
        positions: Maximum tokens of a text.
        reverse: Swap source and target side; the model has to be trained for that.
        data: A prepared folder with this model's tokenizer (as written by `outrider distill`),
            from which layers, units and tokens are chosen and rounding is compensated.
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
        raise ConfigError("data", f"is required to choose which {which[0]} to keep")
    if data is None and FEEDFORWARD in int4:
        raise ConfigError("data", "is required to round feed-forwards")
    if data is not None and not which and FEEDFORWARD not in int4:
        raise ConfigError("words", "is missing: without it, data has no effect")
    if words is not None and FEEDFORWARD in int4:
        message = "feedforward is rounded after words are removed: run shrink twice"
        raise ConfigError("int4", message)
    if like is not None and words is not None:
        raise ConfigError("words", "has no effect with like; leave out one of them")
    folder = model_folder(model)
    loaded, tokenizer = load_model(folder), load_tokenizer(folder)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{folder}: is a language model; shrink needs a translation model")
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
            sides = [
                count_tokens(prepared, f"{side}_ids").tolist() for side in ("source", "target")
            ]
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
    """Remove all embedding rows except those of `cut`."""
    extra = range(tokenizer.vocab_size, model.config.vocab_size)  # rows without a token
    return keep_tokens(model, [*cut.source, *extra], [*cut.target, *extra])


def _round_tables(model: Seq2Seq) -> Seq2Seq:
    """Round the embedding tables to 4 bits."""
    weights = dict(model.state_dict())
    for name in TABLES:
        if name in weights:
            array = weights[name].numpy()
            check_width(name, array.shape[1])
            weights[name] = torch.from_numpy(Weight(INT4, *int4_groups(array)).as_float32())
    return rebuild(model, weights)
