"""Steps and layers per token, and attention spans, equal those of the model."""

from pathlib import Path

import pytest
import torch

from outrider.cli.main import run
from outrider.errors import InputError
from outrider.runtime import load
from outrider.torch.inspect.effort import read_effort, read_spans
from outrider.torch.models import load_model
from tests.helpers.drafted import TEXT, save_language_model, save_translator

HALTING = {"depth": "shared", "position": "coordinate", "halting": {"bias": 0.0}}


def test_a_token_takes_the_steps_until_it_halts(tmp_path: Path) -> None:
    save_translator(tmp_path, drafter=False, **HALTING)
    loaded = load(tmp_path, device="cpu")
    encoder, decoder = read_effort(loaded, TEXT[0])
    assert (encoder.part, encoder.unit, encoder.most) == ("encoder", "steps", 1)
    assert len(encoder.labels) == len(encoder.taken_T)
    assert decoder.part == "decoder"
    assert ((encoder.taken_T >= 1) & (encoder.taken_T <= encoder.most)).all()


def test_language_model_with_halting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_language_model(tmp_path / "m", drafter=False, **HALTING)
    model = load_model(tmp_path / "m")
    folder = tmp_path / "m"
    loaded = load(folder, device="cpu")
    (found,) = read_effort(loaded, "two men")
    ids = [loaded.backend.start, *loaded.tokenizer.encode("two men")]
    model.hidden(torch.tensor([ids]))
    torch.testing.assert_close(found.taken_T, model.decoder.pondered.steps_BT[0].float())
    picture = tmp_path / "steps.png"
    assert run(["show", "effort", str(folder), "two men", "--png", str(picture)]) == 0
    assert "of the tokens take fewer than" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_pondering_cells(tmp_path: Path) -> None:
    pondering = {"bias": -1.0, "steps": 4}
    cores = {"encoder_core": "lstm", "decoder_core": "gru"}
    save_translator(tmp_path, drafter=False, pondering=pondering, **cores)
    encoder, decoder = read_effort(load(tmp_path, device="cpu"), TEXT[0])
    model = load_model(tmp_path)
    layers = model.config.encoder_layers, model.config.decoder_layers
    assert (encoder.most, decoder.most) == (2 * 4 * layers[0], 4 * layers[1])
    for one, least in ((encoder, 2 * layers[0]), (decoder, layers[1])):
        assert one.unit == "steps"
        assert len(one.labels) == len(one.taken_T)
        assert ((one.taken_T >= least) & (one.taken_T <= one.most)).all()


def test_layers_that_rare_tokens_skip(tmp_path: Path) -> None:
    skip = {"below": 0.02, "layers": [0]}
    loaded = load(save_translator(tmp_path, drafter=False, skip=skip), device="cpu")
    ids = [*loaded.tokenizer.encode(TEXT[0]), loaded.backend.eos]
    counts = torch.full_like(loaded.backend.model.router.count_V, 1 << 30)
    counts[ids[2]] = 0
    loaded.backend.model.router.set_counts(counts)
    (found,) = read_effort(loaded, TEXT[0])
    assert found.unit == "layers"
    assert found.taken_T.tolist() == [float(one != ids[2]) for one in ids]


def test_models_with_constant_effort_are_refused(tmp_path: Path) -> None:
    loaded = load(save_translator(tmp_path, drafter=False), device="cpu")
    with pytest.raises(InputError, match="the same for every token"):
        read_effort(loaded, TEXT[0])
    with pytest.raises(InputError, match="no layer of this model has attention of kind adaptive"):
        read_spans(loaded.backend.model)


def test_spans_are_those_of_the_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attention = {"kind": "adaptive_span", "max_span": 40, "ramp": 8}
    folder = save_language_model(tmp_path / "m", drafter=False, attention=attention)
    model = load_model(folder)
    layer = model.decoder.blocks[0].attention.attention
    with torch.no_grad():
        layer.span_bias_H.copy_(torch.tensor([0.25, 0.5]))
    model.save_pretrained(folder)
    spans = read_spans(load_model(folder))
    assert spans.span_LH.tolist() == [[10, 20]]
    mask_X = spans.mask_LHX(40)[0, 0]
    assert mask_X[:11].tolist() == [1] * 11
    assert mask_X[18:].tolist() == [0] * 22
    assert mask_X[14] == 0.5
    assert run(["show", "spans", str(folder), "--png", str(tmp_path / "s.png")]) == 0
    assert "of 40; the next 8 fade" in " ".join(capsys.readouterr().out.split())
