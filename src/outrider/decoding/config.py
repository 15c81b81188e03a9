"""Decode options of every mode and strategy.

An option of another mode or strategy is refused. If `mode` or `strategy` is left out, the given
options determine it: `beams: 5` alone means beam search, and `gamma: 0.25` alone means tandem.
"""

from typing import Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from outrider.bounds import BOUNDS, broken_bound
from outrider.config import Config
from outrider.decoding.sampling import Sampling
from outrider.decoding.settings import DecodeSettings, Mode, Strategy

_STRATEGIES: dict[Mode, tuple[Strategy, ...]] = {
    "ar": ("greedy", "sample", "beam"),
    "tandem": ("greedy", "sample"),
    "parallel": ("greedy",),
}

_OWNER: dict[str, Strategy] = {
    "beams": "beam",
    "length_penalty": "beam",
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "seed": "sample",
}

_MODE_OWNER: dict[str, Mode] = {
    "gamma": "tandem",
    "draft_tokens": "tandem",
    "strict": "tandem",
    "decoder": "parallel",
    "iterations": "parallel",
}

_BOUNDED = (
    *(*_OWNER, *_MODE_OWNER),
    *("max_new_tokens", "min_new_tokens", "candidates", "n_best"),
)


def _bounded(key: str, default: Any) -> Any:
    """Return a field with the bounds of its key, which `outrider config --explain` shows."""
    least, most = BOUNDS[key]
    return Field(default=default, ge=least, le=most)


def _says_something(value: Any) -> bool:
    return value is not None and value is not False


