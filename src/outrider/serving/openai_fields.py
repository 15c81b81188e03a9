"""What OpenAI's completions and chats have in common: their fields, checked, and what they mean."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from outrider.errors import ConfigError
from outrider.serving.fields import Options, PriorityName, Seconds

__all__ = ["OpenAIBody", "StreamOptions"]

Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class StreamOptions(BaseModel):
    """What a stream is to end with."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class OpenAIBody(BaseModel):
    """Fields of both; an unknown one is an error, and so is one that would have no effect.

    Without a temperature and top_p, or with temperature 0, the likeliest token is taken.
    """

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] = 1
    seed: Annotated[int, Field(ge=0, le=2**53)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=200)] | None = None
    """Not looked at."""
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    options: Options = Options()
    """Ours: how to decode, beyond what OpenAI knows."""
    priority: PriorityName | None = None
    deadline: Seconds | None = None

    @property
    def stops(self) -> list[str]:
        """What ends a text."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def decode_options(self, max_tokens: int | None) -> dict[str, Any]:
        """Return the fields of `DecodeConfig` that all this comes to."""
        options = self.options.given
        # Without a temperature OpenAI draws at 1; here a top_p below 1 asks for that.
        nucleus = None if self.top_p == 1 else self.top_p
        draws = bool(self.temperature) or (nucleus is not None and self.temperature is None)
        drawn = draws or "temperature" in options or "strategy" in options
        if self.n > 1 and not drawn:
            raise ConfigError("n", "several texts are all the same; set temperature above 0")
        named: dict[str, Any] = {"max_new_tokens": max_tokens}
        if draws:
            named |= {"temperature": self.temperature, "top_p": nucleus, "seed": self.seed}
        for key, value in named.items():
            if value is not None and key in options:
                raise ConfigError(f"options.{key}", "is set twice; leave one of them out")
        return options | {key: value for key, value in named.items() if value is not None}
