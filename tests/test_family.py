"""Every preset of the family at small size, from training to decoding; tandem equals greedy.

A masked language model does not generate; a translator uses it as its encoder.
"""

from pathlib import Path

import pytest
import yaml

import outrider
from outrider.config import build_config
from outrider.run_config import RunConfig
from outrider.torch.evaluation.likelihood import evaluate_text
from outrider.torch.training.run import train_run
from tests.helpers.family import (
    BEAMS,
    FAMILY,
    PRESETS,
    PROMPTS,
    TRAIN,
    WRITERS,
    give_drafter,
    own_test,
    scores,
    small,
)


@pytest.mark.parametrize("name", WRITERS)
def test_a_preset_trains_loads_and_generates(name: str, tmp_path: Path) -> None:
    config = small(name, tmp_path)
    folder = train_run(config)
    give_drafter(folder)
    model = outrider.load(folder)
    write = model.translate if config.model.type == "seq2seq" else model.generate
    options = {"max_new_tokens": 12}
    greedy = write(PROMPTS, mode="ar", **options)
    assert len(greedy) == len(PROMPTS)
    assert write(PROMPTS, mode="tandem", draft_tokens=3, **options) == greedy
    assert [write([prompt], mode="ar", **options)[0] for prompt in PROMPTS] == greedy
    beams = write(PROMPTS, **BEAMS)
    assert [write([prompt], **BEAMS)[0] for prompt in PROMPTS] == beams
    assert scores(folder.parent)


def test_a_plain_transformer_with_a_masked_model_as_encoder(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    folder = train_run(small("masked-lm", tmp_path))
    score = evaluate_text(folder, text=tmp_path / "target.txt")["scores"]
    assert 0 <= score["accuracy"] <= 1
    values = small("transformer", tmp_path / "pairs").model_dump(mode="json")
    del values["model"]["encoder_layers"]
    values["model"]["encoder"] = {"pretrained": str(folder), "freeze": False}
    values["data"] |= {"source_tokenizer": {"folder": str(folder)}}
    values["data"]["clean"]["max_tokens"] = 24
    model = outrider.load(train_run(build_config(RunConfig, values)))
    assert len(model.translate(PROMPTS, max_new_tokens=12)) == len(PROMPTS)


@pytest.mark.parametrize(("name", "trust"), [("ar-nar", 0.999), ("ar-nar-text", 0.9)])
def test_both_halves_of_ar_nar(name: str, trust: float, tmp_path: Path) -> None:
    """The parallel half is trained for the other half, and tandem still equals greedy."""
    target = train_run(small(name, tmp_path))
    values = yaml.safe_load((FAMILY / f"{name}-drafter.yaml").read_text())
    values |= {
        "folder": str(tmp_path / "drafter"),
        "data": {"folder": str(tmp_path / "data")},
        "model": {**values["model"], "target": str(target), "block": 6, "train_block": 4},
        "train": {**values["train"], **TRAIN},
        "evaluate": own_test(values, tmp_path),
    }
    model = outrider.load(train_run(build_config(RunConfig, values)))
    assert values["evaluate"] is None or scores(tmp_path / "drafter")
    write = model.translate if name == "ar-nar" else model.generate
    greedy = write(PROMPTS, mode="ar", max_new_tokens=12)
    assert write(PROMPTS, mode="tandem", draft_tokens=3, max_new_tokens=12) == greedy
    for gamma in (0.5, 1.0):
        texts, stats = write(PROMPTS, mode="tandem", gamma=gamma, max_new_tokens=12, stats=True)
        assert len(texts) == len(PROMPTS)
        # After two updates the LSTM for text sometimes drafts padding, which must not be generated.
        assert stats.acceptance >= gamma * trust


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DATA", "corpora")
    values = yaml.safe_load((FAMILY / f"{name}.yaml").read_text())
    config = build_config(RunConfig, values)
    assert config.name == name
    assert config.folder == f"runs/family/{name}"