class DecodeConfig(Config):
    """Settings of one decoding run; the same for every row, except what a `Request` overrides."""

    mode: Mode = "ar"
    """ar writes token by token; tandem lets a drafter guess blocks that the model then checks, with
    the same result; parallel writes the whole text at once."""
    strategy: Strategy = "greedy"
    """greedy takes the likeliest token, sample draws one, beam keeps the likeliest sequences."""
    max_new_tokens: int | None = _bounded("max_new_tokens", None)
    """Tokens to add at most, the end token included. null: a translation may take 3 tokens for
    each of the source and 30 more, a continuation 256; never more than the model can count to. Of a
    prompt that leaves too little room the beginning is dropped, down to half of the model's
    positions; what is asked for beyond that is not written."""
    min_new_tokens: int = _bounded("min_new_tokens", 0)
    """The end token is forbidden before this many tokens."""
    beams: int = _bounded("beams", 4)
    """Sequences kept in flight for each input. Only for beam."""
    length_penalty: float = _bounded("length_penalty", 1.0)
    """A finished sequence of n tokens scores (sum of log-probabilities) / n ** length_penalty.
    Only for beam."""
    candidates: int = _bounded("candidates", 1)
    """Texts drawn or written for each input, of which the one the model finds likeliest is taken,
    by the mean log-probability of its tokens. Only for sample and for parallel."""
    n_best: int = _bounded("n_best", 1)
    """Sequences returned for each input, best first: at most `beams`, or as many as differ among
    the `candidates`. Only for beam and sample."""
    temperature: float = _bounded("temperature", 1.0)
    """Logits are divided by it: under 1 is more cautious, over 1 more adventurous. Only for
    sample."""
    top_k: int | None = _bounded("top_k", None)
    """Draw from the k likeliest tokens only. Only for sample."""
    top_p: float | None = _bounded("top_p", None)
    """Draw from the fewest tokens that hold this much probability. Only for sample."""
    seed: int = _bounded("seed", 0)
    """Each row draws from its own random stream, so neighbours never change it. Only for sample."""
    scores: bool = False
    """Report the log-probability of greedy and sampled output too (costs a softmax a step); beam
    search always reports it."""
    suppress: tuple[int, ...] = ()
    """Token ids that are never produced."""
    force_eos: bool = False
    """The last token a row may have is the end token, as Marian's generation configs query."""

    gamma: float = _bounded("gamma", 0.0)
    """Trust in the drafter: a token is judged by (1 - gamma) p + gamma q, with p the model's and q
    the drafter's distribution. 0 is exactly the model, 1 takes every draft. Only for tandem."""
    draft_tokens: int | None = _bounded("draft_tokens", None)
    """Tokens guessed at once. null: chosen as it goes from what a block costs on this machine and
    how sure the drafter is. Only for tandem."""
    strict: bool = False
    """Compute near-ties again as token-by-token decoding does, so that rounding in low precision
    never changes the text. Only for tandem, with greedy and gamma 0."""
    decoder: Literal["ctc", "drafter"] | None = None
    """Who writes in parallel. null: for one pass the CTC decoder where the model has one; with
    `iterations` the drafter, which was trained to look again, where it has one. Only for
    parallel."""
    iterations: int = _bounded("iterations", 0)
    """Further passes that write the least certain tokens again (mask-predict). A CTC decoder is
    given few of its own tokens in between, so they hardly change its text. Only for parallel."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_from_settings(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        modes = [_MODE_OWNER[n] for n in values if n in _MODE_OWNER and _says_something(values[n])]
        strategies = [_OWNER[name] for name in values if name in _OWNER]
        if not strategies and "strategy" not in values:
            modes += ["parallel"] if "candidates" in values else []
            strategies += ["beam"] if "n_best" in values else []
        if modes:
            filled.setdefault("mode", modes[0])
        mode = filled.get("mode", "ar")
        # Where the mode forbids the strategy, the setting itself is refused below.
        if strategies and (mode not in list(_STRATEGIES) or strategies[0] in _STRATEGIES[mode]):
            filled.setdefault("strategy", strategies[0])
        return filled

    @field_validator(*_BOUNDED, mode="before")
    @classmethod
    def _keeps_its_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        wrong = broken_bound(str(info.field_name), value) if info.field_name in BOUNDS else None
        if wrong is not None:
            raise ValueError(wrong)
        return value

    @field_validator("strategy")
    @classmethod
    def _suits_the_mode(cls, strategy: Strategy, info: ValidationInfo) -> Strategy:
        mode: Mode = info.data.get("mode", "ar")
        if strategy not in _STRATEGIES[mode]:
            possible = " or ".join(map(repr, _STRATEGIES[mode]))
            raise ValueError(
                f"{strategy!r} does not go with mode {mode!r}; "
                f"set strategy to {possible}, or mode to 'ar'"
            )
        return strategy

    @field_validator(*_OWNER)
    @classmethod
    def _has_an_effect(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        mode, strategy, owner = info.data.get("mode"), info.data.get("strategy"), _OWNER[name]
        if value is None or mode is None or strategy in (None, owner):
            return value
        if owner not in _STRATEGIES[mode]:
            fix = f"mode {mode!r}; set mode to 'ar' or leave {name} out"
        else:
            fix = f"strategy {strategy!r}; set strategy to {owner!r} or leave {name} out"
        raise ValueError(f"{value!r} has no effect with {fix}")

    @field_validator(*_MODE_OWNER)
    @classmethod
    def _belongs_to_the_mode(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        mode, owner = info.data.get("mode"), _MODE_OWNER[name]
        if _says_something(value) and mode not in (None, owner):
            raise ValueError(
                f"{value!r} has no effect with mode {mode!r}; "
                f"set mode to {owner!r} or leave {name} out"
            )
        return value

    @field_validator("strict")
    @classmethod
    def _has_ties_to_compute(cls, strict: bool, info: ValidationInfo) -> bool:
        if strict and (info.data.get("strategy") == "sample" or info.data.get("gamma")):
            raise ValueError(
                "has no effect with sample or with gamma above 0; "
                "leave strict out, or decode greedily with gamma 0"
            )
        return strict

    @field_validator("candidates")
    @classmethod
    def _has_texts_to_choose_from(cls, candidates: int, info: ValidationInfo) -> int:
        mode, strategy = info.data.get("mode"), info.data.get("strategy")
        if mode in (None, "parallel") or strategy in (None, "sample"):
            return candidates
        fix = "set strategy to 'sample' or mode to 'parallel', or leave candidates out"
        raise ValueError(
            f"{candidates} has no effect with mode {mode!r} and strategy {strategy!r}; {fix}"
        )

    @field_validator("n_best")
    @classmethod
    def _has_so_many(cls, n_best: int, info: ValidationInfo) -> int:
        strategy = info.data.get("strategy")
        if strategy is None or (strategy == "greedy" and info.data.get("mode") is None):
            return n_best
        if strategy == "greedy":
            fix = "set strategy to 'beam' or 'sample' or leave n_best out"
            raise ValueError(f"{n_best} has no effect with strategy 'greedy'; {fix}")
        limit = "beams" if strategy == "beam" else "candidates"
        most = info.data.get(limit, n_best)
        if n_best > most:
            raise ValueError(
                f"{n_best} is more than {limit} ({most}); raise {limit} or lower n_best"
            )
        return n_best

    @property
    def settings(self) -> DecodeSettings:
        """The values alone, for loops."""
        return DecodeSettings(**{name: getattr(self, name) for name in type(self).model_fields})

    def changed(self, **values: Any) -> DecodeSettings:
        """Return the values alone, some of them changed."""
        return self.settings.changed(**values)

    @property
    def sampling(self) -> Sampling:
        """How the model's distribution is shaped before a token is drawn."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @model_serializer(mode="wrap")
    def _own_settings(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what has no effect, so that a saved config can be read again."""
        values: dict[str, Any] = serialize(self)
        return {
            name: value
            for name, value in values.items()
            if _OWNER.get(name, self.strategy) == self.strategy
            and _MODE_OWNER.get(name, self.mode) == self.mode
            and (name != "candidates" or self.mode == "parallel" or self.strategy == "sample")
            and (name != "n_best" or self.strategy != "greedy")
        }
