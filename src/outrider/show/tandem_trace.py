"""A tandem decoding round by round: which tokens were drafted, and which of them were kept.

The text of a token is what it adds to the text before it, so that white space is right.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider.decoding import DecodeConfig, Round, Statistics
from outrider.runtime import Generator, Translator

Kind = Literal["accepted", "refused", "dropped", "correction", "bonus", "plain"]

KINDS: dict[Kind, str] = {
    "accepted": "drafted and accepted",
    "refused": "refused",
    "dropped": "dropped with it",
    "correction": "corrected",
    "bonus": "bonus",
    "plain": "not drafted",
}
"""Names in a legend."""

DRAFT_TOKENS = 8
"""Default length of drafts."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Span:
    """A token of a round."""

    text: str
    kind: Kind
    token: int
    place: int
    """Its position in the draft, from 1; 0 for a token of the model itself."""
    ends: bool = False
    """Whether it is the end token, which has no text."""
    confidence: float | None = None
    """The drafter's estimate that it is accepted, if recorded."""

    @property
    def label(self) -> str:
        """Its text without surrounding space; a symbol for white space."""
        if self.ends:
            return "end"
        return self.text.strip() or ("↵" if "\n" in self.text else "␣")

    @property
    def kept(self) -> bool:
        """Whether it is part of the final text."""
        return self.kind not in ("refused", "dropped")


@dataclass(frozen=True)
class Trace:
    """How one text was decoded."""

    source: str
    text: str
    rounds: tuple[tuple[Span, ...], ...]
    statistics: Statistics

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of token that occur, in the order of the legend."""
        kinds = {span.kind for spans in self.rounds for span in spans}
        return [kind for kind in KINDS if kind in kinds]

    @property
    def summary(self) -> str:
        """A line of figures."""
        stats = self.statistics
        return (
            f"{stats.tokens} tokens in {stats.rounds} round{'s' * (stats.rounds != 1)}: "
            f"{stats.tokens_per_round:.2f} tokens a round"
        )


def trace_text(loaded: Translator | Generator, text: str, options: Mapping[str, Any]) -> Trace:
    """Decode one text in tandem with drafts of fixed length, and trace its rounds."""
    tokenizer, ends = loaded.tokenizer, loaded.backend.ends
    settings = dict(options)
    if loaded.backend.drafts is not None and not settings.get("draft_tokens"):
        settings["draft_tokens"] = min(DRAFT_TOKENS, loaded.backend.drafts.longest)
    ((best, *_),) = loaded.results([text], **{k: v for k, v in settings.items() if v})
    prompt: Sequence[int] = ()
    if isinstance(loaded, Generator):
        limit = DecodeConfig(max_new_tokens=options.get("max_new_tokens"))
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
        source: The input text.
        text: The output text.
        rounds: As reported by the decoding loop.
        decode: Converts tokens to text.
        ends: The end tokens.
        prompt: Tokens before the first round.
    """
    statistics, traced = Statistics(), []
    prefix = list(prompt)
    for round_ in rounds:
        spans = round_spans(round_, prefix, decode, ends)
        emitted = [span for span in spans if span.kept]
        statistics.count(round_, len(emitted))
        traced.append(spans)
        prefix += [span.token for span in emitted]
        if emitted and emitted[-1].ends:
            prefix = []  # the next sentence is decoded separately
    return Trace(source, text, tuple(traced), statistics)


def round_spans(
    round_: Round, prefix: Sequence[int], decode: Decode, ends: Collection[int]
) -> tuple[Span, ...]:
    """Return the tokens of a round after `prefix`, including refused ones."""

    def span(kind: Kind, token: int, place: int, before: Sequence[int]) -> Span:
        text = added_text([*prefix, *before], token, decode, ends)
        confidence = round_.confidence[place - 1] if 0 < place <= len(round_.confidence) else None
        return Span(text, kind, token, place, token in ends, confidence)

    spans = [
        span(_draft_kind(round_, place), token, place, round_.drafted[: place - 1])
        for place, token in enumerate(round_.drafted, start=1)
    ]
    if round_.token is not None:
        spans.append(span(_own_kind(round_), round_.token, 0, round_.drafted[: round_.accepted]))
    return tuple(spans)


def _draft_kind(round_: Round, place: int) -> Kind:
    if place <= round_.accepted:
        return "accepted"
    return "refused" if place == round_.accepted + 1 and round_.token is not None else "dropped"


def _own_kind(round_: Round) -> Kind:
    if not round_.drafted:
        return "plain"
    return "correction" if round_.accepted < len(round_.drafted) else "bonus"


def added_text(before: Sequence[int], token: int, decode: Decode, ends: Collection[int]) -> str:
    """Return the text a token adds; a token that changes earlier text is decoded alone."""
    if token in ends:
        return ""
    head = [earlier for earlier in before if earlier not in ends]
    prefix, whole = decode(head), decode([*head, token])
    return whole[len(prefix) :] if whole.startswith(prefix) else decode([token])
