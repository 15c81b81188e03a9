"""The table of decode options: Python, YAML, the command line, HTTP and the docs derive from it.

An option of another mode or strategy is refused. If `mode` or `strategy` is left out, the given
options determine it: `beams=5` alone means beam search, and `gamma=0.25` alone means tandem.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from reprlib import Repr
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from outrider.errors import ConfigError, nearest

Mode = Literal["ar", "tandem", "parallel"]
Strategy = Literal["greedy", "sample", "beam"]

STRATEGIES: dict[Mode, tuple[Strategy, ...]] = {
    "ar": ("greedy", "sample", "beam"),
    "tandem": ("greedy", "sample"),
    "parallel": ("greedy",),
}
"""Strategies of each mode."""
JSON_WHOLE = 2**53
"""Largest whole number that every JSON client reads exactly."""

THREADS = 1, 1_024
MOST_THREADS = THREADS[1]

short = Repr()
"""Shows values in messages."""
short.maxlong, short.maxstring, short.maxother = 40, 80, 80

_UNSET: Any = object()


def check_bound(key: str, value: Any, bounds: tuple[float, float]) -> Any:
    """Return a number within its bounds, or raise a `ConfigError`."""
    least, most = bounds
    if not least <= value <= most:
        raise ConfigError(key, f"got {short.repr(value)}, expected {_show(least)} to {_show(most)}")
    return value


def _show(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


class Sampling(NamedTuple):
    """How the model's distribution is changed before sampling."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


_EXPECTED: dict[Any, list[str]] = {
    bool: ["true", "false"],
    int: ["a whole number"],
    float: ["a number"],
    tuple[int, ...]: ["a list of token ids"],
}


@dataclass(frozen=True, kw_only=True)
class Option:
    """Metadata of one decode option."""

    name: str
    hint: Any
    """Type of its values."""
    kind: Any
    """The same without None."""
    default: Any
    help: str = ""
    """Text of the command line; empty if the command line lacks the option."""
    bounds: tuple[float, float] | None = None
    owners: tuple[Mode | Strategy, ...] = ()
    """Modes and strategies that it affects; empty for all."""
    http: bool = True
    """Whether requests have it."""
    http_most: int | None = None
    """Upper bound in requests, if it is lower."""

    def has_effect(self, mode: Mode, strategy: Strategy) -> bool:
        """Whether it changes the output or speed of a mode and strategy."""
        return not self.owners or mode in self.owners or strategy in self.owners

    def read(self, value: Any) -> Any:
        """Return a value with the type of the option, or raise a `ConfigError`."""
        if value is None and self.default is None:
            return None
        if self.bounds is not None and isinstance(value, Real):
            check_bound(self.name, value, self.bounds)
        if not self._fits(value):
            *others, last = _EXPECTED.get(self.kind) or map(repr, get_args(self.kind))
            expected = f"{', '.join(others)} or {last}" if others else last
            raise ConfigError(self.name, f"got {short.repr(value)}, expected {expected}")
        return value if isinstance(value, str) else (get_origin(self.kind) or self.kind)(value)

    def _fits(self, value: Any) -> bool:
        if get_origin(self.kind) is Literal:
            return value in get_args(self.kind)
        if get_origin(self.kind) is tuple:
            whole = isinstance(value, list | tuple)
            return whole and all(isinstance(token, Integral) for token in value)
        if isinstance(value, bool) or self.kind is bool:
            return type(value) is self.kind
        return isinstance(value, Real) and bool(self.kind(value) == value)


