"""The parallel decoder: rows are independent, folders store it, and it must fit its target."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.errors import ConfigError, ModelError
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.ctc import Ctc, split_weights
from outrider.torch.models.folder import load_ctc
from tests.helpers import tiny

PARTS: list[dict[str, Any]] = [
    {},
    {"upsample": 3, "norm": "post"},
    {"cross": True, "layers": 1, "activation": "silu", "gated": True},
    {"joint": True},
]


def build(target: Any = None, *, dtype: torch.dtype = torch.float64, **values: Any) -> Ctc:
    target = target or tiny.seq2seq(dtype=dtype)
    config = CtcConfig.for_target(target.config, **{"layers": 2, **values})
    return Ctc(config).to(dtype).bind(target).eval()


def sources(lengths: list[int]) -> tuple[Tensor, Tensor]:
    ids = torch.randint(4, tiny.VOCABULARY, (len(lengths), max(lengths)))
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids * keep, keep


@pytest.mark.parametrize("parts", PARTS, ids=str)
@torch.no_grad()
def test_rows_are_independent(parts: dict[str, Any]) -> None:
    ctc = build(**parts)
    source, keep = sources([5, 2, 7])
    known = torch.randint(-1, tiny.VOCABULARY, (3, 7 * ctc.config.upsample))
    memory = ctc.encode(source, keep)
    together = ctc.slots(memory, keep, known)
    count = ctc.count(memory, keep).tolist()
    assert count == [n * ctc.config.upsample for n in (5, 2, 7)]
    for row, slots in enumerate(count):
        length = slots // ctc.config.upsample
        alone = ctc.slots(
            ctc.encode(source[row : row + 1, :length], None), None, known[row, :slots]
        )
        torch.testing.assert_close(together[row, :slots], alone[0], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_slots_equal_the_equation() -> None:
    """x_u = memory[u // n] + c[u mod n] + W e(known) + sinusoid(u), scored by the target's head."""
    ctc = build(upsample=3, layers=1)
    target = ctc.target
    source, _ = sources([4])
    memory, known = target.encode(source)[0], torch.full((1, 12), -1)
    known[0, 5] = 9
    rows = []
    for u in range(12):
        angle = u * 10_000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        x = memory[u // 3] + ctc.copies[u % 3] + torch.cat([angle.sin(), angle.cos()])
        if u == 5:
            x = x + ctc.told.weight @ (target.tokens.weight[9] * 4)  # the square root of 16
        rows.append(x)
    hidden = torch.stack(rows)[None]
    block = ctc.decoder.blocks[0]
    hidden = hidden + block.attention(block.attention_residual.norm(hidden), None)
    hidden = hidden + block.feedforward(block.feedforward_residual.norm(hidden))
    logits = ctc.decoder.norm(hidden) @ target.tokens.weight.T + ctc.bias
    torch.testing.assert_close(ctc.slots(memory[None], None, known), logits, rtol=1e-9, atol=1e-9)


def test_only_a_joint_model_stores_its_target() -> None:
    frozen, joint = build(), build(joint=True)
    assert not any(name.startswith("target.") for name in frozen.state_dict())
    own, theirs = split_weights(joint.state_dict())
    assert own.keys() == frozen.state_dict().keys()
    assert theirs.keys() == joint.target.state_dict().keys()
    source, _ = sources([3, 3])
    labels = torch.tensor([[5, 6, 1], [7, 1, -100]])
    for ctc in (frozen, joint):
        ctc(input_ids=source, labels=labels).loss.backward()
        learned = {name for name, p in ctc.target.named_parameters() if p.grad is not None}
        assert bool(learned) == ctc.config.joint


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_ctc_without_the_end_token_plus_the_joint_loss(smoothing: float) -> None:
    ctc = build(joint=True, ar_weight=0.5, dropout=0.0)
    source, keep = sources([5, 3])
    labels = torch.tensor([[5, 6, 6, 1], [7, 1, -100, -100]])
    inputs = {"input_ids": source, "attention_mask": keep.long(), "labels": labels}
    output = ctc(**inputs, label_smoothing=smoothing, num_items_in_batch=3.0)
    log_prob = output.logits.log_softmax(-1)
    lengths, slots = torch.tensor([3, 1]), torch.tensor([10, 6])
    nll = F.ctc_loss(log_prob.transpose(0, 1), labels.clamp(min=0), slots, lengths, reduction="sum")
    spread = -(log_prob.mean(-1) * (torch.arange(10) < slots[:, None])).sum()
    own = (1 - smoothing) * nll + smoothing * spread
    theirs = ctc.target(**inputs, label_smoothing=smoothing, num_items_in_batch=1.0).loss
    torch.testing.assert_close(output.loss, (own + 0.5 * theirs) / 3, rtol=1e-8, atol=1e-8)


def test_a_folder_stores_it(tmp_path: Path) -> None:
    target = tiny.seq2seq()
    ctc = build(target, dtype=torch.float32, upsample=3)
    ctc.steps += 7
    ctc.save_pretrained(tmp_path / "ctc")
    loaded = load_ctc(tmp_path, target)
    assert loaded is not None
    source, keep = sources([5, 2])
    memory = target.encode(source, keep)
    assert torch.equal(ctc.slots(memory, keep), loaded.slots(memory, keep))
    assert (int(loaded.steps), loaded.steps.dtype) == (7, torch.long)


@torch.inference_mode()
def test_packed_weights_change_nothing_but_rounding() -> None:
    ctc = build(dtype=torch.float32)
    source, keep = sources([9, 4])
    memory = ctc.encode(source, keep)
    before = ctc.slots(memory, keep)
    ctc.pack_weights()
    torch.testing.assert_close(ctc.slots(memory, keep), before, rtol=1e-4, atol=1e-5)


def test_the_share_of_known_slots_decreases_with_the_steps() -> None:
    ctc = build(reveal_start=0.5, reveal_end=0.1, reveal_steps=8)
    shares = []
    for _ in range(10):
        shares.append(ctc.reveal)
        ctc.steps += 1
    assert shares == pytest.approx([0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.1])


def test_another_target_is_refused() -> None:
    target = tiny.seq2seq(hidden_size=32)
    with pytest.raises(ModelError, match=r"another model: its hidden_size is 16, the target's 32"):
        build(dtype=torch.float32).bind(target)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"upsample": 0}, "upsample: got 0, expected 1 to 16"),
        ({"layers": 65}, "layers: got 65, expected 1 to 64"),
        ({"num_attention_heads": 3}, "num_attention_heads: got 3, which does not divide 16"),
        ({"norm": "pree"}, r"norm: unknown 'pree' \(did you mean 'pre'\?\); expected one of pre"),
        (
            {"activation": "tanh"},
            "activation: unknown 'tanh'.*; expected one of relu, gelu, gelu_tanh",
        ),
        ({"reveal_start": 1.0}, "reveal_start: got 1.0, expected 0 to less than 1"),
        ({"ar_weight": -1.0}, "ar_weight: got -1.0, expected 0 to"),
        ({"vocab_size": 5}, "vocab_size: comes from the target; leave it out"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        CtcConfig.for_target(tiny.seq2seq().config, **values)


def test_a_blank_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^blank: got 9, but the vocabulary has 5 tokens$"):
        CtcConfig(vocab_size=5, blank=9)


def test_a_language_model_as_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^target: is a language model; CTC needs a source"):
        CtcConfig.for_target(tiny.language_model().config)
