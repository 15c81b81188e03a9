"""The `train` section of a run config."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from outrider.config import Config
from outrider.data.config import AugmentConfig, CompletionConfig, MaskConfig
from outrider.errors import ConfigError

__all__ = ["TrainConfig"]

Beta = Annotated[float, Field(ge=0, lt=1)]


def _choose_gpu_outside(value: Any) -> Any:
    """Say where a GPU is chosen: accelerate takes the first that it sees, or one a process."""
    kind, _, number = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind in ("cuda", "gpu", "mps", "xpu"):
        chosen = f"; choose one with CUDA_VISIBLE_DEVICES={number} outrider train" if number else ""
        raise ValueError(
            f"got {value!r}, expected auto, which takes the accelerator, or cpu{chosen}"
        )
    return value


class TrainConfig(Config):
    """How a model is trained; what it is trained on stands in `data`, what it is in `model`."""

    steps: int = Field(default=10_000, ge=1)
    """Updates of the weights, at most; early stopping may end the run before."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Tokens in one update over all processes and accumulated batches: its rows times their longest
    side, source or target, with padding. A row longer than its share is a batch of its own."""
    accumulate: int = Field(default=1, ge=1)
    """Batches whose gradients are summed before the weights move; raise it to save memory."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """The highest learning rate, reached after `warmup` updates."""
    warmup: int = Field(default=1000, ge=0)
    """Updates over which the learning rate rises from zero in a straight line."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "step", "constant"] = "inverse_sqrt"
    """How the learning rate falls after the warmup; `step` multiplies it by `decay` every
    `decay_every` updates."""
    decay: float = Field(default=0.9, gt=0, le=1)
    """With `schedule: step`: what the learning rate is multiplied by."""
    decay_every: int | None = Field(default=None, ge=1)
    """With `schedule: step`: after how many updates, again and again."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decay of the weight matrices; biases and norms are left alone."""
    adam_betas: tuple[Beta, Beta] = (0.9, 0.98)
    """Decay of AdamW's moving averages of the gradient and of its square."""
    adam_epsilon: float = Field(default=1e-9, gt=0)
    """Added to AdamW's denominator."""
    clip: float = Field(default=1.0, ge=0)
    """Longest gradient (2-norm) let through unchanged; 0 clips nothing."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target's probability that is spread over the whole vocabulary."""
    intermediate_loss: bool = False
    """Layers below the last predict too, layer l of n until l / 2n of the steps are done. Only for
    a language_model without memory."""
    completions: CompletionConfig | None = None
    """Learn only what stands after a mark, as answers after questions; null for the whole text.
    Only for a language_model."""
    augment: AugmentConfig | None = None
    """Training pairs changed as people's text is: without final marks, with typos, and so on. Only
    for a seq2seq."""
    mask: MaskConfig | None = None
    """Which tokens a masked_lm has to guess; null for as BERT does it, and as validation and
    evaluation do it always. Only for a masked_lm."""
    teacher: str | None = None
    """Folder or Hub name of a model with the same words, whose probability of every word is learnt
    as well as the text. Only for a seq2seq."""
    teacher_share: float = Field(default=0.5, gt=0, le=1)
    """What the teacher counts, the rest being the text."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """bfloat16 computes matrix products in half the width; weights and loss stay float32. auto
    times a few batches in both when a run begins and keeps the faster one to its end."""
    device: Annotated[Literal["auto", "cpu"], BeforeValidator(_choose_gpu_outside)] = "auto"
    """auto takes the accelerator that is visible, under torchrun one for each process; cpu ignores
    it. CUDA_VISIBLE_DEVICES=1 makes the second GPU the visible one."""
    shard: bool = False
    """Under torchrun: every process keeps only its share of weights, gradients and optimizer
    (FSDP2), for models that do not fit one device. Evaluations gather the weights."""
    gradient_checkpointing: bool = False
    """Layers keep only their input for the backward and compute the rest again there: memory for
    about a third more time. The weights come out the same."""
    save_every: int = Field(default=500, ge=1)
    """Updates between two checkpoints."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept for resuming; older ones keep their weights while `average` needs them."""
    evaluate_every: int = Field(default=500, ge=0)
    """Updates between two evaluations on the validation set; 0 never evaluates."""
    stop_metric: Literal["bleu", "perplexity", "loss", "tokens_per_round"] = "loss"
    """What early stopping and `average_by: best` compare; bleu decodes greedily (ctc: in one pass),
    tokens_per_round is how far a drafter's blocks hold."""
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
        """Which way the stop metric improves."""
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