def option(default: Any, *owners: str, **facts: Any) -> Any:
    """Return a field of `DecodeConfig`; `facts` are fields of `Option`."""
    return field(default=_UNSET, metadata={"default": default, "owners": owners, **facts})


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Options of one decoding run; the same for every row, except what a `Request` overrides."""

    mode: Mode = option("ar", help="ar, tandem or parallel.")  # noqa: RUF009
    """ar generates token by token; tandem verifies blocks that a drafter proposes, with the same
    result; parallel writes the whole text at once."""
    strategy: Strategy = option("greedy", help="greedy, sample or beam.")  # noqa: RUF009
    """greedy takes the most likely token, sample draws one, beam keeps the most likely
    sequences."""
    max_new_tokens: int | None = option(
        None, help="Most new tokens for each input.", bounds=(1, 1_000_000)
    )
    """Most new tokens, the end token included. null: 3 for each source token and 30 more for a
    translation, 256 for a continuation. The positions of the model are a limit too; a prompt that
    leaves too few of them loses its beginning, down to half of the positions."""
    min_new_tokens: int = option(0, help="Fewest new tokens for each input.", bounds=(0, 1_000_000))
    """The end token is forbidden before this many tokens."""
    beams: int = option(4, "beam", help="Sequences that beam search keeps.", bounds=(1, 1_000))
    """Sequences kept for each input. Only for beam."""
    length_penalty: float = option(
        1.0, "beam", help="Beam search: above 1 prefers longer output.", bounds=(-10.0, 10.0)
    )
    """A finished sequence of n tokens scores (sum of log-probabilities) / n ** length_penalty. Only
    for beam."""
    temperature: float = option(
        1.0, "sample", help="Sampling: below 1 is more likely output.", bounds=(1e-6, 1e6)
    )
    """Divisor of the logits: below 1 the distribution is sharper, above 1 flatter. Only for
    sample."""
    top_k: int | None = option(
        None, "sample", help="Sampling: draw from the k most likely tokens.", bounds=(1, 1 << 24)
    )
    """Draw from the k most likely tokens. Only for sample."""
    top_p: float | None = option(
        None,
        "sample",
        help="Sampling: draw from the tokens with this much probability.",
        bounds=(1e-9, 1.0),
    )
    """Draw from the fewest tokens with this much probability. Only for sample."""
    seed: int = option(
        0,
        "sample",
        help="Sampling: input number i has seed + i.",
        bounds=(0, 2**64 - 1),
        http_most=JSON_WHOLE,
    )
    """Each row has its own random stream and does not depend on other rows. Only for sample."""
    scores: bool = option(False, http=False)
    """Report the log-probability of greedy and sampled output, which takes a softmax per step; beam
    search always reports it."""
    alignment: bool = option(False, http=False)
    """Align the tokens of translations with those of the source, which takes another pass."""
    suppress: tuple[int, ...] = option((), http=False)
    """Token ids that are never produced."""
    force_eos: bool = option(False, http=False)
    """The last token within `max_new_tokens` is the end token, as Marian's configs set."""
    gamma: float = option(
        0.0,
        "tandem",
        help="Tandem: weight of the drafter, from 0 (exact) to 1 (accept every draft).",
        bounds=(0.0, 1.0),
    )
    """Weight of the drafter: tokens are verified with (1 - gamma) p + gamma q, with p the model's
    and q the drafter's distribution. 0 is the model, 1 accepts every draft. Only for tandem."""
    draft: Literal["drafter", "source"] = option(
        "drafter", "tandem", help="Tandem: draft with the drafter, or copy from the source."
    )
    """drafter: drafts of the model's drafter. source: copies of the source text, or of a language
    model's prompt. The result is the same; gamma needs the drafter. Only for tandem."""
    draft_tokens: int | None = option(
        None,
        "tandem",
        help="Tandem: tokens drafted at once; by default learned while decoding.",
        bounds=(1, 1_024),
    )
    """Tokens drafted at once. null: learned while decoding from the time of each block and the
    confidence of the drafter. Only for tandem."""
    strict: bool = option(False, "tandem", help="Tandem: compute near-ties again, token by token.")
    """Compute near-ties again as token-by-token decoding does, so that rounding in low precision
    never changes the text. Only for tandem, with greedy and gamma 0."""
    decoder: Literal["ctc", "drafter"] | None = option(
        None, "parallel", help="Parallel: decode with ctc or drafter."
    )
    """Part of the model that decodes in parallel. null: the CTC decoder if the model has one; with
    `iterations` the drafter if it has one. Only for parallel."""
    iterations: int = option(
        0,
        "parallel",
        help="Parallel: passes that predict uncertain tokens again.",
        bounds=(0, 1_000),
    )
    """Further passes that predict the least certain tokens again (mask-predict); they hardly change
    the text of a CTC decoder. Only for parallel."""
    candidates: int = option(
        1,
        "sample",
        "parallel",
        help="Sampling, parallel: texts of which the most likely is taken.",
        bounds=(1, 1_000),
    )
    """Texts generated for each input; the one with the highest mean log-probability of its tokens
    is taken. Only for sample and for parallel."""
    n_best: int = option(
        1,
        "beam",
        "sample",
        help="Write `line ||| text ||| score` for the n best.",
        bounds=(1, 1_000),
        http=False,
    )
    """Sequences returned for each input, best first: at most `beams`, or as many as differ among
    the `candidates`. Only for beam and sample."""

    def __post_init__(self) -> None:
        values = vars(self)
        given = {key: OPTIONS[key].read(v) for key, v in values.items() if v is not _UNSET}
        values.update(_DEFAULTS | given)
        if given:
            values.update(_infer(given))
            self._check(given)

    def _check(self, given: Mapping[str, Any]) -> None:
        if self.strategy not in STRATEGIES[self.mode]:
            possible = " or ".join(map(repr, STRATEGIES[self.mode]))
            raise ConfigError(
                "strategy",
                f"{self.strategy!r} cannot be combined with mode {self.mode!r}; "
                f"set strategy to {possible}, or mode to 'ar'",
            )
        for name, value in given.items():
            if value is None or value is False:
                continue
            if not OPTIONS[name].has_effect(self.mode, self.strategy):
                raise ConfigError(name, f"{value!r} has no effect with {self._reason(name)}")
        if self.strict and (self.strategy == "sample" or self.gamma):
            raise ConfigError(
                "strict",
                "has no effect with sample or with gamma above 0; "
                "leave strict out, or decode greedily with gamma 0",
            )
        limit = "beams" if self.strategy == "beam" else "candidates"
        if self.n_best > (most := getattr(self, limit)):
            message = f"{self.n_best} is more than {limit} ({most}); raise {limit} or lower n_best"
            raise ConfigError("n_best", message)

    def _reason(self, name: str) -> str:
        """Return what makes an option ineffective, and the fix."""
        owners = OPTIONS[name].owners
        modes = [owner for owner in owners if owner in STRATEGIES]
        strategies = " or ".join(repr(o) for o in owners if o in STRATEGIES[self.mode])
        if modes and strategies:
            fix = f"set strategy to {strategies} or mode to {modes[0]!r}, or leave {name} out"
            return f"mode {self.mode!r} and strategy {self.strategy!r}; {fix}"
        if strategies:
            return f"strategy {self.strategy!r}; set strategy to {strategies} or leave {name} out"
        return f"mode {self.mode!r}; set mode to {(modes or ['ar'])[0]!r} or leave {name} out"

    def changed(self, **values: Any) -> "DecodeConfig":
        """Return a copy with some values changed, without a check."""
        copy = object.__new__(DecodeConfig)
        vars(copy).update(vars(self), **values)
        return copy

    @property
    def sampling(self) -> Sampling:
        """The distribution that tokens are drawn from."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def effective(self) -> dict[str, Any]:
        """The options with an effect; a saved config holds no others."""
        return {
            name: value
            for name, value in vars(self).items()
            if OPTIONS[name].has_effect(self.mode, self.strategy)
        }

    @property
    def given(self) -> dict[str, Any]:
        """The strategy, and effective options that differ from their defaults."""
        changed = {name: v for name, v in self.effective.items() if v != OPTIONS[name].default}
        return {"strategy": self.strategy, **changed}

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        """Make the class a section of run configs."""
        from pydantic_core import PydanticKnownError, ValidationError, core_schema

        def read(values: Any) -> DecodeConfig:
            if isinstance(values, cls):
                return values
            if not isinstance(values, Mapping):
                raise PydanticKnownError("dict_type")
            try:
                return decode_config(values)
            except ConfigError as error:
                context = {"error": error.message}
                place: Any = {"type": "value_error", "loc": (error.key,), "ctx": context}
                raise ValidationError.from_exception_data(cls.__name__, [place]) from error

        write = core_schema.plain_serializer_function_ser_schema(lambda config: config.effective)
        return core_schema.no_info_plain_validator_function(read, serialization=write)


def _row(name: str, hint: Any, facts: Mapping[str, Any]) -> Option:
    kind = get_args(hint)[0] if type(None) in get_args(hint) else hint
    return Option(name=name, hint=hint, kind=kind, **facts)


_HINTS = get_type_hints(DecodeConfig)
OPTIONS = {row.name: _row(row.name, _HINTS[row.name], row.metadata) for row in fields(DecodeConfig)}
_DEFAULTS = {name: row.default for name, row in OPTIONS.items()}


def decode_config(values: Mapping[str, Any]) -> DecodeConfig:
    """Validate options by name."""
    for name in values:
        if name not in OPTIONS:
            accepted = sorted(OPTIONS)
            hint = nearest(str(name), accepted)
            message = f"unknown key{hint}; accepted here: {', '.join(accepted)}"
            raise ConfigError(str(name), message)
    return DecodeConfig(**values)


def _infer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mode and strategy that the options determine."""
    modes, strategies = [], []
    for name, value in given.items():
        match OPTIONS[name].owners:
            case (owner,) if owner not in STRATEGIES:
                strategies.append(owner)
            case (owner,) if value is not None and value is not False:
                modes.append(owner)
    if not strategies and "strategy" not in given:
        modes += ["parallel"] if "candidates" in given else []
        strategies += ["beam"] if "n_best" in given else []
    mode = given.get("mode", (modes or ["ar"])[0])
    possible = strategies and strategies[0] in STRATEGIES[mode]
    # Where the mode forbids the strategy, the option itself is refused.
    strategy = given.get("strategy", strategies[0] if possible else "greedy")
    return {"mode": mode, "strategy": strategy}
