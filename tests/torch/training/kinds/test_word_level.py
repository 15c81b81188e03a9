"""Word-level distillation: the equation, its limits, and a run."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.run_config import RunConfig
from outrider.torch.models import Seq2Seq
from outrider.torch.training.check import check_run
from outrider.torch.training.kinds.translation import WordLevelObjective
from outrider.torch.training.objective import Objective
from tests.helpers import tiny


def batch() -> dict[str, Tensor]:
    generator = torch.manual_seed(3)
    source = torch.randint(4, tiny.VOCABULARY, (3, 5), generator=generator)
    labels = torch.randint(4, tiny.VOCABULARY, (3, 6), generator=generator)
    keep = torch.ones_like(source)
    keep[1, 3:] = 0
    labels[2, 4:] = -100
    return {"input_ids": source, "attention_mask": keep, "labels": labels}


def loss_of(
    objective: Objective, model: Seq2Seq, *, smoothing: float = 0.0
) -> tuple[Tensor, list[Tensor]]:
    inputs = batch()
    loss = objective.loss(model.train(), inputs, divisor=7.0, smoothing=smoothing)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return loss, list(torch.autograd.grad(loss, weights, allow_unused=True))


def equation(model: Seq2Seq, teacher: Seq2Seq, share: float, smoothing: float) -> Tensor:
    """Position by position and token by token, from the formula."""
    inputs = batch()
    total = torch.zeros((), dtype=torch.float64)
    for row, labels in enumerate(inputs["labels"]):
        wanted = [int(label) for label in labels if label != -100]
        length = int(inputs["attention_mask"][row].sum())
        source = inputs["input_ids"][row : row + 1, :length]
        fed = torch.tensor([[model.config.decoder_start_token_id, *wanted[:-1]]])
        said = [one(input_ids=source, decoder_input_ids=fed).logits[0] for one in (model, teacher)]
        for place, label in enumerate(wanted):
            ours, theirs = (logits[place].log_softmax(-1) for logits in said)
            text = -(1 - smoothing) * ours[label] - smoothing * ours.mean()
            opinion = -(theirs.detach().exp() * ours).sum()
            total = total + (1 - share) * text + share * opinion
    return total / 7


@pytest.mark.parametrize(("share", "smoothing"), [(0.3, 0.1), (1.0, 0.0), (0.5, 0.0)])
def test_loss_equals_the_equation(share: float, smoothing: float) -> None:
    model, teacher = tiny.seq2seq(dtype=torch.float64), tiny.seq2seq(seed=5, dtype=torch.float64)
    loss, slopes = loss_of(WordLevelObjective(teacher, share=share), model, smoothing=smoothing)
    expected = equation(model, teacher, share, smoothing)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    wanted = torch.autograd.grad(expected, weights, allow_unused=True)
    for found, right in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-7)


def test_zero_share_equals_the_plain_loss() -> None:
    model, teacher = tiny.seq2seq(), tiny.seq2seq(seed=5)
    found = loss_of(WordLevelObjective(teacher, share=0.0), model, smoothing=0.1)
    torch.testing.assert_close(found, loss_of(Objective(), model, smoothing=0.1))


def test_student_equal_to_the_teacher_has_zero_gradient() -> None:
    model, same = tiny.seq2seq(), tiny.seq2seq()
    _, slopes = loss_of(WordLevelObjective(same, share=1.0), model)
    assert max(float(slope.abs().max()) for slope in slopes if slope is not None) < 1e-6
    assert not any(weight.requires_grad for weight in same.parameters())


def test_wrong_teachers_are_refused(tmp_path: Path) -> None:
    data = {"folder": str(tmp_path / "data"), "train": {"pairs": ["x.tsv"]}, "valid_rows": 1}
    values = {"name": "x", "folder": str(tmp_path / "run"), "data": data}
    kind = {"model": {"type": "language_model"}, "train": {"teacher": "t"}}
    with pytest.raises(
        ConfigError, match=r"train\.teacher: is for a seq2seq, not a language_model"
    ):
        build_config(RunConfig, {**values, **kind})
    tiny.language_model().save_pretrained(tmp_path / "other")
    for name, word in (("other", "is a language model"), ("nothing", "nothing")):
        train = {"teacher": str(tmp_path / name)}
        with pytest.raises(ConfigError, match=rf"train\.teacher: .*{word}"):
            check_run(build_config(RunConfig, {**values, "train": train}))
