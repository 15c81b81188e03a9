"""The interface of Hugging Face models."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from outrider.errors import InputError
from outrider.formats.spec import POSITIONS
from outrider.torch.models import LanguageModel, Seq2Seq
from tests.helpers import tiny


@pytest.mark.parametrize("position", POSITIONS)
def test_auto_classes_find_the_encoder_decoder(tmp_path: Path, position: str) -> None:
    model = tiny.seq2seq(position=position)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).hidden_size == 16
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(again, Seq2Seq)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize(
    "parts", [{}, {"position": "relative", "relative_codes": 6, "memory": 5}], ids=str
)
def test_auto_classes_find_the_language_model(tmp_path: Path, parts: dict[str, object]) -> None:
    model = tiny.language_model(**parts)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(again, LanguageModel)
    tokens = torch.tensor([[3, 5, 6]])
    assert torch.equal(model(input_ids=tokens).logits, again(input_ids=tokens).logits)


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_kind_changes_the_logits(position: str) -> None:
    """Two rows differ only in the order of two tokens, so only positions can distinguish them."""
    model = tiny.language_model(position=position, attention={"kind": "causal"})
    with torch.no_grad():
        one, other = model(input_ids=torch.tensor([[4, 5, 6, 7], [5, 4, 6, 7]])).logits[:, -1]
    moved = float((one - other).abs().max())
    assert moved > 1e-4, "order must matter, if only through what the layers before saw"
    assert model.config.position == position


@pytest.mark.usefixtures("on_device")
def test_generate_greedy_follows_the_argmax() -> None:
    model = tiny.seq2seq()
    source = torch.tensor([[5, 6, 7, 1]])
    out = model.generate(input_ids=source, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    with torch.no_grad():
        logits = model(input_ids=source, decoder_input_ids=out[:, :-1]).logits[0]
    logits[:, model.config.eos_token_id] = -torch.inf  # min_new_tokens suppresses the end
    assert out[0, 1:].tolist() == logits.argmax(-1).tolist()


@pytest.mark.usefixtures("on_device")
def test_generate_for_language_models_and_beams() -> None:
    out = tiny.language_model().generate(
        input_ids=torch.tensor([[3, 5]]), max_new_tokens=4, num_beams=2, do_sample=False
    )
    assert out.shape[1] <= 6
    beams = tiny.seq2seq().generate(input_ids=torch.tensor([[5, 1]]), max_new_tokens=4, num_beams=3)
    assert beams[0, 0] == 0


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_the_cross_entropy_of_the_logits(smoothing: float) -> None:
    model = tiny.seq2seq()
    batch = {
        "input_ids": torch.tensor([[5, 6, 1], [7, 1, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    }
    labels = torch.tensor([[8, 9, 1], [4, 1, -100]])
    out = model(**batch, labels=labels, label_smoothing=smoothing)
    expected = F.cross_entropy(
        out.logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing
    )
    torch.testing.assert_close(out.loss, expected)
    halved = model(**batch, labels=labels, label_smoothing=smoothing, num_items_in_batch=10)
    torch.testing.assert_close(halved.loss, expected / 2)
    model.train()
    trained = model(**batch, labels=labels, label_smoothing=smoothing)
    assert trained.logits is None
    torch.testing.assert_close(trained.loss, expected)


@pytest.mark.usefixtures("on_device")
def test_language_model_loss_shifts_the_labels() -> None:
    model = tiny.language_model()
    tokens = torch.tensor([[3, 5, 6, 7]])
    out = model(input_ids=tokens, labels=tokens)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits[0, :-1], tokens[0, 1:]))


@pytest.mark.parametrize("tie", [True, False])
def test_vocabulary_can_be_resized(tie: bool) -> None:
    model = tiny.language_model(tie_word_embeddings=tie)
    model.resize_token_embeddings(30)
    assert model(input_ids=torch.tensor([[3, 29]])).logits.shape[-1] == 30
    assert model.config.vocab_size == 30


def test_left_padding_is_refused_with_the_fix() -> None:
    with pytest.raises(InputError, match=r"set tokenizer\.padding_side = 'right'"):
        tiny.language_model()(
            input_ids=torch.tensor([[0, 5]]), attention_mask=torch.tensor([[0, 1]])
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs input_ids or encoder_outputs"),
        ({"input_ids": torch.tensor([[5]])}, "needs decoder_input_ids or labels"),
    ],
)
def test_missing_inputs_are_named(arguments: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny.seq2seq()(**arguments)
    with pytest.raises(InputError, match="forward needs input_ids"):
        tiny.language_model()()


@pytest.mark.usefixtures("on_device")
def test_gradients_of_the_whole_model_are_right() -> None:
    model = tiny.seq2seq(
        dtype=torch.float64, hidden_size=8, intermediate_size=8, encoder_layers=1, decoder_layers=1
    )
    batch = {"input_ids": torch.tensor([[5, 6, 1]]), "labels": torch.tensor([[7, 8, 1]])}
    weight = model.decoder.blocks[0].cross.kv.weight
    (analytic,) = torch.autograd.grad(model(**batch, label_smoothing=0.1).loss, weight)
    step = 1e-6
    for row, column in [(0, 0), (5, 3), (11, 7)]:
        with torch.no_grad():
            weight[row, column] += step
            above = model(**batch, label_smoothing=0.1).loss
            weight[row, column] -= 2 * step
            below = model(**batch, label_smoothing=0.1).loss
            weight[row, column] += step
        assert analytic[row, column].item() == pytest.approx(
            ((above - below) / (2 * step)).item(), rel=1e-4, abs=1e-9
        )
