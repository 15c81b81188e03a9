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


def _is_set(value: Any) -> bool:
    return value is not None and value is not False


class DecodeConfig(Config):
    """Settings of one decoding run; the same for every row, except what a `Request` overrides."""

    mode: Mode = "ar"
    """ar generates token by token; tandem verifies blocks that a drafter proposes, with the same
    result; parallel writes the whole text at once."""
    strategy: Strategy = "greedy"
    """greedy takes the most likely token, sample draws one, beam keeps the most likely
    sequences."""
    max_new_tokens: int | None = _bounded("max_new_tokens", None)
    """Most new tokens, the end token included. null: 3 for each source token and 30 more for a
    translation, 256 for a continuation. The positions of the model are a limit too; a prompt that
    leaves too few of them loses its beginning, down to half of the positions."""
    min_new_tokens: int = _bounded("min_new_tokens", 0)
    """The end token is forbidden before this many tokens."""
    beams: int = _bounded("beams", 4)
    """Sequences kept for each input. Only for beam."""
    length_penalty: float = _bounded("length_penalty", 1.0)
    """A finished sequence of n tokens scores (sum of log-probabilities) / n ** length_penalty.
    Only for beam."""
    candidates: int = _bounded("candidates", 1)
    """Texts generated for each input; the one with the highest mean log-probability of its tokens
    is taken. Only for sample and for parallel."""
    n_best: int = _bounded("n_best", 1)
    """Sequences returned for each input, best first: at most `beams`, or as many as differ among
    the `candidates`. Only for beam and sample."""
    temperature: float = _bounded("temperature", 1.0)
    """Divisor of the logits: below 1 the distribution is sharper, above 1 flatter. Only for
    sample."""
    top_k: int | None = _bounded("top_k", None)
    """Draw from the k most likely tokens. Only for sample."""
    top_p: float | None = _bounded("top_p", None)
    """Draw from the fewest tokens with this much probability. Only for sample."""
    seed: int = _bounded("seed", 0)
    """Each row has its own random stream and does not depend on other rows. Only for sample."""
    scores: bool = False
    """Report the log-probability of greedy and sampled output, which takes a softmax per step; beam
    search always reports it."""
    suppress: tuple[int, ...] = ()
    """Token ids that are never produced."""
    force_eos: bool = False
    """The last token within `max_new_tokens` is the end token, as Marian's configs set."""

    gamma: float = _bounded("gamma", 0.0)
    """Weight of the drafter: tokens are verified with (1 - gamma) p + gamma q, with p the model's
    and q the drafter's distribution. 0 is the model, 1 accepts every draft. Only for tandem."""
    draft_tokens: int | None = _bounded("draft_tokens", None)
    """Tokens drafted at once. null: learned while decoding from the time of each block and the
    confidence of the drafter. Only for tandem."""
    strict: bool = False
    """Compute near-ties again as token-by-token decoding does, so that rounding in low precision
    never changes the text. Only for tandem, with greedy and gamma 0."""
    decoder: Literal["ctc", "drafter"] | None = None
    """Part of the model that decodes in parallel. null: the CTC decoder if the model has one; with
    `iterations` the drafter if it has one. Only for parallel."""
    iterations: int = _bounded("iterations", 0)
    """Further passes that predict the least certain tokens again (mask-predict); they hardly change
    the text of a CTC decoder. Only for parallel."""

    @model_validator(mode="before")
    @classmethod
    def _infer_mode_and_strategy(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        modes = [_MODE_OWNER[n] for n in values if n in _MODE_OWNER and _is_set(values[n])]
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
    def _check_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        wrong = broken_bound(str(info.field_name), value) if info.field_name in BOUNDS else None
        if wrong is not None:
            raise ValueError(wrong)
        return value

    @field_validator("strategy")
    @classmethod
    def _check_strategy(cls, strategy: Strategy, info: ValidationInfo) -> Strategy:
        mode: Mode = info.data.get("mode", "ar")
        if strategy not in _STRATEGIES[mode]:
            possible = " or ".join(map(repr, _STRATEGIES[mode]))
            raise ValueError(
                f"{strategy!r} cannot be combined with mode {mode!r}; "
                f"set strategy to {possible}, or mode to 'ar'"
            )
        return strategy

    @field_validator(*_OWNER)
    @classmethod
    def _check_strategy_option(cls, value: Any, info: ValidationInfo) -> Any:
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
    def _check_mode_option(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        mode, owner = info.data.get("mode"), _MODE_OWNER[name]
        if _is_set(value) and mode not in (None, owner):
            raise ValueError(
                f"{value!r} has no effect with mode {mode!r}; "
                f"set mode to {owner!r} or leave {name} out"
            )
        return value

    @field_validator("strict")
    @classmethod
    def _check_strict(cls, strict: bool, info: ValidationInfo) -> bool:
        if strict and (info.data.get("strategy") == "sample" or info.data.get("gamma")):
            raise ValueError(
                "has no effect with sample or with gamma above 0; "
                "leave strict out, or decode greedily with gamma 0"
            )
        return strict

    @field_validator("candidates")
    @classmethod
    def _check_candidates(cls, candidates: int, info: ValidationInfo) -> int:
        mode, strategy = info.data.get("mode"), info.data.get("strategy")
        if mode in (None, "parallel") or strategy in (None, "sample"):
            return candidates
        fix = "set strategy to 'sample' or mode to 'parallel', or leave candidates out"
        raise ValueError(
            f"{candidates} has no effect with mode {mode!r} and strategy {strategy!r}; {fix}"
        )

    @field_validator("n_best")
    @classmethod
    def _check_n_best(cls, n_best: int, info: ValidationInfo) -> int:
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
        """The values without validation, for decoding."""
        return DecodeSettings(**{name: getattr(self, name) for name in type(self).model_fields})

    def changed(self, **values: Any) -> DecodeSettings:
        """Return the values, some of them changed."""
        return self.settings.changed(**values)

    @property
    def sampling(self) -> Sampling:
        """The distribution that tokens are drawn from."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @model_serializer(mode="wrap")
    def _serialize_effective(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out options without effect, which a saved config must not hold."""
        values: dict[str, Any] = serialize(self)
        return {
            name: value
            for name, value in values.items()
            if _OWNER.get(name, self.strategy) == self.strategy
            and _MODE_OWNER.get(name, self.mode) == self.mode
            and (name != "candidates" or self.mode == "parallel" or self.strategy == "sample")
            and (name != "n_best" or self.strategy != "greedy")
        }
