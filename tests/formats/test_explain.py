"""The keys of drafters and CTC decoders in `outrider config --explain`."""

from dataclasses import fields

import pytest
from transformers import PreTrainedConfig

from outrider.cli.main import run
from outrider.formats.explain import DERIVED, SIDE_DECODERS, TYPES, explain_models
from outrider.formats.side_spec import SideDecoderSpec
from outrider.torch.models.configs import (
    CtcConfig,
    DrafterConfig,
    LanguageModelConfig,
    MaskedLmConfig,
    Seq2SeqConfig,
)
from tests.helpers import tiny

CONFIGS = {
    "seq2seq": Seq2SeqConfig,
    "language_model": LanguageModelConfig,
    "masked_lm": MaskedLmConfig,
    "drafter": DrafterConfig,
    "ctc": CtcConfig,
}


def test_only_settings_of_the_user_are_keys() -> None:
    keys = {field.key for field in explain_models("model.")}
    assert {"model.rank", "model.shortlist", "model.upsample", "model.reveal_end"} <= keys
    for config_class in SIDE_DECODERS.values():
        own = {
            key
            for cls in config_class.__mro__
            if issubclass(cls, SideDecoderSpec)
            for key in vars(cls)
            if not key.startswith("_")
        }
        assert {"given", "ranges"} <= own, "the names this test is about"
    assert keys.isdisjoint({"model.given", "model.ranges", "model.model_type"})
    assert keys.isdisjoint({"model.target_layers", "model.blank"}), "the target decides these"


@pytest.mark.parametrize("name", TYPES)
def test_explained_keys_equal_those_of_the_config(name: str) -> None:
    described, had = TYPES[name], CONFIGS[name]
    assert issubclass(had, described)
    own = {field.name for field in fields(had)} - {field.name for field in fields(PreTrainedConfig)}
    assert own - DERIVED <= {field.name for field in fields(described)}


def test_the_command_line_refuses_other_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--explain", "model.shortlist"]) == 0
    assert "model.shortlist" in capsys.readouterr().out
    for key in ("model.given", "model.ranges"):
        assert run(["config", "--explain", key]) == 2
        assert "no such key" in capsys.readouterr().err


@pytest.mark.parametrize("config_class", [DrafterConfig, CtcConfig])
def test_other_keys_are_not_saved(config_class: type[DrafterConfig | CtcConfig]) -> None:
    saved = config_class.for_target(tiny.seq2seq().config).to_dict()
    assert saved.keys().isdisjoint({"given", "ranges"})


def test_an_integer_is_accepted_for_a_fraction() -> None:
    assert Seq2SeqConfig(dropout=0, attention_dropout=0).dropout == 0
    kinds = {field.key: field.type for field in explain_models("model.")}
    assert kinds["model.dropout"] == "float"
