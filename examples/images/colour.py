"""Super-resolution of coloured pictures: an encoder reads 4 x 4 pixels, a decoder writes 8 x 8.

    s_1 .. s_48  ->  t_1 t_2 .. t_192        R G B, R G B, ..: row by row, pixel by pixel

A token is the level of a channel. The pictures are scikit-learn's handwritten digits, each with its
own background and ink colour: the model must read colours from the source and keep them over
pixels. The score is bits per channel on test pictures, -1/192 sum_i log2 p(t_i | s, t_1 ..
t_(i-1)).

python examples/images/colour.py --json colour.json --png colour.png
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import digits
import torch
from colour_picture import Row, draw
from digits import SIDE, mean_and_error
from torch import Tensor
from torch.nn import functional as F

from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.models import Seq2Seq, Seq2SeqConfig
from outrider.torch.nn.position import LearnedPosition

MODELS = ("colour-causal", "colour-local")
CHANNELS, LEVELS = 3, 8
CELLS = SIDE * SIDE * CHANNELS
"""Tokens of a large picture; a small one has a quarter."""
START = CHANNELS * LEVELS
CONTRAST = 5
"""Minimum distance of ink and background; black and white have distance 12.1."""
GREYEST = 16
"""The level of scikit-learn's digits for full ink."""


@dataclass(frozen=True)
class Settings:
    """Settings of all models; validation pictures are only reported."""

    epochs: int = 10
    batch: int = 8
    rate: float = 3e-3
    weight_decay: float = 0.1
    colourings: int = 40
    """How often the training digits are coloured to count levels."""
    images: int | None = None
    """Maximum number of digits of each part; None for all."""
    seed: int = 1


QUICK = Settings(epochs=1, colourings=1, images=64)


class Pictures(NamedTuple):
    """Coloured digits in levels from 0 to 7."""

    small: Tensor
    """Sources, [B, 48]."""
    large: Tensor
    """Targets, [B, 192]."""
    inks: Tensor
    """Background and ink of each picture, [B, 2, 3]."""

    def split(self, size: int) -> Iterator["Pictures"]:
        """Split into batches."""
        parts = (part.split(size) for part in self)
        return (Pictures(*some) for some in zip(*parts, strict=True))


def colour(grey_BP: Tensor, generator: torch.Generator) -> Pictures:
    """Draw a background and an ink for each digit, mix them by its grey levels, and shrink it."""
    shape = (2, CHANNELS)
    inks = torch.randint(LEVELS, (len(grey_BP), *shape), generator=generator).float()
    while (poor := (inks[:, 0] - inks[:, 1]).norm(dim=1) < CONTRAST).any():
        inks[poor] = torch.randint(LEVELS, (int(poor.sum()), *shape), generator=generator).float()
    large = torch.lerp(inks[:, None, 0], inks[:, None, 1], grey_BP[..., None] / GREYEST).round()
    small = F.avg_pool2d(large.mT.unflatten(2, (SIDE, SIDE)), 2).round()
    return Pictures(small.flatten(2).mT.flatten(1).long(), large.flatten(1).long(), inks)


