"""Model configs as Hugging Face knows them: descriptions that also know what needs PyTorch."""

from outrider.torch.models.config.base import ModelConfig
from outrider.torch.models.config.language_model import LanguageModelConfig
from outrider.torch.models.config.masked_lm import MaskedLmConfig
from outrider.torch.models.config.seq2seq import Seq2SeqConfig
from outrider.torch.models.config.side_decoder import CtcConfig, DrafterConfig

__all__ = [
    "CtcConfig",
    "DrafterConfig",
    "LanguageModelConfig",
    "MaskedLmConfig",
    "ModelConfig",
    "Seq2SeqConfig",
]
