"""The keys of a model's config with type, default and meaning, for docs and `config --explain`.

What `config.json` says of a model: plain dataclasses, checked as the untrusted input they are.

`outrider.torch.models.configs` makes Hugging Face configs of them, which also check the options of
every attention.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields

from outrider.config import ExplainedKey, show_type, show_value
from outrider.formats.side_spec import CtcSpec, DrafterSpec, SideDecoderSpec
from outrider.formats.spec import (
    LanguageModelSpec,
    MaskedLmSpec,
    ModelSpec,
    Seq2SeqSpec,
)

__all__ = ["TYPES", "explain_models"]

Description = type[ModelSpec | SideDecoderSpec]
MODELS: dict[str, type[ModelSpec]] = {
    "seq2seq": Seq2SeqSpec,
    "language_model": LanguageModelSpec,
    "masked_lm": MaskedLmSpec,
}
SIDE_DECODERS: dict[str, type[SideDecoderSpec]] = {
    "drafter": DrafterSpec,
    "ctc": CtcSpec,
}
TYPES: dict[str, Description] = {**MODELS, **SIDE_DECODERS}
DERIVED = {
    *("vocab_size", "is_encoder_decoder", "is_decoder"),
    *("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "mask_token_id"),
}
"""Keys a run fills in from its tokenizer or from `type`."""


def explain_models(prefix: str = "") -> Iterator[ExplainedKey]:
    """Yield the keys of all model types; those of one type say which."""
    found = {name: list(_explain(description, prefix)) for name, description in MODELS.items()}
    shared = set.intersection(*({field.key for field in fields} for fields in found.values()))
    yield from (field for field in found["seq2seq"] if field.key in shared)
    of_some: dict[ExplainedKey, list[str]] = {}
    for name, own in found.items():
        for field in own:
            if field.key not in shared:
                of_some.setdefault(field, []).append(name)
    for field, names in of_some.items():
        yield field._replace(text=f"{field.text} Only for {' and '.join(names)}.".strip())
    for name, description in SIDE_DECODERS.items():
        for field in _explain(description, prefix):
            if field.key.removeprefix(prefix) not in description.given:
                yield field._replace(text=f"{field.text} Of {name}.".strip())


def _explain(description: Description, prefix: str) -> Iterator[ExplainedKey]:
    texts = _attribute_docstrings(description)
    for field in fields(description):
        if field.name in texts and field.name not in DERIVED:
            default = None if field.default is MISSING else field.default
            yield ExplainedKey(
                prefix + field.name,
                show_type(field.type).replace("float | int", "float"),  # a whole number will do
                show_value(default),
                texts[field.name],
            )


def _attribute_docstrings(description: Description) -> dict[str, str]:
    """Map each annotated attribute to the string under it, base classes first."""
    texts: dict[str, str] = {}
    for cls in reversed(description.__mro__):
        if not cls.__module__.startswith("outrider."):
            continue
        (definition,) = ast.parse(inspect.getsource(cls)).body
        assert isinstance(definition, ast.ClassDef)
        for statement, below in zip(definition.body, [*definition.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                texts.setdefault(statement.target.id, "")
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    texts[statement.target.id] = " ".join(str(below.value.value).split())
    return texts