def enlarge(small: Tensor, mode: str) -> Tensor:
    """Return pictures twice as wide and high, without a model."""
    planes = small.view(-1, SIDE // 2, SIDE // 2, CHANNELS).movedim(3, 1).float()
    large = F.interpolate(planes, scale_factor=2, mode=mode)
    return large.movedim(1, 3).flatten(1).round().long()


def as_tokens(levels: Tensor) -> Tensor:
    """Return token ids; each channel has its own tokens, in the order red, green, blue."""
    return levels + torch.arange(levels.shape[-1], device=levels.device) % CHANNELS * LEVELS


def count_levels(grey_BP: Tensor, settings: Settings) -> Tensor:
    """Return p(level | position, level of the source there) of each channel alone: [192, 8, 8]."""
    generator = torch.Generator().manual_seed(settings.seed)
    count = torch.ones(CELLS, LEVELS, LEVELS)
    for _ in range(settings.colourings):
        pictures = colour(grey_BP, generator)
        where = (torch.arange(CELLS), enlarge(pictures.small, "nearest"), pictures.large)
        count.index_put_(where, torch.tensor(1.0), accumulate=True)
    return count / count.sum(-1, keepdim=True)


def build(config: Seq2SeqConfig) -> Seq2Seq:
    """Build a model whose learned positions start as in the paper: sinusoids of row and column.

    Both sides use coordinates of the large picture, and queries and keys of cross-attention start
    equal, so that a channel first attends to the same place of the source.
    """
    model = Seq2Seq(config)
    for position, side in ((model.encoder_position, SIDE // 2), (model.decoder_position, SIDE)):
        assert isinstance(position, LearnedPosition)
        pixel = torch.arange(side * side * CHANNELS) // CHANNELS
        place_T2 = torch.stack([pixel // side, pixel % side], dim=1)
        middle_T2 = (place_T2 + 0.5) * (SIDE // side) - 0.5
        position.table.weight.data[: len(pixel)] = sines(middle_T2, config.hidden_size)
    for block in model.decoder.blocks:
        block.cross.kv.weight.data[: config.hidden_size] = block.cross.q.weight.data
    return model


def sines(place_T2: Tensor, width: int) -> Tensor:
    """Sines and cosines of rows and columns, with wavelengths of 2 to 32 pixels."""
    frequency_F = math.pi * 16 ** -torch.linspace(0, 1, width // 4)
    angle_T2F = place_T2[..., None] * frequency_F
    return torch.cat([angle_T2F.sin(), angle_T2F.cos()], dim=-1).flatten(1)


def train(
    config: Seq2SeqConfig, grey: digits.Images, valid: Pictures, settings: Settings, device: str
) -> tuple[Seq2Seq, list[float]]:
    """Train a model on new colours in every epoch; return it and its bits on `valid`."""
    torch.manual_seed(settings.seed)
    model = build(config).to(device)
    steps = settings.epochs * math.ceil(len(grey.train) / settings.batch)
    update = digits.updater(model, steps, settings.rate, settings.weight_decay)
    generator = torch.Generator().manual_seed(settings.seed)
    curve = []
    for epoch in range(settings.epochs):
        model.train()
        order = torch.randperm(len(grey.train), generator=generator)
        for some in colour(grey.train[order, 1:], generator).split(settings.batch):
            source, target = (as_tokens(part).to(device) for part in some[:2])
            update(model(source, labels=target).loss)
        curve.append(bits_per_channel(model, valid, device).mean().item())
        print(f"  epoch {epoch + 1}: {curve[-1]:.3f} bits per channel", flush=True)
    return model.eval(), curve


@torch.inference_mode()
def bits_per_channel(model: Seq2Seq, pictures: Pictures, device: str) -> Tensor:
    """Return -log2 p of each channel of each pixel, given the source: [B, 192]."""
    model.eval()
    bits = []
    for some in pictures.split(100):
        source, target = (as_tokens(part).to(device) for part in some[:2])
        logits_BTV = model(source, decoder_input_ids=model.shift_right(target)).logits
        log_prob_BT = logits_BTV.log_softmax(-1).gather(-1, target[..., None])[..., 0]
        bits.append(-log_prob_BT / math.log(2))
    return torch.cat(bits).cpu()


@torch.inference_mode()
def write(model: Seq2Seq, small: Tensor, seed: int | None = None) -> Tensor:
    """Write large pictures channel by channel: sampled with a seed, or the argmax of each level."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    memory_BSD = model.encode(as_tokens(small).to(model.device))
    state = model.open(memory_BSD, None, capacity=CELLS)
    tokens, written = torch.full((len(small), 1), START), []
    for cell in range(CELLS):
        first = cell % CHANNELS * LEVELS
        logits_BTV = model.extend(tokens.to(model.device), state)
        level = pick(logits_BTV[:, -1, first : first + LEVELS].softmax(-1).cpu(), generator)
        written.append(level)
        tokens = level + first
    return torch.cat(written, dim=1)


def pick(odds_BV: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample from each row, or take the argmax without a generator: [B, 1]."""
    if generator is None:
        return odds_BV.argmax(-1, keepdim=True)
    return torch.multinomial(odds_BV, 1, generator=generator)


def off_the_mix(large: Tensor, inks: Tensor) -> Tensor:
    """Distance in levels of each pixel from the mixtures of its background and ink: [B, 64]."""
    paper_B1C, ink_B1C = inks[:, :1], inks[:, 1:]
    along_B1C = F.normalize(ink_B1C - paper_B1C, dim=-1)
    beside_BPC = large.float().unflatten(1, (-1, CHANNELS)) - paper_B1C
    share_BP1 = (beside_BPC * along_B1C).sum(-1, keepdim=True)
    return (beside_BPC - share_BP1 * along_B1C).norm(dim=-1)


def judge(large: Tensor, truth: Pictures) -> dict[str, float]:
    """Score pictures against the true ones, in levels."""
    error, standard_error = mean_and_error((large - truth.large).abs().float().mean(1))
    return {
        "absolute_error": error,
        "standard_error": standard_error,
        "off_the_mix": off_the_mix(large, truth.inks).mean().item(),
    }


class Outcome(NamedTuple):
    """Results on the test pictures, of one model or without a model."""

    result: dict[str, Any]
    bits_B: Tensor
    """Bits per channel of each picture."""
    rows: list[Row]


def without_model(grey: digits.Images, test: Pictures, settings: Settings) -> Outcome:
    """Upscale the source, and sample every channel alone."""
    odds = count_levels(grey.train[:, 1:], settings)
    nearest = enlarge(test.small, "nearest")
    odds_BTV = odds[torch.arange(CELLS), nearest]
    bits_BT = -odds_BTV.gather(-1, test.large[..., None])[..., 0].log2()
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = pick(odds_BTV.flatten(0, 1), generator).view_as(nearest)
    bits_B = bits_BT.mean(1)
    mean, error = mean_and_error(bits_B)
    result = {
        "truth": judge(test.large, test),
        "nearest": judge(nearest, test),
        "bilinear": judge(enlarge(test.small, "bilinear"), test),
        "each_channel_for_itself": {
            "bits_per_channel": mean,
            "standard_error": error,
            "drawn": judge(drawn, test),
        },
    }
    rows = [
        Row("Nearest", "the source, enlarged", nearest),
        Row("Every channel for itself", f"{mean:.2f} bits per channel\ncounted by place", drawn),
    ]
    return Outcome(result, bits_B, rows)


def measure(
    name: str, grey: digits.Images, valid: Pictures, test: Pictures, settings: Settings, device: str
) -> Outcome:
    """Train one model, score it, and sample from it."""
    spec = digits.read_spec(name, Seq2SeqConfig)
    print(spec["name"], flush=True)
    start = time.process_time()
    model, curve = train(Seq2SeqConfig(**spec["model"]), grey, valid, settings, device)
    seconds = time.process_time() - start
    bits_BT = bits_per_channel(model, test, device)
    bits_B = bits_BT.mean(1)
    mean, error = mean_and_error(bits_B)
    print(f"  test: {mean:.3f} ± {error:.3f}", flush=True)
    drawn, likeliest = write(model, test.small, settings.seed), write(model, test.small)
    result = {
        "name": spec["name"],
        "model": spec["model"],
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "bits_per_channel": mean,
        "standard_error": error,
        "bits_of_red_green_blue": bits_BT.unflatten(1, (-1, CHANNELS)).mean((0, 1)).tolist(),
        "drawn": judge(drawn, test),
        "likeliest": judge(likeliest, test),
        "pairs": digits.pairs(model, CELLS),
        "seconds": round(seconds, 1),
        "valid_bits_per_channel": [round(value, 4) for value in curve],
    }
    score = f"{mean:.2f} bits per channel"
    rows = [
        Row(f"{spec['name']}, drawn", f"{score}\nsees {spec['sees']}", drawn),
        Row(f"{spec['name']}, likeliest", "the likeliest level each time", likeliest),
    ]
    return Outcome(result, bits_B, rows)


def main() -> None:
    """Train both models, score them, and draw their pictures."""
    arguments = digits.read_arguments(__doc__, "colour")
    settings = QUICK if arguments.quick else Settings()
    if arguments.epochs:
        settings = replace(settings, epochs=arguments.epochs)
    parts = digits.load_images(digits.Settings())
    grey = digits.Images(*(part[: settings.images] for part in parts))
    generator = torch.Generator().manual_seed(0)
    valid, test = (colour(part[:, 1:], generator) for part in grey[1:])
    plain = without_model(grey, test, settings)
    outcomes = [measure(name, grey, valid, test, settings, arguments.device) for name in MODELS]
    more, error = mean_and_error(outcomes[1].bits_B - outcomes[0].bits_B)
    outcomes[1].result["more_than_first"] = {"bits_per_channel": more, "standard_error": error}
    rows = [*plain.rows, outcomes[0].rows[0], *outcomes[1].rows]
    draw(test.small, rows, test.large, digits.first_of_each(grey.test), arguments.png)
    record = {
        "settings": asdict(settings),
        "images": {part: len(rows) for part, rows in grey._asdict().items()},
        "without_model": plain.result,
        "models": [outcome.result for outcome in outcomes],
        "machine": machine(),
        "versions": versions(),
    }
    write_result(arguments.json, record)


if __name__ == "__main__":
    main()
