"""One YAML file describes one student: its teacher, the text, its shape, how it learns."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from outrider.config import Config
from outrider.data.config import CleanConfig
from outrider.errors import ConfigError
from outrider.evaluation.metrics import check_tokenizer
from outrider.run_config import Numbers, TrainConfig
from outrider.torch.compress.student.endpoint import EndpointConfig

__all__ = ["CleanTranslations", "ShapeConfig", "StudentConfig", "TestConfig", "TranslateConfig"]


def _as_mapping(value: Any) -> Any:
    """Read one name, or a list of them, as files that are taken whole."""
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
    """greedy is fastest and easiest to learn from; beam is a little better and far slower; sample
    draws several and so needs consensus."""
    beams: int = Field(default=4, ge=1)
    """With beam: sequences in flight for each sentence."""
    temperature: float = Field(default=0.5, gt=0)
    """With sample: how far the draws may stray."""
    consensus: int | None = Field(default=None, ge=2)
    """Of so many beams, or drawn texts, take the one that the others are most like (by chrF), and
    not the likeliest."""
    min_score: float | None = Field(default=None, le=0)
    """Leave out translations whose tokens have a lower mean log-probability: what the teacher was
    not sure of itself. -1.5 is about one chance in four and a half for each token."""
    dtype: str = "auto"
    """int8 on the native core, float32, bfloat16 or float16; auto takes the fastest there is."""

    @model_validator(mode="after")
    def _several(self) -> Self:
        if self.strategy == "sample" and self.consensus is None:
            raise ConfigError("translate.consensus", "is required to choose one of several draws")
        if self.strategy == "greedy" and self.consensus is not None:
            raise ConfigError("translate.consensus", "greedy finds one text; use beam or sample")
        if self.strategy == "beam" and (self.consensus or 0) > self.beams:
            message = f"got {self.consensus}, but there are {self.beams} beams"
            raise ConfigError("translate.consensus", message)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What `distill` is told."""
        found: dict[str, Any] = {"strategy": self.strategy}
        if self.strategy == "beam":
            found |= {"beams": self.beams}
        if self.strategy == "sample":
            found |= {"temperature": self.temperature, "candidates": self.consensus}
        if self.consensus is not None:
            found |= {"n_best": self.consensus, "consensus": True}
        if self.min_score is not None:
            found |= {"min_score": self.min_score}
        return found


class CleanTranslations(CleanConfig):
    """Which translations are left out: those that are too long, say too little, say it over and
    over, or are no more than the source again."""

    on_bad_text: Literal["error", "drop"] = "drop"
    """What the teacher says that is no text, such as a NUL byte: drop it, or stop."""
    max_tokens: int = Field(default=128, ge=1)
    """Longest side kept, in tokens."""
    drop_equal: bool = True
    """Drop sentences that the teacher only repeats."""
    max_repeats: int | None = Field(default=4, ge=1)
    """Most times that a translation may say the same few words in a row, unless the source does."""


class ShapeConfig(Config):
    """What the student keeps of its teacher."""

    encoder: LayerCount | Numbers | None = None
    """Layers of the encoder, counted from 0, in this order; or how many, those missed least on the
    validation pairs; null for all."""
    decoder: LayerCount | Numbers | None = None
    """Layers of the decoder, likewise."""
    feedforward: int | None = Field(default=None, ge=1)
    """Inner units of every feed-forward, those that others cannot stand in for; null for all."""
    words: int | None = Field(default=None, ge=8)
    """Words of each side, the commonest of the text and all letters of the source; null for all."""
    int4: tuple[Literal["embeddings", "feedforward"], ...] = ()
    """Parts that are 4 bits on disk, where the others are int8: the tables of words are rounded
    before the student learns and then let be, feed-forwards afterwards."""
    positions: int | None = Field(default=None, ge=1)
    """Most tokens of a text; null for as many as the teacher's."""
    freeze: tuple[str, ...] | None = None
    """Parts that do not learn: embeddings, source_embeddings, encoder, decoder, head, or one layer
    (encoder.0)."""


class TestConfig(Config):
    """Sentences, and how people translated them."""

    source: str
    """One sentence a line, plain or .gz."""
    reference: str
    """Their translations, line by line."""
    tokenize: Annotated[str, AfterValidator(check_tokenizer)] = "auto"
    """SacreBLEU's tokenizer; auto takes the one for the script of the references."""
    split: bool | None = None
    """Translate a line sentence by sentence; null for as the model asks."""


class StudentConfig(Config):
    """A small model that learns from what a large one says."""

    name: str
    """What the student is called, for example in its card."""
    folder: str
    """Where everything is written; the student lies in `model` inside it."""
    work: str | None = None
    """Where the teacher's translations are kept, which several students may share; by default
    `work` in the folder."""
    teacher: str | EndpointConfig
    """Model folder, `.argosmodel` file or Hub name: any that translates and that Outrider reads. Or
    the address of a server, `{url: ..., model: ...}`; the student then needs a `start`."""
    start: str | None = None
    """What the student begins as, if not as its teacher: a model folder, `.argosmodel` file or Hub
    name; for example an earlier student, to go on with."""
    text: Text
    """Files in the source language, plain or .gz, whose lines are split into sentences: a list, or
    for each file how many of its first sentences are taken, null for all."""
    root: str | None = None
    """Folder that relative files start from; `$NAME` is read from the environment."""
    sentences: int | None = Field(default=None, ge=1)
    """Take so many of all these, spread evenly; null for all."""
    valid_rows: int = Field(default=500, ge=1)
    """Sentences that are held out, to see how it learns."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """Of the order of the data and dropout."""
    attribution: str | None = None
    """Origin and licence of teacher and text, for the model card."""
    translate: TranslateConfig = TranslateConfig()
    """How the teacher translates."""
    clean: CleanTranslations = CleanTranslations()
    """Which of its translations are left out."""
    shape: ShapeConfig = ShapeConfig()
    """What the student keeps of its teacher."""
    word_level: float = Field(default=0.0, ge=0, le=1)
    """Share of the teacher's probability of every word in what is learnt; the rest is the text it
    wrote. The teacher then runs along, which takes about half the time again."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """While it learns. A student that sees a sentence once or twice learns none by heart."""
    train: TrainConfig = TrainConfig()
    """How it learns."""
    tests: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], TestConfig] = Field(
        default_factory=dict
    )
    """Test sets by name, on which teacher and student are compared in the end; sentences of the
    first are timed."""

    @model_validator(mode="after")
    def _one_teacher(self) -> Self:
        if self.start is None and isinstance(self.teacher, EndpointConfig):
            raise ConfigError("start", "is required: a teacher behind an address has no layers")
        if self.tests and isinstance(self.teacher, EndpointConfig):
            message = "a teacher behind an address is not measured; use outrider evaluate instead"
            raise ConfigError("tests", message)
        if self.word_level and isinstance(self.teacher, EndpointConfig):
            message = "needs a teacher that runs here; one behind an address says only its text"
            raise ConfigError("word_level", message)
        if self.train.teacher is not None:
            raise ConfigError("train.teacher", "is the teacher of the student; set word_level")
        return self
