"""Small fast models made of good slow ones."""

from outrider.student.config import StudentConfig
from outrider.student.run import train_student
from outrider.student.shrink import shrink

__all__ = ["StudentConfig", "shrink", "train_student"]
