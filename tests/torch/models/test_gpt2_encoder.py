"""GPT-2 as an encoder: its tokenizer has no end token.

`test_pretrained.py` compares its features with those of transformers.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import outrider
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.text.tokenizer.pair import PairTokenizer, SourceTokenizer
from outrider.torch.models import Seq2Seq, Seq2SeqConfig
from outrider.torch.models.folder import load_encoder, read_encoder
from tests.helpers.bert import save_encoder
from tests.helpers.drafted import TEXT


def test_gpt2_reads_the_ids_of_its_own_tokenizer(tmp_path: Path) -> None:
    """It adds no tokens to a text; its end token is the document separator."""
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.post_processor = processors.ByteLevel(trim_offsets=False)
    between = "<|endoftext|>"
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[between],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pipeline.train_from_iterator(TEXT, trainer)
    end, words = pipeline.token_to_id(between), pipeline.get_vocab_size()
    save_encoder(tmp_path / "gpt2", "gpt2", vocab_size=words)
    pipeline.save(str(tmp_path / "gpt2" / "tokenizer.json"))

    source = SourceTokenizer(tmp_path / "gpt2" / "tokenizer.json")
    texts = [*TEXT[:3], "", "a", f"said {between} of it"]
    assert source.end_id == end
    rows = source.encode_batch(texts)
    assert rows[:5] == [pipeline.encode(text).ids for text in texts[:5]]
    assert rows[3] == []
    assert end not in rows[5], "what a text says is never a special token"

    target = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
    asked = {"config": read_encoder(tmp_path / "gpt2"), "end": end, "freeze": True, "layer": -1}
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    model = Seq2Seq(Seq2SeqConfig(vocab_size=target.vocab_size, encoder=asked, **size))
    assert model.pretrained is not None
    load_encoder(model.pretrained, tmp_path / "gpt2")
    model.save_pretrained(tmp_path / "model")
    PairTokenizer(source, target).save(tmp_path / "model")
    loaded = outrider.load(tmp_path / "model")
    assert loaded.translate(TEXT) == [loaded.translate(text) for text in TEXT]
