"""What `config.json` says of a model: plain dataclasses, checked as the untrusted input they are.

`outrider.torch.models.config` makes Hugging Face configs of them, which also check the options of
every attention.
"""

from outrider.formats.description.base import ModelDescription
from outrider.formats.description.ctc import CtcDescription
from outrider.formats.description.drafter import DrafterDescription
from outrider.formats.description.keys import check_keys, describe
from outrider.formats.description.language_model import LanguageModelDescription
from outrider.formats.description.masked_lm import MaskedLmDescription
from outrider.formats.description.seq2seq import Seq2SeqDescription
from outrider.formats.description.side_decoder import SideDecoderDescription

__all__ = [
    "CtcDescription",
    "DrafterDescription",
    "LanguageModelDescription",
    "MaskedLmDescription",
    "ModelDescription",
    "Seq2SeqDescription",
    "SideDecoderDescription",
    "check_keys",
    "describe",
]
