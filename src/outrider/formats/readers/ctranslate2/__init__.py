"""CTranslate2 folders: `model.bin`, `config.json`, vocabularies; Argos puts them into `model/`."""

from outrider.formats.readers.ctranslate2.folder import find, read
from outrider.formats.readers.ctranslate2.vocabulary import Vocabulary, read_vocabulary

__all__ = ["Vocabulary", "find", "read", "read_vocabulary"]
