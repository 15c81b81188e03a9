"""Small fast models made of good slow ones."""

from outrider.student.shrink import shrink

__all__ = ["shrink"]
