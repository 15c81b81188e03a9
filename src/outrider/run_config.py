"""The config of a run, from text to scores, in one YAML file."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from outrider.config import Config
from outrider.data.config import AugmentConfig, CompletionConfig, MaskConfig, PrepareConfig
from outrider.errors import ConfigError
from outrider.evaluation.metrics import check_metrics, check_tokenizer
from outrider.options import DecodeConfig

Beta = Annotated[float, Field(ge=0, lt=1)]


def _choose_gpu_outside(value: Any) -> Any:
    """Refuse GPU names, with a hint: accelerate takes the first visible GPU, or one per process."""
    kind, _, number = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind in ("cuda", "gpu", "mps", "xpu"):
        chosen = f"; choose one with CUDA_VISIBLE_DEVICES={number} outrider train" if number else ""
        raise ValueError(
            f"got {value!r}, expected auto, which takes the accelerator, or cpu{chosen}"
        )
    return value


class TrainConfig(Config):
    """How a model is trained."""

    steps: int = Field(default=10_000, ge=1)
    """Most updates of the weights; early stopping may end the run earlier."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Tokens in one update over all processes and accumulated batches: its rows times their longest
    side, source or target, with padding. A row longer than its share is a batch of its own."""
    accumulate: int = Field(default=1, ge=1)
    """Batches whose gradients are summed before the weights move; raise it to save memory."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """The highest learning rate, reached after `warmup` updates."""
    warmup: int = Field(default=1000, ge=0)
    """Updates over which the learning rate rises linearly from zero."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "step", "constant"] = "inverse_sqrt"
    """How the learning rate falls after the warmup; `step` multiplies it by `decay` every
    `decay_every` updates."""
    decay: float = Field(default=0.9, gt=0, le=1)
    """With `schedule: step`: factor of the learning rate."""
    decay_every: int | None = Field(default=None, ge=1)
    """With `schedule: step`: updates between two decays."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decay of the weight matrices; biases and norms do not decay."""
    adam_betas: tuple[Beta, Beta] = (0.9, 0.98)
    """Decay of AdamW's moving averages of the gradient and of its square."""
    adam_epsilon: float = Field(default=1e-9, gt=0)
    """Added to AdamW's denominator."""
    clip: float = Field(default=1.0, ge=0)
    """Largest 2-norm of the gradient; larger gradients are scaled down; 0 clips nothing."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target's probability that is spread over the whole vocabulary."""
    intermediate_loss: bool = False
    """Layers below the last predict too, layer l of n until l / 2n of the steps are done. Only for
    a language_model without memory."""
    completions: CompletionConfig | None = None
    """Train only on the text after a mark, such as answers after questions; null for the whole
    text. Only for a language_model."""
    augment: AugmentConfig | None = None
    """Augmentation of training pairs: missing final marks, typos, and so on. Only for a seq2seq."""
    mask: MaskConfig | None = None
    """Which tokens a masked_lm predicts; null for BERT's choice, which validation and evaluation
    always use. Only for a masked_lm."""
    teacher: str | None = None
    """Folder or Hub name of a model with the same vocabulary, whose token probabilities are learnt
    besides the text. Only for a seq2seq."""
    teacher_share: float = Field(default=0.5, gt=0, le=1)
    """Weight of the teacher in the loss; the rest is the text's."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """bfloat16 computes matrix products in bfloat16; weights and loss stay float32. auto times a
    few batches in both at the beginning of a run and uses the faster one."""
    device: Annotated[Literal["auto", "cpu"], BeforeValidator(_choose_gpu_outside)] = "auto"
    """auto takes the visible accelerator, under torchrun one for each process; cpu ignores it.
    CUDA_VISIBLE_DEVICES=1 makes only the second GPU visible."""
    shard: bool = False
    """Under torchrun: shard weights, gradients and optimizer over processes (FSDP2), for models
    that do not fit one device. Evaluations gather the weights."""
    gradient_checkpointing: bool = False
    """Layers keep only their input and recompute the rest in the backward: less memory for about a
    third more time. The weights are the same."""
    save_every: int = Field(default=500, ge=1)
    """Updates between two checkpoints."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept for resuming; older ones keep their weights while `average` needs them."""
    evaluate_every: int = Field(default=500, ge=0)
    """Updates between two evaluations on the validation set; 0 never evaluates."""
    stop_metric: Literal["bleu", "perplexity", "loss", "tokens_per_round"] = "loss"
    """Metric of early stopping and `average_by: best`; bleu decodes greedily (ctc: in one pass),
    tokens_per_round is the mean number of tokens that a round of a drafter adds."""
    patience: int = Field(default=0, ge=0)
    """Evaluations without a better `stop_metric` after which training ends; 0 never ends early."""
    average: int = Field(default=1, ge=1)
    """Checkpoints whose weights are averaged into the final model."""
    average_by: Literal["last", "best"] = "last"
    """Which checkpoints are averaged: the last ones, or those with the best `stop_metric`."""
    log_every: int = Field(default=50, ge=1)
    """Updates between two lines of the log; every checkpoint and evaluation writes one as well."""
    tensorboard: bool = False
    """Also write TensorBoard events to the run folder; needs the `plot` extra."""

    @property
    def lower_is_better(self) -> bool:
        """Whether the stop metric improves downwards."""
        return self.stop_metric not in ("bleu", "tokens_per_round")

    @property
    def averaged_by(self) -> Literal["last", "lowest", "highest"]:
        """How the checkpoints to average are chosen."""
        if self.average_by == "last":
            return "last"
        return "lowest" if self.lower_is_better else "highest"

    @model_validator(mode="after")
    def _parts_agree(self) -> "TrainConfig":
        if (self.schedule == "step") != (self.decay_every is not None):
            raise ConfigError(
                "train.decay_every",
                "is required with train.schedule: step, such as 1000"
                if self.schedule == "step"
                else f"has no effect on schedule {self.schedule!r}; set train.schedule to step",
            )
        if self.evaluate_every == 0 and self.patience:
            raise ConfigError(
                "train.patience", "stops on evaluations, but train.evaluate_every is 0; set it"
            )
        if self.average_by == "best" and (
            self.evaluate_every == 0 or self.save_every % self.evaluate_every
        ):
            raise ConfigError(
                "train.average_by",
                "best needs an evaluation at every checkpoint: make train.save_every "
                f"({self.save_every}) a multiple of train.evaluate_every ({self.evaluate_every})",
            )
        if self.batch_tokens < self.accumulate:
            raise ConfigError(
                "train.accumulate",
                f"cannot split {self.batch_tokens} tokens into {self.accumulate} batches; "
                "lower it or raise train.batch_tokens",
            )
        return self


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
    """The product is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of the product."""
    parts: tuple[Literal["attention", "cross", "feedforward"], ...] = (
        "attention",
        "cross",
        "feedforward",
    )
    """Parts of every layer that get adapters."""


