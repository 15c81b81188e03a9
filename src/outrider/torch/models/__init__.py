"""Models as Hugging Face `PreTrainedModel`s; importing this package registers them with `Auto*`."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)

from outrider.torch.models.configs import (
    CtcConfig,
    DrafterConfig,
    LanguageModelConfig,
    MaskedLmConfig,
    Seq2SeqConfig,
)
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.drafter import Drafter
from outrider.torch.models.folder import (
    load_config,
    load_ctc,
    load_drafter,
    load_masked_lm,
    load_model,
)
from outrider.torch.models.language_model import LanguageModel
from outrider.torch.models.masked_lm import MaskedLm, TextEncoder
from outrider.torch.models.seq2seq import Seq2Seq
from outrider.torch.models.state import DecoderState

__all__ = [
    "Ctc",
    "CtcConfig",
    "DecoderState",
    "Drafter",
    "DrafterConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "MaskedLm",
    "MaskedLmConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "TextEncoder",
    "load_config",
    "load_ctc",
    "load_drafter",
    "load_masked_lm",
    "load_model",
]

AutoConfig.register(Seq2SeqConfig.model_type, Seq2SeqConfig)
AutoConfig.register(LanguageModelConfig.model_type, LanguageModelConfig)
AutoModelForSeq2SeqLM.register(Seq2SeqConfig, Seq2Seq)
AutoModelForCausalLM.register(LanguageModelConfig, LanguageModel)
AutoConfig.register(MaskedLmConfig.model_type, MaskedLmConfig)
AutoModelForMaskedLM.register(MaskedLmConfig, MaskedLm)
AutoModel.register(MaskedLmConfig, TextEncoder)
AutoConfig.register(DrafterConfig.model_type, DrafterConfig)
AutoModel.register(DrafterConfig, Drafter)
AutoConfig.register(CtcConfig.model_type, CtcConfig)
AutoModel.register(CtcConfig, Ctc)
