"""Prompt templates: a tokenizer's tokens around a text, and language tokens of the vocabulary."""

import pytest
from tokenizers import AddedToken

from outrider.errors import ConfigError
from outrider.text.prompt_template import PromptTemplate, source_frame
from outrider.text.tokenizer.subword import SubwordTokenizer
from tests.helpers import families
from tests.helpers.families import END

SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}


def frame(*names: str, forced: int | None = None, **around: str) -> PromptTemplate:
    pipeline = families.tokenizer(**around)
    pipeline.add_tokens([AddedToken(name) for name in names])
    tokenizer = SubwordTokenizer(pipeline, SPECIAL)
    return source_frame(tokenizer, start=0, end=END, forced=forced)


def test_the_tokens_around_a_text_come_from_the_tokenizer() -> None:
    found = frame(before="<s>", after="</s>", forced=9)
    assert (found.before, found.after, found.start, found.prompt) == ((3,), (END,), None, (9,))
    bare = frame()
    assert (bare.before, bare.after, bare.start, bare.prompt) == ((), (END,), None, ())


@pytest.mark.parametrize("name", ["<2de>", ">>de<<"])
def test_a_source_may_begin_with_the_target_language(name: str) -> None:
    found = frame(name, after="</s>").between(None, "de")
    assert (found.before, found.after) == ((families.WORDS,), (END,))
    with pytest.raises(ConfigError, match=r"target_language: unknown 'dee' .*did you mean 'de'"):
        frame(name).between(None, "dee")
    with pytest.raises(ConfigError, match=r"source_language: .* does not read .* \(--from\) out"):
        frame(name).between("de", None)
    message = r"target_language: got 'fr', .* one language only, .*; leave it \(--to\) out"
    with pytest.raises(ConfigError, match=message):
        frame().between(None, "fr")
