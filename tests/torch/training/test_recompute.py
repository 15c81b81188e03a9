"""`train.gradient_checkpointing`: bit-identical gradients with less memory."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.run_config import RunConfig
from outrider.torch.nn.layer.block import Block
from outrider.torch.plan.probe import Shape, make_batch
from outrider.torch.training.check import check_settings
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.kinds.segment_memory import SegmentObjective
from tests.helpers.family import MODELS, small

WORDS = 40


def checkpointed(config: RunConfig) -> RunConfig:
    train = config.train.model_copy(update={"gradient_checkpointing": True})
    return config.model_copy(update={"train": train})


def is_reversible(config: RunConfig) -> bool:
    return config.model.values.get("residual") == "reversible"


def one_pass(config: RunConfig, length: int = 16) -> tuple[float, dict[str, Tensor], int]:
    """Return the loss, the gradients and the number of saved bytes, with dropout."""
    torch.manual_seed(0)
    model = kind_of(config).blank(WORDS).train()
    segment = kind_of(config).segment(model)
    objective = kind_of(config).training_objective()
    shape = Shape(8 if segment else length, WORDS, config.model.type == "seq2seq", segment)
    torch.manual_seed(5)
    batch = make_batch(shape, 4, torch.device("cpu"))
    if isinstance(objective, SegmentObjective):
        objective.memory = None
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        loss = objective.loss(model, batch, divisor=7.0, smoothing=0.1)
    loss.backward()
    weights = {one.data_ptr() for one in model.parameters()}
    held = sum(one.nbytes for at, one in kept.items() if at not in weights)
    grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return float(loss.detach()), grads, held


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_bit_identical_and_less_is_saved(name: str, tmp_path: Path) -> None:
    config = small(name, tmp_path)
    if is_reversible(config):
        with pytest.raises(
            ConfigError, match=r"train\.gradient_checkpointing: has no effect on reversible layers"
        ):
            check_settings(checkpointed(config))
        return
    loss, grads, held = one_pass(config)
    again, same, less = one_pass(checkpointed(config))
    assert again == loss
    assert same.keys() == grads.keys()
    assert all(torch.equal(same[key], grad) for key, grad in grads.items())
    assert less < held


def test_a_deep_model_saves_little_more_than_one_layer(tmp_path: Path) -> None:
    """Twelve layers: each further layer saves only its input."""
    config = small("sparse-transformer", tmp_path)

    def kept(layers: int) -> int:
        values = {**config.model.model_dump(), "layers": layers, "attention": {"kind": "causal"}}
        deep = build_config(RunConfig, {**config.model_dump(), "model": values})
        return one_pass(checkpointed(deep), length=24)[2]

    row = 4 * 23 * 16 * 4  # rows, tokens, width, bytes
    assert kept(12) - kept(2) <= 10 * 1.1 * row


def test_only_marked_layers_recompute(tmp_path: Path) -> None:
    config = small(MODELS[0], tmp_path)

    def asked(model: nn.Module) -> set[bool]:
        return {part.recompute for part in model.modules() if isinstance(part, Block)}

    assert asked(kind_of(config).blank(WORDS)) == {False}
    assert asked(kind_of(checkpointed(config)).blank(WORDS)) == {True}
