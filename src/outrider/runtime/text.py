"""Text as it may reach us from a command line or a program."""

__all__ = ["well_formed"]


def well_formed(text: str) -> str:
    """Replace half characters (lone surrogates), which no tokenizer can take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
