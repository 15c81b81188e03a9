"""Parts that the native core does not compute are named by key, also without the core installed."""

from typing import Any

import numpy as np
import pytest

from outrider.backends.native_parts import ctc_shape, drafter_shape, missing, model_shape, weights
from outrider.torch.models.folder import parts_of
from tests.helpers import native_tiny, tiny

SEQ2SEQ: list[tuple[dict[str, Any], str]] = [
    ({"position": "alibi"}, "position: alibi"),
    ({"position": "relative"}, "position: relative"),
    ({"position": "coordinate"}, "position: coordinate"),
    ({"depth": "shared"}, "depth: shared"),
    ({"residual": "gru"}, "residual: gru"),
    ({"residual": "reversible"}, "residual: reversible"),
    ({"position_correlation": 3}, "position_correlation: 3"),
    ({"position_mlp": 2}, "position_mlp: 2"),
    ({"skip": {"below": 0.1}}, "skip: {'below': 0.1}"),
    ({"pair_attention": True}, "pair_attention: True"),
    ({"decoder_core": "gru"}, "decoder_core: gru"),
    ({"encoder_core": "lstm"}, "encoder_core: lstm"),
    (
        {"decoder_attention": {"kind": "sliding", "window": 3}},
        "decoder_attention: {'kind': 'sliding', 'window': 3}",
    ),
    (
        {"encoder_attention": [{"kind": "full"}, {"kind": "full", "score": "additive"}]},
        "encoder_attention: {'kind': 'full', 'score': 'additive'}",
    ),
    (
        {"hidden_size": 15, "num_attention_heads": 3, "position": "learned"},
        "hidden_size: 15",
    ),
]
LANGUAGE_MODELS: list[tuple[dict[str, Any], str]] = [
    ({"core": "gru"}, "core: gru"),
    ({"memory": 4, "max_positions": 8, "position": "rotary"}, "memory: 4"),
    (
        {"attention": {"kind": "strided", "stride": 4}},
        "attention: {'kind': 'strided', 'stride': 4}",
    ),
]


@pytest.mark.parametrize(("parts", "expected"), SEQ2SEQ, ids=[text for _, text in SEQ2SEQ])
def test_unsupported_parts_of_an_encoder_decoder_are_named(parts, expected) -> None:
    assert missing(tiny.seq2seq(**parts).config) == expected


@pytest.mark.parametrize(
    ("parts", "expected"), LANGUAGE_MODELS, ids=[text for _, text in LANGUAGE_MODELS]
)
def test_unsupported_parts_of_a_language_model_are_named(parts, expected) -> None:
    assert missing(tiny.language_model(**parts).config) == expected


def test_unsupported_parts_of_a_side_decoder_are_named() -> None:
    model = tiny.seq2seq()
    ctc = native_tiny.build_ctc(model)
    config = model.config
    assert missing(config, native_tiny.build_drafter(model).config, ctc.config) is None
    lstm = native_tiny.build_drafter(model, core="lstm", rank=0)
    assert missing(config, lstm.config) == "core: lstm (of the drafter)"
    ahead = native_tiny.build_drafter(model, ahead=ctc, reads="ctc")
    assert missing(config, ahead.config, ctc.config) == "reads: ctc (of the drafter)"
    cross = native_tiny.build_ctc(model, cross=True)
    assert missing(config, None, cross.config) == "cross: true (of the CTC decoder)"


@pytest.mark.parametrize("kind", native_tiny.KINDS)
def test_supported_models_have_no_missing_part(kind) -> None:
    assert missing(native_tiny.build(kind).config) is None


def test_the_shape_equals_that_of_the_config() -> None:
    model = native_tiny.build("grouped")
    shape = model_shape(model.config, "int8")
    assert (shape["heads"], shape["kv_heads"], shape["width"]) == (4, 2, 16)
    assert (shape["encoder_layers"], shape["decoder_layers"]) == (2, 2)
    text = model_shape(native_tiny.build("text").config, "float32")
    assert (text["encoder_layers"], text["decoder_layers"], text["dtype"]) == (0, 2, "float32")
    assert text["kv_heads"] == text["heads"] == 2
    drafter = native_tiny.build_drafter(model, shortlist=5)
    assert drafter_shape(parts_of(model, drafter).drafter)["shortlist"] == drafter.kept_V.tolist()
    plain = parts_of(model, native_tiny.build_drafter(model))
    assert drafter_shape(plain.drafter)["shortlist"] == []
    assert ctc_shape(native_tiny.build_ctc(model, upsample=3).config)["upsample"] == 3


def test_weights_are_converted_to_float32() -> None:
    model = native_tiny.build("marian").bfloat16()
    drafter = native_tiny.build_drafter(model).bfloat16()
    found = weights(parts_of(model, drafter, native_tiny.build_ctc(model).bfloat16()))
    assert all(array.dtype == np.float32 for array in found.values())
    assert {name.split(".")[0] for name in found} >= {"tokens", "encoder", "drafter", "ctc"}
