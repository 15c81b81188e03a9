"""The keys of model configs with type, default and meaning, for `config --explain` and docs."""

from collections.abc import Iterator
from dataclasses import fields

from outrider.config import ExplainedKey, attribute_docstrings, show_type, show_value
from outrider.formats.side_spec import CtcSpec, DrafterSpec, SideDecoderSpec
from outrider.formats.spec import (
    LanguageModelSpec,
    MaskedLmSpec,
    ModelSpec,
    Seq2SeqSpec,
)

Spec = type[ModelSpec | SideDecoderSpec]
MODELS: dict[str, type[ModelSpec]] = {
    "seq2seq": Seq2SeqSpec,
    "language_model": LanguageModelSpec,
    "masked_lm": MaskedLmSpec,
}
SIDE_DECODERS: dict[str, type[SideDecoderSpec]] = {
    "drafter": DrafterSpec,
    "ctc": CtcSpec,
}
TYPES: dict[str, Spec] = {**MODELS, **SIDE_DECODERS}
DERIVED = {
    *("vocab_size", "is_encoder_decoder", "is_decoder"),
    *("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "mask_token_id"),
}
"""Keys that a run derives from its tokenizer or from `type`."""


def explain_models(prefix: str = "") -> Iterator[ExplainedKey]:
    """Yield the keys of all model types; keys of some types name them."""
    types: dict[ExplainedKey, list[str]] = {}
    for name, spec in MODELS.items():
        for key in _explain(spec, prefix):
            types.setdefault(key, []).append(name)
    yield from (key for key, names in types.items() if len(names) == len(MODELS))
    for key, names in types.items():
        if len(names) < len(MODELS):
            yield key._replace(text=f"{key.text} Only for {' and '.join(names)}.".strip())
    for name, side in SIDE_DECODERS.items():
        for key in _explain(side, prefix):
            if key.key.removeprefix(prefix) not in side.given:
                yield key._replace(text=f"{key.text} Only for {name}.".strip())


def _explain(spec: Spec, prefix: str) -> Iterator[ExplainedKey]:
    texts = attribute_docstrings(spec)
    for field in fields(spec):
        if field.name in texts and field.name not in DERIVED:
            yield ExplainedKey(
                prefix + field.name,
                show_type(field.type).replace("float | int", "float"),
                show_value(field.default),
                texts[field.name],
            )
