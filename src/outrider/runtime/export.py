"""Write a model in another family's format, so that other engines run the very same weights."""

import tempfile
from pathlib import Path

from outrider.data.sentencepiece_export import write_sentencepiece
from outrider.data.tokenizer import SubwordTokenizer, load_tokenizer
from outrider.errors import ModelError
from outrider.models import Seq2Seq, load_model
from outrider.models.marian import to_marian
from outrider.runtime.folder import model_folder

__all__ = ["export_marian"]


def export_marian(model: str | Path, folder: str | Path) -> Path:
    """Write the model as a Marian folder that transformers and converters of Marian can read."""
    source, target = model_folder(model), Path(folder)
    if target.exists():
        raise ModelError(f"{target}: exists already; name a new folder")
    loaded, tokenizer = load_model(source), load_tokenizer(source)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{source}: is a language model; Marian models translate")
    twin = to_marian(loaded)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as working:
        draft = Path(working) / "model"
        twin.save_pretrained(draft)
        if isinstance(tokenizer, SubwordTokenizer):
            write_sentencepiece(tokenizer, draft)
        else:
            tokenizer.save(draft)
        draft.rename(target)
    return target
