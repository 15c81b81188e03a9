"""A plan's counts equal those of the model."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.config import build_config, load_config
from outrider.run_config import RunConfig
from outrider.torch.models import Drafter, LanguageModel, Seq2Seq
from outrider.torch.plan.memory import (
    Weights,
    count_weights,
    least_accumulate,
    state_bytes,
    training_peak,
)
from outrider.torch.plan.probe import Affine, Probe, Shape, make_batch, probe_step, run_loss
from outrider.torch.plan.subject import PlanOptions, find_subject
from outrider.torch.training.kinds import kind_of

FAMILY = Path(__file__).parents[3] / "configs" / "family"
PRESETS = sorted(path.stem for path in FAMILY.glob("*.yaml"))
VOCABULARY = 40
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


def small(**model: Any) -> RunConfig:
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    if model.get("type") == "language_model":
        layers = {"layers": 2}
    data = {"folder": "nowhere", "train": {"source": "a", "target": "b"}, "sequence_length": 23}
    values = {"name": "small", "folder": "runs/small", "data": data}
    return build_config(RunConfig, values | {"model": {**SMALL, **layers, **model}})


def probed(config: RunConfig, shape: Shape) -> tuple[torch.nn.Module, Probe]:
    torch.manual_seed(0)
    model = find_subject(config, PlanOptions(vocab_size=VOCABULARY)).build()
    objective = kind_of(config).training_objective
    return model, probe_step(model, objective, shape, "float32")


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_every_preset_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    overrides = [f"data.folder={tmp_path}"]
    if name.endswith("-drafter"):
        preset = FAMILY / f"{name.removesuffix('-drafter')}.yaml"
        target = find_subject(load_config(RunConfig, preset), PlanOptions()).build()
        target.save_pretrained(tmp_path / "target")
        overrides.append(f"model.target={tmp_path / 'target'}")
    config = load_config(RunConfig, FAMILY / f"{name}.yaml", overrides)
    subject = find_subject(config, PlanOptions())
    with torch.device("meta"):
        counted = count_weights(subject.build())
    real = subject.build()
    assert counted.total == sum(one.numel() for one in real.parameters())
    assert counted.weight_bytes == _held(real)
    if isinstance(real, Drafter):
        assert counted.beside == sum(one.numel() for one in real.target.parameters())


def _held(model: torch.nn.Module) -> int:
    models = [model, model.target] if isinstance(model, Drafter) else [model]
    held = [one.nbytes for part in models for one in part.parameters()]
    return sum(held) + sum(one.nbytes for one in model.buffers())


def test_parts_are_counted_separately() -> None:
    config = small(type="seq2seq", decoder_attention={"kind": "sliding", "window": 4})
    model = find_subject(config, PlanOptions(vocab_size=VOCABULARY)).build()
    found = count_weights(model).parameters
    attention = 4 * 16 * 16 + 4 * 16  # four weight matrices and their biases
    assert found["encoder.attention.full"] == found["decoder.attention.sliding"] == 2 * attention
    assert found["decoder.cross"] == 2 * attention
    assert found["encoder.feedforward"] == 2 * (2 * 16 * 32 + 32 + 16)
    assert found["tokens"] == VOCABULARY * 16


def test_gradients_and_optimiser_are_those_of_adamw() -> None:
    config, shape = small(type="seq2seq"), Shape(5, VOCABULARY, source=True)
    model = find_subject(config, PlanOptions(vocab_size=VOCABULARY)).build()
    counted = count_weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    objective = kind_of(config).training_objective()
    run_loss(
        model.train(), objective, make_batch(shape, 2, torch.device("cpu")), "float32"
    ).backward()
    optimizer.step()
    state = [one.nbytes for kept in optimizer.state.values() for one in kept.values()]
    assert counted.optimiser_bytes == sum(state)
    assert counted.gradient_bytes == sum(one.grad.nbytes for one in model.parameters())
    assert counted.largest_gradient == max(one.grad.nbytes for one in model.parameters())


@pytest.mark.parametrize(
    "model",
    [
        {"type": "seq2seq"},
        {"type": "language_model", "gated": True, "norm": "post"},
    ],
    ids=["seq2seq", "language model"],
)
def test_activations_equal_the_tensors_that_autograd_saves(model: dict[str, Any]) -> None:
    """The batch is larger than those in the plan; the model has no cached tables."""
    config, rows = small(**model, position="learned", dropout=0.1), 11
    shape = Shape(24, VOCABULARY, source=model["type"] == "seq2seq")
    built, probe = probed(config, shape)
    batch = make_batch(shape, rows, torch.device("cpu"))
    given = {one.untyped_storage().data_ptr() for one in [*built.parameters(), *batch.values()]}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run_loss(built, kind_of(config).training_objective(), batch, "float32")
    assert probe.kept(rows) - loss.nbytes == sum(saved.values())


def test_constant_memory_of_an_attention_does_not_scale_with_rows() -> None:
    keys = {"type": "language_model", "attention": {"kind": "sliding", "window": 5}}
    shape = Shape(24, VOCABULARY, source=False)
    _, probe = probed(small(**keys), shape)
    sliding = probe.activations["decoder.attention.sliding"]
    assert sliding.fixed >= 2 * 24 * 24  # one mask per layer
    _, causal = probed(small(type="language_model"), shape)
    assert sliding.per_row == causal.activations["decoder.attention.causal"].per_row
    assert all(line.per_row > 0 for line in probe.peaks)


def test_reversible_layers_and_chunks_save_less() -> None:
    """A checkpoint saves its input, which hooks of autograd do not see."""
    shape = Shape(24, VOCABULARY, source=False)
    plain, chunks, reversible = (
        probed(small(type="language_model", **keys), shape)[1]
        for keys in ({}, {"feedforward_chunks": 2}, {"residual": "reversible"})
    )
    wide = 2 * 24 * 32 * 4  # inner states of two feed-forwards per row
    assert plain.kept(8) - chunks.kept(8) >= 8 * wide
    assert "decoder.feedforward" not in reversible.activations
    assert reversible.kept(8) < plain.kept(8) / 3
    assert reversible.peak(8) > 2 * reversible.kept(8)  # one part is recomputed at a time
    assert reversible.training_flops > plain.training_flops * 1.2


def test_flops_of_a_language_model_equal_those_of_its_products() -> None:
    length, width, inner, layers = 24, 16, 32, 2
    shape = Shape(length, VOCABULARY, source=False)
    _, probe = probed(small(type="language_model"), shape)
    products = layers * (4 * width * width + 2 * width * inner) + width * VOCABULARY
    attention = layers * 2 * length * width  # scores and weighted sums over all pairs
    assert probe.forward_flops == 2 * length * (products + attention)
    backward = probe.training_flops - probe.forward_flops
    assert 2 * probe.forward_flops <= backward <= 2.5 * probe.forward_flops


def test_decoding_state_is_caches_and_source() -> None:
    config = small(type="seq2seq")
    model = find_subject(config, PlanOptions(vocab_size=VOCABULARY)).build().eval()
    assert isinstance(model, Seq2Seq)
    found = state_bytes(model, Shape(10, VOCABULARY, source=True))
    assert found == 2 * 2 * (10 + 10) * 16 * 4  # layers, k and v, encoder and decoder
    text = find_subject(
        small(type="language_model", attention={"kind": "sliding", "window": 3}),
        PlanOptions(vocab_size=VOCABULARY),
    ).build()
    assert isinstance(text, LanguageModel)
    long, short = (Shape(length, VOCABULARY, source=False) for length in (1000, 500))
    assert state_bytes(text.eval(), long) == state_bytes(text, short)


def test_peak_of_a_step_and_the_batch_that_fits() -> None:
    weights = Weights({"all": 100}, 0, 400, 400, 800, 200, 150)
    probe = Probe({}, (Affine(0, 10), Affine(100, 8)), 1.0, 3.0)
    at = partial(training_peak, weights, probe)
    assert at(100, accumulate=1, ddp=False) == 400 + 800 + 1000 + 200  # the forward pass is larger
    assert at(10, accumulate=1, ddp=False) == 400 + 800 + 400  # the gradients, 180 + 200 before
    assert at(100, accumulate=2, ddp=False) == 400 + 800 + 400 + 1000
    assert at(100, accumulate=1, ddp=True) == at(100, accumulate=1, ddp=False) + 400
    least = partial(least_accumulate, weights, probe, lambda cut: max(1, 100 // cut), ddp=False)
    assert [least(2400), least(2200), least(1900), least(1000)] == [1, 2, 4, None]
    assert at(100, accumulate=1, ddp=True, shares=4) == 1600 / 4 + 150 + 1000
    assert least(1500, shares=4) == 2  # half batches fit


def test_gathered_shards_are_counted() -> None:
    model = find_subject(small(type="seq2seq"), PlanOptions(vocab_size=VOCABULARY)).build()
    assert isinstance(model, Seq2Seq)
    layers = [*model.encoder.blocks, *model.decoder.blocks]
    inside = {one for layer in layers for one in layer.parameters()}
    outside = sum(one.nbytes for one in model.parameters() if one not in inside)
    layer = model.decoder.blocks[0]
    assert layer.cross is not None
    apart = {*layer.cross.parameters()}  # which are gathered separately
    largest = sum(one.nbytes for one in layer.parameters() if one not in apart)
    assert count_weights(model).gathered_bytes == outside + 3 * largest
    recurrent = small(type="language_model", depth="shared", position="coordinate")
    shared = count_weights(find_subject(recurrent, PlanOptions(vocab_size=VOCABULARY)).build())
    assert 0 < shared.gathered_bytes <= 3 * shared.weight_bytes
