"""Configs: accepted keys and values, and one error message for each mistake."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator, model_validator

from outrider import yaml12
from outrider.config import (
    Config,
    as_yaml,
    build_config,
    explain,
    load_config,
    read_yaml,
    show_value,
)
from outrider.errors import ConfigError


class Precision(Enum):
    """How numbers are kept."""

    FULL = "float32"
    HALF = "bfloat16"


class Full(Config):
    """Sees everything."""

    kind: Literal["full"] = "full"
    """Which pattern."""


class Sliding(Config):
    """Sees a window."""

    kind: Literal["sliding"] = "sliding"
    """Which pattern."""
    window: int = 256
    """Keys a query sees."""


class Corpus(Config):
    """One pair of files."""

    source: Path
    """The text to translate."""
    target: Path | None = None
    """Its translation."""


class Train(Config):
    """How to train."""

    steps: int = Field(default=1000, ge=1)
    """Updates of the weights."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 3e-4
    """The highest rate,
    reached after the warm-up."""
    seed: int | Literal["random"] = 1
    """Where the dice start."""
    betas: tuple[float, ...] = (0.9, 0.98)
    """Averages of Adam."""
    precision: Precision = Precision.FULL
    """How numbers are kept."""
    limits: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Lengths that are cut."""

    @field_validator("betas")
    @classmethod
    def _two_betas(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) != 2:
            raise ValueError(f"needs two numbers,\n got {len(value)}")
        return value


class Run(Config):
    """A whole run."""

    name: str
    """What it is called."""
    folder: Path = Path("runs")
    """Where it writes."""
    train: Train = Train()
    """How it trains."""
    corpora: tuple[Corpus, ...] = ()
    """What it reads."""
    attention: Annotated[Full | Sliding, Field(discriminator="kind")] = Full()
    """What a query sees."""
    extra: Corpus | None = None
    """More text."""
    free: dict[str, Any] = Field(default_factory=dict)
    """Anything."""

    @model_validator(mode="after")
    def _names_differ(self) -> "Run":
        if self.name == str(self.folder):
            raise ValueError("name and folder must differ")
        return self


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def complaint(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        build_config(Run, {"name": "a"} | values)
    return str(caught.value)


# --- reading ------------------------------------------------------------------------------------


def test_file_then_overrides_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrain:\n  steps: 5\n")
    run = load_config(Run, path, ["train.steps=7", "train.learning_rate=1e-2", "train.steps=8"])
    assert run.train == Train(steps=8, learning_rate=0.01)
    assert run.folder == Path("runs")


def test_overrides_change_any_key(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrain:\n")
    overrides = [
        "name=",
        "train.betas=[0.5, 0.6]",
        "corpora=[{source: x}]",
        "extra.source=a=b",
        "attention={kind: sliding, window: 4}",
        "free.deep.er=null",
        " train.seed =3",
        "train.precision=bfloat16",
    ]
    run = load_config(Run, path, overrides)
    assert run.name == ""
    assert run.train.betas == (0.5, 0.6)
    assert run.corpora == (Corpus(source=Path("x")),)
    assert run.extra == Corpus(source=Path("a=b"))
    assert run.attention == Sliding(window=4)
    assert run.free == {"deep": {"er": None}}
    assert run.train.seed == 3
    assert run.train.precision is Precision.HALF


def test_an_override_that_is_not_yaml_is_text(tmp_path: Path) -> None:
    assert load_config(Run, write(tmp_path, ""), ["name=[half"]).name == "[half"


def test_text_is_not_interpolated(tmp_path: Path) -> None:
    path = write(tmp_path, "name: ${HOME}/{x}/%s/$1/~\n")
    assert load_config(Run, path).name == "${HOME}/{x}/%s/$1/~"


def test_configs_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Train().steps = 2  # type: ignore[misc]


def test_an_empty_file_and_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "# only a comment\n")) == {}
    assert read_yaml(write(tmp_path, b"\xef\xbb\xbfname: a\n")) == {"name": "a"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- a\n- b\n", "must hold `key: value` lines, not a list"),
        ("42", "must hold `key: value` lines, not a int"),
        ("a: [1, 2\n", "is not YAML: line 2, column 1: "),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "is not YAML: line 4, column 3: key 'c' is given twice"),
        ("a: 1\n---\nb: 2\n", "is not YAML: line 2, column 1: but found another document"),
        (
            "a: !!python/object:os.system x\n",
            "is not YAML: line 1, column 4: could not determine a",
        ),
        ("a: " + "9" * 5000, "is not YAML: Exceeds the limit"),
        ("[" * 5000, "is not YAML: nested too deeply"),
        (b"a: \x00\n", "is not YAML: unacceptable character #x0000"),
        (b"a: \xff\n", "is not UTF-8 text: invalid start byte"),
    ],
)
def test_bad_files(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such config file"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


# --- overrides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("override", ["steps", "=5", "", "a..b=1", ".a=1", "a.=1"])
def test_overrides_are_written_key_equals_value(tmp_path: Path, override: str) -> None:
    path = write(tmp_path, "name: a")
    with pytest.raises(ConfigError) as caught:
        load_config(Run, path, [override])
    expected = "an override is written key=value, for example train.steps=500"
    assert str(caught.value) == f"{override}: {expected}"


def test_override_below_a_value_or_a_list(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ncorpora: [{source: x}]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(Run, path, ["name.first=b"])
    assert str(caught.value) == (
        "name.first: name is the single value 'a', it has no keys below it"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(Run, path, ["corpora.0.source=b"])
    assert str(caught.value) == ("corpora.0.source: corpora is a list; set it whole: corpora=[...]")


# --- wrong keys and values ----------------------------------------------------------------------

TRAIN_KEYS = "betas, learning_rate, limits, precision, seed, steps"
RUN_KEYS = "attention, corpora, extra, folder, free, name, train"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"train": {"setps": 5}},
            f"train.setps: unknown key (did you mean 'steps'?); accepted here: {TRAIN_KEYS}",
        ),
        (
            {"steps": 5},
            f"steps: unknown key (did you mean 'train.steps'?); accepted here: {RUN_KEYS}",
        ),
        ({"zzz": 5}, f"zzz: unknown key; accepted here: {RUN_KEYS}"),
        (
            {"corpora": [{"source": "a"}, {"sorce": "b"}]},
            "corpora.1.sorce: unknown key (did you mean 'source'?); accepted here: source, target",
        ),
        (
            {"extra": {"source": "a", "traget": "b"}},
            "extra.traget: unknown key (did you mean 'target'?); accepted here: source, target",
        ),
        (
            {"attention": {"kind": "sliding", "windw": 3}},
            "attention.windw: unknown key (did you mean 'window'?); accepted here: kind, window",
        ),
        ({"train": {"steps": "many"}}, "train.steps: got 'many', expected a valid integer, unable"),
        ({"train": {"steps": 0}}, "train.steps: got 0, expected greater than or equal to 1"),
        ({"train": {"steps": None}}, "train.steps: got None, expected a valid integer"),
        (
            {"train": {"learning_rate": float("nan")}},
            "train.learning_rate: got nan, expected a fin",
        ),
        ({"train": {"limits": [3, -1]}}, "train.limits.1: got -1, expected greater than or equal"),
        ({"train": {"limits": 3}}, "train.limits: got 3, expected a valid list"),
        ({"train": {"betas": [1.0]}}, "train.betas: needs two numbers, got 1"),
        (
            {"train": {"seed": "dice"}},
            "train.seed: got 'dice', expected a valid integer, unable to parse string as an "
            "integer or 'random'",
        ),
        (
            {"train": {"precision": "int3"}},
            "train.precision: got 'int3', expected 'float32' or 'bf",
        ),
        ({"train": 5}, "train: got 5, expected a section of `key: value` lines"),
        ({"train": None}, "train: got None, expected a section of `key: value` lines"),
        ({"free": [1]}, "free: got [1], expected a section of `key: value` lines"),
        ({"name": 2024}, "name: got 2024, expected a valid string (put it in quotes)"),
        ({"name": ["a"]}, "name: got ['a'], expected a valid string"),
        ({"extra": {}}, "extra.source: is required; add it to the config or pass it as key=value"),
        ({"corpora": [{}]}, "corpora.0.source: is required; add it to the config"),
        ({"folder": "a"}, "config: name and folder must differ"),
        ({"attention": {"kind": "wide"}}, "attention.kind: got 'wide', expected full or sliding"),
        ({"attention": {"window": 3}}, "attention.kind: is required, expected full or sliding"),
        ({"attention": "full"}, "attention: got 'full', expected a section of `key: value` lines"),
    ],
)
def test_mistakes_name_key_value_and_what_is_accepted(values: Any, sentence: str) -> None:
    assert complaint(values).startswith(sentence)


def test_a_missing_required_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^name: is required; add it to the config") as caught:
        build_config(Run, {})
    assert caught.value.key == "name"


def test_a_misspelt_key_is_reported_before_a_missing_one() -> None:
    with pytest.raises(ConfigError, match=r"^nmae: unknown key \(did you mean 'name'\?\)"):
        build_config(Run, {"nmae": "a"})


def test_a_prefix_precedes_every_key() -> None:
    with pytest.raises(ConfigError, match=r"^train\.steps: got 'x', expected a valid integer"):
        build_config(Train, {"steps": "x"}, prefix="train.")
    with pytest.raises(ConfigError, match=r"^runs\.a: name and folder must differ"):
        build_config(Run, {"name": "x", "folder": "x"}, prefix="runs.a.")


def test_values_that_are_not_a_mapping() -> None:
    with pytest.raises(ConfigError, match=r"^config: got 3, expected a section of `key: value`"):
        build_config(Run, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^1: got 1, expected a key that is text"):
        build_config(Run, {"name": "a", 1: 2})  # type: ignore[dict-item]


def test_long_values_are_shortened() -> None:
    assert len(complaint({"train": {"steps": "x" * 10_000}})) < 250


keys = st.sampled_from([*Run.model_fields, *Train.model_fields, "kind"]) | st.text(max_size=3)
anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(keys, inside, max_size=4),
    max_leaves=12,
)


@given(anything)
@example({"": None})
@example({"a\nb": None})
@example({"name": "x", "train": {"betas": {}}})
def test_any_text_is_a_config_or_gives_one_error_message(values: Any) -> None:
    error = None
    try:
        build_config(Run, values)
    except ConfigError as caught:
        error = caught
    assert error is None or str(error).startswith(f"{error.key}: ")
    assert error is None or len(str(error).splitlines()) == 1


# --- YAML ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("1e-4", 1e-4),
        ("2.", 2.0),
        (".5", 0.5),
        ("-1.5E+3", -1500.0),
        ("1_000", "1_000"),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("0x1G", "0x1G"),
        ("-7", -7),
        ("+7", 7),
        ("0x10", 16),
        ("12:30", "12:30"),
        ("2024-01-31", "2024-01-31"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("", None),
        ("~", None),
        ("'1'", "1"),
        ("=", "="),
    ],
)
def test_plain_words_follow_yaml_1_2(text: str, value: object) -> None:
    found = yaml12.parse(text)
    assert found == value
    assert type(found) is type(value)


def test_merge_keys_may_repeat_a_key() -> None:
    text = "a: &a {x: 1}\nc: {d: {<<: *a, x: 2}}\nb: {<<: *a, x: 3}\n"
    assert yaml12.parse(text)["c"] == {"d": {"x": 2}}
    assert yaml12.parse(text)["b"] == {"x": 3}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=10,
)


@given(plain)
@example("1e-4")
@example("no")
@example("1_0")
@example("0123")
@example("a\nb: c # d")
@example(1e-05)
def test_dumped_values_are_read_back_equal(value: Any) -> None:
    assert yaml12.parse(yaml12.dump(value)) == value
    line = yaml12.dump(value, flow=True)
    assert yaml12.parse(line) == value


@given(
    name=st.text(),
    folder=st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), min_size=1),
    steps=st.integers(1),
    rate=st.floats(0, 1, exclude_min=True),
    free=st.dictionaries(st.text(), plain),
)
def test_a_config_dumped_as_yaml_is_read_back_equal(
    name: str, folder: str, steps: int, rate: float, free: dict[str, Any]
) -> None:
    train = Train(steps=steps, learning_rate=rate, seed="random", precision=Precision.HALF)
    corpora = (Corpus(source=Path(folder)),)
    run = Run(name=f"n{name}", folder=Path(f"f{folder}"), train=train, corpora=corpora, free=free)
    assert build_config(Run, yaml12.parse(as_yaml(run))) == run


# --- explain ------------------------------------------------------------------------------------


def test_explain_lists_every_key_with_type_default_and_meaning() -> None:
    assert [tuple(field) for field in explain(Run)] == [
        ("name", "str", "required", "What it is called."),
        ("folder", "path", "runs", "Where it writes."),
        ("train", "section", "", "How it trains."),
        ("train.steps", "int >= 1", "1000", "Updates of the weights."),
        (
            "train.learning_rate",
            "float > 0 <= 1",
            "0.0003",
            "The highest rate, reached after the warm-up.",
        ),
        ("train.seed", "int | random", "1", "Where the dice start."),
        ("train.betas", "list[float]", "[0.9, 0.98]", "Averages of Adam."),
        ("train.precision", "float32 | bfloat16", "float32", "How numbers are kept."),
        ("train.limits", "list[int >= 0]", "[]", "Lengths that are cut."),
        ("corpora", "list of sections", "", "What it reads."),
        ("corpora[].source", "path", "required", "The text to translate."),
        ("corpora[].target", "path | null", "null", "Its translation."),
        ("attention", "section", "", "What a query sees."),
        ("attention.kind", "full", "full", "Which pattern."),
        ("attention.kind", "sliding", "sliding", "Which pattern."),
        ("attention.window", "int", "256", "Keys a query sees."),
        ("extra", "section", "null", "More text."),
        ("extra.source", "path", "required", "The text to translate."),
        ("extra.target", "path | null", "null", "Its translation."),
        ("free", "mapping", "{}", "Anything."),
    ]


@pytest.mark.parametrize("value", ["\n", "a\tb\nc", ["\n"], "plain", None])
def test_values_shown_on_one_line_are_read_back_equal(value: object) -> None:
    shown = show_value(value)
    assert "\n" not in shown
    assert yaml12.parse(shown) == value


def test_every_explained_default_is_accepted_as_an_override(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a")
    for field in explain(Run):
        if (
            field.default not in ("", "required")
            and "[]" not in field.key
            and "extra." not in field.key
        ):
            kind = ["attention.kind=sliding"] if field.key == "attention.window" else []
            load_config(Run, path, [*kind, f"{field.key}={field.default}"])
