"""Model configs as Hugging Face knows them: descriptions that also know what needs PyTorch."""

from outrider.models.config.base import ModelConfig
from outrider.models.config.language_model import LanguageModelConfig
from outrider.models.config.masked_lm import MaskedLmConfig
from outrider.models.config.seq2seq import Seq2SeqConfig
from outrider.models.config.side_decoder import CtcConfig, DrafterConfig

__all__ = [
    "CtcConfig",
    "DrafterConfig",
    "LanguageModelConfig",
    "MaskedLmConfig",
    "ModelConfig",
    "Seq2SeqConfig",
]