class ModelSection(Config):
    """The architecture: `type`, and keys of that model's config."""

    model_config = ConfigDict(extra="allow")

    type: Literal["seq2seq", "language_model", "masked_lm", "drafter", "ctc"] = "seq2seq"
    """seq2seq is an encoder-decoder for translation, language_model a decoder alone, masked_lm an
    encoder alone; drafter and ctc are parallel decoders that belong to a finished model, the
    target."""
    target: str | None = None
    """Folder of the target model. Only for a drafter or a ctc decoder."""
    start: str | None = None
    """Folder or Hub name of a model to fine-tune, of any family that Outrider reads. Architecture
    and tokenizer are its own; only dropout and `feedforward_chunks` can be changed."""
    keep_layers: KeptLayers | None = None
    """Leave out layers of `start`."""
    freeze: tuple[str, ...] | None = None
    """Parts of `start` that are not trained: embeddings (source_embeddings for separate ones of the
    source), encoder, decoder, head, or one layer, such as encoder.0."""
    lora: LoraConfig | None = None
    """Train only low-rank adapters of `start`, which are merged into the finished model. Needs the
    extra `lora`."""

    @property
    def has_target(self) -> bool:
        """Whether the model is a side decoder of a target."""
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


DEFAULT_METRICS = ("bleu", "chrf")
_DEFAULTS = {"split": True, "metrics": DEFAULT_METRICS}


class EvaluateConfig(Config):
    """Test set of a finished model: a source with its reference, or a text."""

    source: str | None = None
    """Sentences to translate, one per line, plain or .gz."""
    reference: str | None = None
    """Reference translations, line by line."""
    text: str | None = None
    """Text for the perplexity of a language model, or for masked prediction."""
    tail: float = Field(default=1.0, gt=0, le=1)
    """Score only this last share of the text, counted in characters."""
    decode: DecodeConfig = DecodeConfig(strategy="beam", beams=5)
    """Decode options."""
    tokenize: Annotated[str, AfterValidator(check_tokenizer)] = "auto"
    """SacreBLEU's tokenizer: auto selects by the script of the references, 13a for most languages,
    zh for Chinese, char for Japanese, Korean and Thai (or ja-mecab, ko-mecab if installed).
    Validation uses the same."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Metrics: bleu, chrf, rouge, accuracy, macro_f1, exact_match, token_f1."""
    split: bool = True
    """Translate a line sentence by sentence; false is for models trained on whole lines. Also used
    by validation, and the default of the finished model."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Configs that were saved before these keys existed remain equal.
        values: dict[str, Any] = serialize(self)
        left_out = [key for key in ("split", "metrics") if getattr(self, key) == _DEFAULTS[key]]
        return {key: value for key, value in values.items() if key not in left_out}

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        if (self.source is None) != (self.reference is None):
            raise ValueError("source and reference belong together; give both")
        if (self.source is None) == (self.text is None):
            raise ValueError("give either source and reference, or text")
        check_metrics(self.metrics, key="evaluate.metrics")
        return self


class RunConfig(Config):
    """A whole run: its data, its model, its training and its evaluation."""

    name: str
    """Name of the model, for example in its card."""
    folder: str
    """Output folder: checkpoints, log, curve, and at the end `model`."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """Seed of the initial weights, the order of the data and dropout."""
    attribution: str | None = None
    """Origin and licence of the data, for the model card."""
    data: PrepareConfig
    """Training data."""
    model: ModelSection = ModelSection()
    """Architecture."""
    train: TrainConfig = TrainConfig()
    """Training."""
    evaluate: EvaluateConfig | None = None
    """Evaluation of the finished model."""

    @model_validator(mode="before")
    @classmethod
    def _tokenizer_of_start(cls, values: Any) -> Any:
        """Use the tokenizer of `model.start` for new data."""
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
            message = "does not cover a memory; set it to false or model.memory to 0"
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
"""Keys that do not change the numbers that a run computes."""


def changed_key(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return the first changed key that affects the numbers of a resumed run."""
    # Runs of older versions lack new keys of training; they used the defaults.
    defaults = {"train": TrainConfig().model_dump(mode="json")}
    old, new = _flatten(defaults) | _flatten(before), _flatten(after)
    harmless = set(_HARMLESS)
    endless = after["train"]["schedule"] in ("inverse_sqrt", "step", "constant")
    if endless and not after["train"]["intermediate_loss"]:
        harmless.add("train.steps")  # nothing else depends on the number of steps
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
