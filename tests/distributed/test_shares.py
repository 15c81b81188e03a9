"""Two processes with whole models (DDP) or shares of one (FSDP2) equal one process.

Every preset of the family takes two updates on two batches in float64: one process accumulates
them, two processes take one each.
"""

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from outrider.cli.main import run
from outrider.run_config import RunConfig
from outrider.torch.plan.probe import Shape, make_batch
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.kinds.segment_memory import SegmentObjective
from outrider.torch.training.memory import (
    gathered,
    load_optimizer,
    recompute_layers,
    save_optimizer,
    shard,
    whole_weights,
)
from tests.helpers.family import MODELS, small

pytestmark = [pytest.mark.slow, pytest.mark.dist]

CPU = torch.device("cpu")
WORDS = 40
Found = tuple[list[float], dict[str, Tensor]]


def build(config: RunConfig) -> nn.Module:
    torch.manual_seed(0)
    model = kind_of(config).blank(WORDS).double().train()
    for part in model.modules():  # the processes draw different random numbers
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0  # type: ignore[assignment]
    return model


def two_updates(config: RunConfig, model: nn.Module, only: int | None = None) -> Found:
    """Update on both batches, or on one of them beside another process; return gradient norms."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    segment = kind_of(config).segment(inner)
    objective = kind_of(config).training_objective()
    shape = Shape(8 if segment else 16, WORDS, config.model.type == "seq2seq", segment)
    torch.manual_seed(5)
    batches = [make_batch(shape, 2, CPU) for _ in range(2)]
    total = sum(objective.count(batch) for batch in batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    norms = []
    for _ in range(2):
        for batch in batches if only is None else [batches[only]]:
            if isinstance(objective, SegmentObjective):
                objective.memory = None
            torch.manual_seed(9)  # for the random hashes
            divisor = total / (1 if only is None else 2)
            objective.loss(model, batch, divisor=divisor, smoothing=0.1).backward()  # type: ignore[no-untyped-call]
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in grads]
        norms.append(float(torch.stack([one.norm() for one in whole]).norm()))
        optimizer.step()
        optimizer.zero_grad()
    return norms, whole_weights(inner)


def work(rank: int, folder: Path) -> None:
    """The work of each of two processes."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", f"file://{folder / 'meet'}", rank=rank, world_size=2)
    for name in MODELS:
        (folder / name).mkdir(exist_ok=True)
        config = small(name, folder / name)
        expected = two_updates(config, build(config))
        whole = DistributedDataParallel(build(config), find_unused_parameters=True)
        shared = build(config)
        shard(shared, CPU)
        weights = list(shared.parameters())
        held = sum(one.to_local().numel() for one in weights if isinstance(one, DTensor))
        assert held <= 0.6 * sum(one.numel() for one in weights), name
        again = build(config)
        recompute_layers(again)
        shard(again, CPU)
        for model in (whole, shared, again):
            norms, found = two_updates(config, model, rank)
            assert norms == pytest.approx(expected[0], rel=1e-9), name
            assert found.keys() == expected[1].keys()
            for key, weight in expected[1].items():
                torch.testing.assert_close(found[key], weight, rtol=0, atol=1e-9, msg=name)
        with gathered(shared):
            assert not any(isinstance(one, DTensor) for one in shared.parameters())
        assert any(isinstance(one, DTensor) for one in shared.parameters())
        _keeps_its_optimizer(shared, folder / name / "optimizer")
    dist.destroy_process_group()


def _keeps_its_optimizer(model: nn.Module, folder: Path) -> None:
    def make() -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(optimizer: torch.optim.Optimizer) -> None:
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()

    first, second = make(), make()
    step(first)
    save_optimizer(model, first, folder)
    load_optimizer(model, second, folder)
    for weight in model.parameters():
        for name, value in first.state[weight].items():
            found = second.state[weight][name]
            mine, other = (v.to_local() if isinstance(v, DTensor) else v for v in (value, found))
            assert torch.equal(mine, other), name


@pytest.mark.timeout(600)
def test_every_preset_on_two_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(rank, tmp_path)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(570)
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_sharding_needs_several_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(f"""
name: alone
folder: {tmp_path / "run"}
data: {{folder: {tmp_path / "data"}, train: {{target: text.txt}}, valid_rows: 2}}
model: {{type: language_model}}
train: {{shard: true}}
""")
    assert run(["train", str(tmp_path / "run.yaml")]) == 2
    assert "train.shard: needs several processes; start with torchrun" in capsys.readouterr().err
