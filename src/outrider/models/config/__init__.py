"""Model configs: Hugging Face strict dataclasses, checked as the untrusted input they are."""

from outrider.models.config.base import ModelConfig
from outrider.models.config.keys import check_keys
from outrider.models.config.language_model import LanguageModelConfig
from outrider.models.config.seq2seq import Seq2SeqConfig

__all__ = ["LanguageModelConfig", "ModelConfig", "Seq2SeqConfig", "check_keys"]
