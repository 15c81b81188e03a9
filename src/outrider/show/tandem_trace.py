"""A tandem decoding round by round: which tokens were drafted, and which of them were kept.

The text of a token is what it adds to the text before it, so that spaces stand where they will.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider.decoding import DecodeSettings, Round, Statistics
from outrider.runtime import Generator, Translator
from outrider.runtime.exactness import DRAFT_TOKENS

__all__ = ["KINDS", "Kind", "Span", "Trace", "added_text", "round_spans", "trace", "trace_text"]

Kind = Literal["accepted", "refused", "dropped", "correction", "bonus", "plain"]

KINDS: dict[Kind, str] = {
    "accepted": "drafted and accepted",
    "refused": "refused",
    "dropped": "dropped with it",
    "correction": "corrected",
    "bonus": "bonus",
    "plain": "not drafted",
}
"""What each kind of token is called in a legend."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Span:
    """One token of one round."""

    text: str
    kind: Kind
    token: int
    place: int
    """Its place in the draft, from 1; 0 for a token of the model's own."""
    ends: bool = False
    """Whether it is the end token, which has no text."""
    confidence: float | None = None
    """The drafter's own estimate that it would be confirmed, where it was kept."""

    @property
    def label(self) -> str:
        """Its text without the space around it; a sign where there is nothing to see."""
        if self.ends:
            return "end"
        return self.text.strip() or ("↵" if "\n" in self.text else "␣")

    @property
    def kept(self) -> bool:
        """Whether it is part of the final text."""
        return self.kind not in ("refused", "dropped")


@dataclass(frozen=True)
class Trace:
    """How one text came about."""

    source: str
    text: str
    rounds: tuple[tuple[Span, ...], ...]
    statistics: Statistics

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of token that occur, in the order of the legend."""
        found = {span.kind for spans in self.rounds for span in spans}
        return [kind for kind in KINDS if kind in found]

    @property
    def summary(self) -> str:
        """One line of figures."""
        done = self.statistics
        return (
            f"{done.tokens} tokens in {done.rounds} round{'s' * (done.rounds != 1)}: "
            f"{done.tokens_per_round:.2f} tokens a round"
        )


def trace_text(loaded: Translator | Generator, text: str, options: Mapping[str, Any]) -> Trace:
    """Decode one text in tandem and trace its rounds; drafts have a fixed length."""
    tokenizer, ends = loaded.tokenizer, loaded.backend.ends
    chosen = dict(options)
    if loaded.backend.drafts is not None and not chosen.get("draft_tokens"):
        chosen["draft_tokens"] = min(DRAFT_TOKENS, loaded.backend.drafts.longest)
    ((best, *_),) = loaded.results([text], **{k: v for k, v in chosen.items() if v})
    prompt: Sequence[int] = ()
    if isinstance(loaded, Generator):
        limit = DecodeSettings(max_new_tokens=options.get("max_new_tokens"))
        prompt = loaded.prompt_ids(loaded.requests([text], limit)[0])
    return trace(text, best.text, best.rounds, decode=tokenizer.decode, ends=ends, prompt=prompt)


def trace(
    source: str,
    text: str,
    rounds: Sequence[Round],
    *,
    decode: Decode,
    ends: Collection[int],
    prompt: Sequence[int] = (),
) -> Trace:
    """Trace the rounds of one text.

    Args:
        source: What was translated or continued.
        text: What came out.
        rounds: As the decoding loop reports them.
        decode: Turns tokens into text.
        ends: The tokens that end a text.
        prompt: Tokens that stood before the first round.
    """
    statistics, traced = Statistics(), []
    prefix = list(prompt)
    for one in rounds:
        spans = round_spans(one, prefix, decode, ends)
        emitted = [span for span in spans if span.kept]
        statistics.count(one, len(emitted))
        traced.append(spans)
        prefix += [span.token for span in emitted]
        if emitted and emitted[-1].ends:
            prefix = []  # the text goes on with another sentence, decoded on its own
    return Trace(source, text, tuple(traced), statistics)


def round_spans(
    one: Round, prefix: Sequence[int], decode: Decode, ends: Collection[int]
) -> tuple[Span, ...]:
    """Return the tokens of a round, refused ones too, that follows some others."""

    def span(kind: Kind, token: int, place: int, before: Sequence[int]) -> Span:
        text = added_text([*prefix, *before], token, decode, ends)
        sure = one.confidence[place - 1] if 0 < place <= len(one.confidence) else None
        return Span(text, kind, token, place, token in ends, sure)

    spans = [
        span(_draft_kind(one, place), token, place, one.drafted[: place - 1])
        for place, token in enumerate(one.drafted, start=1)
    ]
    if one.token is not None:
        spans.append(span(_own_kind(one), one.token, 0, one.drafted[: one.accepted]))
    return tuple(spans)


def _draft_kind(one: Round, place: int) -> Kind:
    if place <= one.accepted:
        return "accepted"
    return "refused" if place == one.accepted + 1 and one.token is not None else "dropped"


def _own_kind(one: Round) -> Kind:
    if not one.drafted:
        return "plain"
    return "correction" if one.accepted < len(one.drafted) else "bonus"


def added_text(before: Sequence[int], token: int, decode: Decode, ends: Collection[int]) -> str:
    """What the token adds; a token that changes the text before it is shown on its own."""
    if token in ends:
        return ""
    head = [earlier for earlier in before if earlier not in ends]
    start, whole = decode(head), decode([*head, token])
    return whole[len(start) :] if whole.startswith(start) else decode([token])
