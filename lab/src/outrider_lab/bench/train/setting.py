"""Model and data of `bench train`."""

from dataclasses import dataclass
from pathlib import Path

from outrider.data.prepared import Prepared
from outrider.run_config import TrainConfig
from outrider.torch.training.batches import BatchStream

FOREVER = 1_000_000
"""Updates of a run that is stopped from outside."""


@dataclass(frozen=True)
class SpeedSetting:
    """By default 4+4 layers of width 256."""

    data: Path
    batch_tokens: int = 4096
    width: int = 256
    layers: int = 4
    heads: int = 4
    feedforward: int = 1024
    dropout: float = 0.1
    precision: str = "float32"
    """Of the bare loop and of our Trainer."""
    tuned_precision: str = "float32"
    """Of the tuned transformers Trainer; with defaults it is float32."""
    threads: int | None = None
    seed: int = 0

    def train_config(self) -> TrainConfig:
        """Return the config of our Trainer, without checkpoints or evaluations."""
        return TrainConfig.model_validate(
            {
                "steps": FOREVER,
                "save_every": FOREVER,
                "evaluate_every": 0,
                "batch_tokens": self.batch_tokens,
                "precision": self.precision,
                "device": "cpu",
            }
        )

    def stream(self, prepared: Prepared) -> BatchStream:
        """Return the batches of the bare loop and of our Trainer."""
        return BatchStream(prepared, tokens=self.batch_tokens, seed=self.seed)
