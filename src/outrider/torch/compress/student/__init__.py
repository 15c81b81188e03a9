"""Train small, fast students of large models."""

from outrider.torch.compress.student.config import StudentConfig
from outrider.torch.compress.student.run import train_student
from outrider.torch.compress.student.shrink import shrink

__all__ = ["StudentConfig", "shrink", "train_student"]
