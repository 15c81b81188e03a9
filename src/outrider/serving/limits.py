"""What a server takes on: every size that a stranger can choose has a bound."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one server; the defaults suit a model of a hundred million weights on a CPU."""

    rows: int = 64
    """Rows that a model decodes at once, every beam counted."""
    batch_tokens: int = 16_384
    """Tokens that those rows may hold together: sources, prompts and what may be written."""
    queue_tokens: int = 1 << 20
    """The same for everybody who has been let in to one model and is not done."""
    characters: int = 100_000
    """Characters of all texts of one request."""
    texts: int = 2_048
    """Texts of one request."""
    preparing: int = 4_000_000
    """Characters of all requests whose texts are being taken apart."""
    new_tokens: int = 4_096
    """Most tokens that a piece of a text may be asked to become."""
    rows_each: int = 16
    """Beams or candidates of one piece of a text."""
    seconds: float = 60.0
    """A request that takes longer is given up."""
    body: int = 2 << 20
    """Bytes of a request's body."""
    body_seconds: float = 15.0
    """A client that takes longer to send its request is hung up on."""
    connections: int = 1_024
    """Connections at once; further ones are answered 503."""
