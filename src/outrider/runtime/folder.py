"""Where a model lies: a folder of this machine, or one fetched from the Hugging Face Hub."""

from outrider.models.place import SAFE_FILES, model_folder

__all__ = ["SAFE_FILES", "model_folder"]
