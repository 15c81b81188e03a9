"""What is asked of a plan, beside its config."""

from dataclasses import dataclass, fields

from outrider.errors import ConfigError
from outrider.torch.plan.machine import GivenMachine

__all__ = ["PlanOptions"]


@dataclass(frozen=True)
class PlanOptions:
    """Names are those of the command's options; sizes are of one device."""

    tokens: float | None = None
    """To train on, as `train.batch_tokens` counts them; None for the steps of the config."""
    devices: int = 1
    device_memory: float | None = None
    """In GB of 10^9 bytes; None for this machine's."""
    length: int | None = None
    """Tokens of a sentence, of its longer side and with its end."""
    vocab_size: int | None = None
    distill: float | None = None
    """Sentences to translate."""
    serve: float | None = None
    """Sentences a second."""
    rows: int = 32
    """Sentences decoded together."""
    busy: float = 0.7
    """Share of the time that servers may be busy, so that queues stay short."""
    price: float | None = None
    """Of an hour of a device."""
    measure: bool = False
    """Time this machine."""
    given: GivenMachine | None = None
    """Or take a machine from what is said of it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be planned."""
        for field in fields(self):
            value, name = getattr(self, field.name), _option(field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not 0 < value < float("inf"):
                raise ConfigError(name, f"got {value:g}, expected more than 0; leave it out{_FIX}")
        if self.busy > 1:
            raise ConfigError("--busy", f"got {self.busy:g}, expected a share from 0 to 1")
        if self.measure and self.given is not None:
            raise ConfigError("--flops", "has no effect with --measure; give one of the two")
        if not self.measure and self.given is None:
            for field_name in ("distill", "serve", "price"):
                if getattr(self, field_name) is not None:
                    message = "needs a machine: add --measure to time this one, or --flops"
                    raise ConfigError(_option(field_name), message)
        if self.device_memory is None and (self.devices > 1 or self.given is not None):
            message = "is unknown: say how many GB each device has, such as --device-memory 80"
            raise ConfigError("--device-memory", message)


_FIX = " for the default, where it has one"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
