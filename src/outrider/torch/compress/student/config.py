"""The YAML config of a student: teacher, text, shape and training."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from outrider.config import Config
from outrider.data.config import CleanConfig
from outrider.errors import ConfigError
from outrider.evaluation.metrics import check_tokenizer
from outrider.run_config import Numbers, TrainConfig
from outrider.torch.compress.student.endpoint import EndpointConfig


def _as_mapping(value: Any) -> Any:
    """Convert a file name, or a list of them, to a mapping without limits."""
    if isinstance(value, str):
        value = [value]
    return dict.fromkeys(value) if isinstance(value, list | tuple) else value


Text = Annotated[
    dict[str, Annotated[int, Field(ge=1)] | None], BeforeValidator(_as_mapping), Field(min_length=1)
]
LayerCount = Annotated[int, Field(ge=1)]


class TranslateConfig(Config):
    """How the teacher translates the text."""

    strategy: Literal["greedy", "beam", "sample"] = "greedy"
    """greedy is the fastest and easiest to learn from; beam is slightly better and much slower;
    sample draws several texts and requires consensus.
    """
    beams: int = Field(default=4, ge=1)
    """Beam width, with strategy beam."""
    temperature: float = Field(default=0.5, gt=0)
    """Temperature, with strategy sample."""
    consensus: int | None = Field(default=None, ge=2)
    """Number of beams or samples from which to take the text most similar to the others (by chrF)
    instead of the most probable.
    """
    min_score: float | None = Field(default=None, le=0)
    """Drop translations with a lower mean log-probability per token, of which the teacher is
    unsure. -1.5 is a probability of about 0.22 per token.
    """
    dtype: str = "auto"
    """int8 on the native core, float32, bfloat16 or float16; auto takes the fastest available."""

    @model_validator(mode="after")
    def _several(self) -> Self:
        if self.strategy == "sample" and self.consensus is None:
            raise ConfigError("translate.consensus", "is required to choose one of several samples")
        if self.strategy == "greedy" and self.consensus is not None:
            raise ConfigError("translate.consensus", "greedy finds one text; use beam or sample")
        if self.strategy == "beam" and (self.consensus or 0) > self.beams:
            message = f"got {self.consensus}, but there are {self.beams} beams"
            raise ConfigError("translate.consensus", message)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Decode options for `distill`."""
        options: dict[str, Any] = {"strategy": self.strategy}
        if self.strategy == "beam":
            options |= {"beams": self.beams}
        if self.strategy == "sample":
            options |= {"temperature": self.temperature, "candidates": self.consensus}
        if self.consensus is not None:
            options |= {"n_best": self.consensus, "consensus": True}
        if self.min_score is not None:
            options |= {"min_score": self.min_score}
        return options


class CleanTranslations(CleanConfig):
    """Which translations are dropped: too long, too short, repetitive, or equal to the source."""

    on_bad_text: Literal["error", "drop"] = "drop"
    """Translations with invalid characters, such as a NUL byte: drop them, or stop."""
    max_tokens: int = Field(default=128, ge=1)
    """Longest side kept, in tokens."""
    drop_equal: bool = True
    """Drop translations equal to their source."""
    max_repeats: int | None = Field(default=4, ge=1)
    """Maximum consecutive repetitions of a phrase in a translation, unless the source repeats more.
    """


class ShapeConfig(Config):
    """Size of the student relative to its teacher."""

    encoder: LayerCount | Numbers | None = None
    """Layers of the encoder, counted from 0, in this order; or their number, keeping those whose
    removal increases the validation loss most; null for all.
    """
    decoder: LayerCount | Numbers | None = None
    """Layers of the decoder, likewise."""
    feedforward: int | None = Field(default=None, ge=1)
    """Inner units of every feed-forward, keeping those that the others cannot replace; null for
    all.
    """
    words: int | None = Field(default=None, ge=8)
    """Tokens of each side: the most frequent of the text, and all characters of the source; null
    for all.
    """
    int4: tuple[Literal["embeddings", "feedforward"], ...] = ()
    """Parts stored in 4 bits instead of int8: embeddings are rounded and frozen before training,
    feed-forwards are rounded after it.
    """
    positions: int | None = Field(default=None, ge=1)
    """Maximum tokens of a text; null for the teacher's."""
    freeze: tuple[str, ...] | None = None
    """Frozen parts: embeddings, source_embeddings, encoder, decoder, head, or one layer
    (encoder.0).
    """


class TestConfig(Config):
    """A test set."""

    source: str
    """One sentence per line, plain or .gz."""
    reference: str
    """Its translations, line by line."""
    tokenize: Annotated[str, AfterValidator(check_tokenizer)] = "auto"
    """SacreBLEU's tokenizer; auto takes that of the references' script."""
    split: bool | None = None
    """Translate a line sentence by sentence; null for the model's default."""


class StudentConfig(Config):
    """A small model that is trained on translations of a large one."""

    name: str
    """Name of the student, for example in its card."""
    folder: str
    """Output folder; the trained student is in its `model`."""
    work: str | None = None
    """Folder of the teacher's translations, which students may share; by default `work` in the
    folder.
    """
    teacher: str | EndpointConfig
    """Model folder, `.argosmodel` file or Hub name of any translation model Outrider reads. Or the
    address of a server, `{url: ..., model: ...}`; the student then needs a `start`.
    """
    start: str | None = None
    """Model the student starts from, if not its teacher: a model folder, `.argosmodel` file or Hub
    name, for example an earlier student.
    """
    text: Text
    """Files in the source language, plain or .gz, whose lines are split into sentences: a list, or
    a mapping from file to the number of its first sentences to use, null for all.
    """
    root: str | None = None
    """Base folder of relative files; `$NAME` is read from the environment."""
    sentences: int | None = Field(default=None, ge=1)
    """Number of sentences to use, evenly spaced over the text; null for all."""
    valid_rows: int = Field(default=500, ge=1)
    """Held-out sentences, for validation."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """Seed of the data order and dropout."""
    attribution: str | None = None
    """Origin and licence of teacher and text, for the model card."""
    translate: TranslateConfig = TranslateConfig()
    """How the teacher translates."""
    clean: CleanTranslations = CleanTranslations()
    """Which translations are dropped."""
    shape: ShapeConfig = ShapeConfig()
    """Size of the student relative to its teacher."""
    word_level: float = Field(default=0.0, ge=0, le=1)
    """Weight of the teacher's token probabilities in the loss; the rest is the text it wrote. The
    teacher runs in every update, which takes about half as long again.
    """
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout in training. A student that sees a sentence once or twice does not overfit."""
    train: TrainConfig = TrainConfig()
    """Training."""
    tests: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], TestConfig] = Field(
        default_factory=dict
    )
    """Test sets by name, on which teacher and student are compared; speed is measured on the first.
    """

    @model_validator(mode="after")
    def _one_teacher(self) -> Self:
        if self.start is None and isinstance(self.teacher, EndpointConfig):
            raise ConfigError("start", "is required: a remote teacher has no layers to start from")
        if self.tests and isinstance(self.teacher, EndpointConfig):
            message = "a remote teacher is not measured; use outrider evaluate instead"
            raise ConfigError("tests", message)
        if self.word_level and isinstance(self.teacher, EndpointConfig):
            message = "needs a local teacher; a remote one returns only its text"
            raise ConfigError("word_level", message)
        if self.train.teacher is not None:
            raise ConfigError("train.teacher", "is set by word_level; set that instead")
        return self
