"""One YAML file describes one run, from text to scores; every command reads the same file."""

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from outrider.config import Config
from outrider.data.config import PrepareConfig
from outrider.errors import ConfigError
from outrider.evaluation.config import EvaluateConfig
from outrider.train_config import TrainConfig

__all__ = ["KeptLayers", "LoraConfig", "ModelSection", "Numbers", "RunConfig", "changed_key"]

Numbers = tuple[Annotated[int, Field(ge=0)], ...]


class KeptLayers(Config):
    """Which layers of `model.start` are kept, counted from 0, in this order."""

    encoder: Numbers | None = None
    """Of its encoder; null for all."""
    decoder: Numbers | None = None
    """Of its decoder, or of a language model; null for all."""


class LoraConfig(Config):
    """Low-rank adapters (Hu et al., 2021, arXiv:2106.09685) instead of training all weights."""

    rank: int = Field(default=8, ge=1)
    """Width of the narrow product beside each weight."""
    alpha: float = Field(default=16.0, gt=0)
    """What it adds is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """On what goes into it."""
    parts: tuple[Literal["attention", "cross", "feedforward"], ...] = (
        "attention",
        "cross",
        "feedforward",
    )
    """Parts of every layer that get adapters."""


class ModelSection(Config):
    """The architecture: `type`, and any key of that model's own config.

    Which keys those are is known to the model's config class; they are checked before training.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal["seq2seq", "language_model", "masked_lm", "drafter", "ctc"] = "seq2seq"
    """seq2seq is an encoder-decoder for translation, language_model a decoder alone, masked_lm an
    encoder alone; drafter and ctc are parallel decoders that belong to a finished model, the
    target."""
    target: str | None = None
    """Folder of the model that a drafter or a ctc decoder is for. Only for these two."""
    start: str | None = None
    """Folder or Hub name of a model to go on from, ours or any that Outrider reads. Architecture
    and tokenizer are its own; only dropout and `feedforward_chunks` may be given anew."""
    keep_layers: KeptLayers | None = None
    """Leave out layers of `start`."""
    freeze: tuple[str, ...] | None = None
    """Parts of `start` that do not learn: embeddings (source_embeddings are those of the source
    alone, where it has its own), encoder, decoder, head, or one layer, such as encoder.0."""
    lora: LoraConfig | None = None
    """Train low-rank adapters of `start` and nothing else; they are merged into the finished model.
    Needs the extra `lora`."""

    @property
    def rides(self) -> bool:
        """Whether it is trained for a target, whose weights it reads."""
        return self.type in ("drafter", "ctc")

    @property
    def values(self) -> dict[str, Any]:
        """The keys that go to the model's config."""
        return dict(self.model_extra or {})

    @model_serializer(mode="wrap")
    def _without_idle_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        return {k: v for k, v in values.items() if v is not None or k not in _OPTIONAL}


_OPTIONAL = ("target", "start", "keep_layers", "freeze", "lora")


class RunConfig(Config):
    """A whole run: its data, its model, its training and its evaluation."""

    name: str
    """What the model is called, for example in its card."""
    folder: str
    """Where the run writes: checkpoints, log, curve, and at the end `model`."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """Of the initial weights, the order of the data and dropout."""
    attribution: str | None = None
    """Origin and licence of the data, for the model card."""
    data: PrepareConfig
    """What the run learns from."""
    model: ModelSection = ModelSection()
    """What learns."""
    train: TrainConfig = TrainConfig()
    """How it learns."""
    evaluate: EvaluateConfig | None = None
    """What the finished model is tested on."""

    @model_validator(mode="before")
    @classmethod
    def _tokenizer_of_start(cls, values: Any) -> Any:
        """Let new data be read as the model that is gone on from reads."""
        if not isinstance(values, dict):
            return values
        data, model = values.get("data"), values.get("model")
        start = model.get("start") if isinstance(model, dict) else None
        if not isinstance(data, dict) or start is None or data.get("train") is None:
            return values
        tokenizer = data.get("tokenizer") or {}
        if not isinstance(tokenizer, dict) or tokenizer.get("folder") is not None:
            return values
        return {**values, "data": {**data, "tokenizer": {**tokenizer, "folder": start}}}

    @model_validator(mode="after")
    def _only_for_one_type(self) -> "RunConfig":
        for key, kind in (
            ("teacher", "seq2seq"),
            ("augment", "seq2seq"),
            ("mask", "masked_lm"),
            ("completions", "language_model"),
        ):
            if getattr(self.train, key) is not None and self.model.type != kind:
                message = f"is for a {kind}, not a {self.model.type}; leave it out"
                raise ConfigError(f"train.{key}", message)
        return self

    @model_validator(mode="after")
    def _losses_fit(self) -> "RunConfig":
        if not self.train.intermediate_loss:
            return self
        key = "train.intermediate_loss"
        if self.model.type != "language_model":
            raise ConfigError(
                key, f"is for a language_model, not a {self.model.type}; leave it out"
            )
        if self.model.values.get("memory"):
            message = "does not reach into a memory; set it to false or model.memory to 0"
            raise ConfigError(key, message)
        if self.model.values.get("layers") == 1:
            raise ConfigError(key, "has no effect on a single layer; leave it out")
        return self


_HARMLESS = frozenset(
    {
        "name",
        "folder",
        "attribution",
        "evaluate",
        "data.folder",
        "data.root",
        "train.save_every",
        "train.keep",
        "train.evaluate_every",
        "train.patience",
        "train.average",
        "train.average_by",
        "train.log_every",
        "train.tensorboard",
        "train.device",
        "train.gradient_checkpointing",
    }
)
"""Keys that change what a run writes, but not the numbers it computes."""


def changed_key(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The first key whose change would make a resumed run differ from an undisturbed one."""
    # A run from before a key of training existed was trained with its default.
    defaults = {"train": TrainConfig().model_dump(mode="json")}
    old, new = _flatten(defaults) | _flatten(before), _flatten(after)
    harmless = set(_HARMLESS)
    endless = after["train"]["schedule"] in ("inverse_sqrt", "step", "constant")
    if endless and not after["train"]["intermediate_loss"]:
        harmless.add("train.steps")  # nothing else looks ahead to the end
    for key in sorted(old.keys() | new.keys()):
        above = {key.rsplit(".", depth)[0] for depth in range(key.count(".") + 1)}
        if not above & harmless and old.get(key) != new.get(key):
            return key
    return None


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
