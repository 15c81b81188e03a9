"""Images as sequences: handwritten digits of 8 x 8 pixels, generated pixel by pixel.

    digit p_1 p_2 ... p_64        17 grey levels; the first token is the digit, or `any`

One model is trained for each YAML file beside this script, all with the same settings. The score is
bits per pixel on test images, -1/64 sum_t log2 p(p_t | digit, p_1 .. p_(t-1)).

python examples/images/digits.py --json digits.json --png digits.png
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from digits_picture import Row, draw
from sklearn.datasets import load_digits
from torch import Tensor, nn

from outrider import yaml12
from outrider.formats.spec import check_keys
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.models import LanguageModel, LanguageModelConfig
from outrider.torch.models.base import Model
from outrider.torch.models.configs import ModelConfig

HERE = Path(__file__).parent
MODELS = ("causal", "image-transformer", "sparse-strided", "sparse-fixed")
SIDE, PIXELS = 8, 64
LEVELS = 17
ANY = LEVELS + 10
"""The token for any digit; digit d is token LEVELS + d."""


@dataclass(frozen=True)
class Settings:
    """Settings of all models; validation images are only reported."""

    epochs: int = 25
    batch: int = 32
    rate: float = 3e-3
    weight_decay: float = 0.1
    unasked: float = 0.2
    """Share of training images without their digit."""
    images: int | None = None
    """Maximum number of training images; None for all."""
    seed: int = 1


QUICK = Settings(epochs=1, images=64)


class Images(NamedTuple):
    """Rows of a digit and its pixels, [B, 65]."""

    train: Tensor
    valid: Tensor
    test: Tensor


def load_images(settings: Settings) -> Images:
    """Return 1,297 training, 200 validation and 300 test images."""
    pixels, digits = load_digits(return_X_y=True)
    rows = torch.cat([torch.tensor(digits)[:, None] + LEVELS, torch.tensor(pixels)], dim=1).long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    valid, test, train = rows[order].split([200, 300, len(rows) - 500])
    return Images(train[: settings.images], valid, test)


def read_spec(name: str, config_class: type[ModelConfig]) -> dict[str, Any]:
    """Read a YAML file and check the keys of its model."""
    spec = yaml12.parse((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    check_keys(config_class, spec["model"], prefix="model.")
    return spec


def read_model(name: str) -> tuple[dict[str, Any], LanguageModelConfig]:
    """Read a YAML file; return it and the config of its model."""
    spec = read_spec(name, LanguageModelConfig)
    return spec, LanguageModelConfig(**spec["model"])


def train(
    config: LanguageModelConfig, images: Images, settings: Settings, device: str
) -> tuple[LanguageModel, list[float]]:
    """Train a model; return it and its validation bits per pixel by epoch."""
    torch.manual_seed(settings.seed)
    model = LanguageModel(config).to(device)
    steps = settings.epochs * math.ceil(len(images.train) / settings.batch)
    update = updater(model, steps, settings.rate, settings.weight_decay)
    curve = []
    for epoch in range(settings.epochs):
        model.train()
        for rows in images.train[torch.randperm(len(images.train))].split(settings.batch):
            unasked = torch.rand(len(rows)) < settings.unasked
            rows = torch.cat([rows[:, :1].masked_fill(unasked[:, None], ANY), rows[:, 1:]], 1)
            rows = rows.to(device)
            update(model(rows[:, :-1], labels=rows).loss)
        curve.append(bits_per_image(model, images.valid, device).mean().item() / PIXELS)
        print(f"  epoch {epoch + 1}: {curve[-1]:.3f} bits per pixel", flush=True)
    return model.eval(), curve


def updater(
    model: nn.Module, steps: int, rate: float, weight_decay: float
) -> Callable[[Tensor], None]:
    """Return a function that takes the loss and updates the model: AdamW with one-cycle rates."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)

    def update(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    return update


@torch.inference_mode()
def bits_per_image(model: LanguageModel, rows: Tensor, device: str) -> Tensor:
    """Return -log2 p of each image, given its digit."""
    model.eval()
    bits = []
    for some in rows.to(device).split(100):
        log_prob_BTV = model(some[:, :-1]).logits.log_softmax(-1)
        log_prob_BT = log_prob_BTV.gather(-1, some[:, 1:, None])[..., 0]
        bits.append(-log_prob_BT.sum(1) / math.log(2))
    return torch.cat(bits).cpu()


@torch.inference_mode()
def write(model: LanguageModel, given_BT: Tensor, seed: int) -> Tensor:
    """Sample the missing pixels after a digit and some pixels; return images."""
    generator = torch.Generator().manual_seed(seed)
    rows, start = given_BT.shape
    state = model.open(rows, capacity=PIXELS)
    tokens, written = given_BT.to(state.device), [given_BT[:, 1:]]
    for _ in range(start, PIXELS + 1):
        logits_BV = model.extend(tokens, state)[:, -1, :LEVELS]
        tokens = torch.multinomial(logits_BV.softmax(-1).cpu(), 1, generator=generator)
        written.append(tokens)
        tokens = tokens.to(state.device)
    return torch.cat(written, dim=1).view(rows, SIDE, SIDE)


def bits_without_context(images: Images) -> Tensor:
    """Bits of each test image with independent pixels, given the digit and the position."""
    count = torch.ones(10, PIXELS, LEVELS)
    digit, pixels = images.train[:, 0] - LEVELS, images.train[:, 1:]
    place = torch.arange(PIXELS)[None]
    count.index_put_((digit[:, None], place, pixels), torch.tensor(1.0), accumulate=True)
    bits = -(count / count.sum(-1, keepdim=True)).log2()
    return bits[images.test[:, :1] - LEVELS, place, images.test[:, 1:]].sum(1)


def look(model: LanguageModel, at: int) -> Tensor:
    """Return the share of the layers' heads in which pixel `at` attends to each earlier pixel."""
    # Token i predicts pixel i and token j holds pixel j - 1, so key 0 is the digit.
    i, j = torch.tensor([[at]]), torch.arange(PIXELS)[None]
    attentions = [block.attention.attention for block in model.decoder.blocks]
    seen = torch.stack([one.heads_see(i, j).float().mean((0, 1)) for one in attentions]).mean(0)
    return torch.cat([seen[1:], seen.new_zeros(1)]).view(SIDE, SIDE)


def pairs(model: Model, length: int = PIXELS) -> float:
    """Return the share of causal token pairs that the layers score."""
    attentions = [block.attention.attention for block in model.decoder.blocks]
    seen = sum(one.cost(length).pairs for one in attentions) / len(attentions)
    return seen / (length * (length + 1) // 2)


class Outcome(NamedTuple):
    """Scores of one model by image, and its row of the picture."""

    result: dict[str, Any]
    bits_B: Tensor
    """Bits per pixel of each test image."""
    row: Row


def measure(name: str, images: Images, settings: Settings, device: str) -> Outcome:
    """Train one model, score it, and sample from it."""
    spec, config = read_model(name)
    print(spec["name"], flush=True)
    start = time.process_time()
    model, curve = train(config, images, settings, device)
    seconds = time.process_time() - start
    bits_B = bits_per_image(model, images.test, device) / PIXELS
    mean, error = mean_and_error(bits_B)
    print(f"  test: {mean:.3f} ± {error:.3f}", flush=True)
    result = {
        "name": spec["name"],
        "model": spec["model"],
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "bits_per_pixel": mean,
        "standard_error": error,
        "pairs": pairs(model),
        "seconds": round(seconds, 1),
        "valid_bits_per_pixel": [round(value, 4) for value in curve],
    }
    asked = torch.arange(LEVELS, LEVELS + 10)[:, None]
    halves = torch.cat([torch.full((6, 1), ANY), images.test[:6, 1 : 1 + PIXELS // 2]], dim=1)
    row = Row(
        spec["name"],
        f"sees {spec['sees']}",
        mean,
        look(model, 5 * SIDE + 4),
        write(model, asked, settings.seed),
        write(model, halves, settings.seed),
    )
    return Outcome(result, bits_B, row)


def mean_and_error(bits_B: Tensor) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return bits_B.mean().item(), (bits_B.std() / len(bits_B) ** 0.5).item()


def main() -> None:
    """Train every model, score it, and draw its samples."""
    arguments = read_arguments(__doc__, "digits")
    settings = QUICK if arguments.quick else Settings()
    if arguments.epochs:
        settings = replace(settings, epochs=arguments.epochs)
    images = load_images(settings)
    outcomes = [measure(name, images, settings, arguments.device) for name in MODELS]
    for outcome in outcomes[1:]:  # per image, which removes the variance between images
        more, error = mean_and_error(outcome.bits_B - outcomes[0].bits_B)
        outcome.result["more_than_first"] = {"bits_per_pixel": more, "standard_error": error}
    hand = images.test[:, 1:].view(-1, SIDE, SIDE)
    draw([outcome.row for outcome in outcomes], hand, first_of_each(images.test), arguments.png)
    record = {
        "settings": asdict(settings),
        "images": {part: len(rows) for part, rows in images._asdict().items()},
        "bits_per_pixel_without_context": (bits_without_context(images) / PIXELS).mean().item(),
        "models": [outcome.result for outcome in outcomes],
        "machine": machine(),
        "versions": versions(),
    }
    write_result(arguments.json, record)


def read_arguments(about: str, stem: str) -> argparse.Namespace:
    """Read the command line; the default file names start with `stem`."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smoke test: one epoch of 64 images")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=Path(f"{stem}.json"))
    parser.add_argument("--png", type=Path, default=Path(f"{stem}.png"))
    return parser.parse_args()


def first_of_each(rows: Tensor) -> Tensor:
    """Return the index of the first image of every digit."""
    return torch.stack([(rows[:, 0] == LEVELS + digit).nonzero()[0, 0] for digit in range(10)])


if __name__ == "__main__":
    main()
