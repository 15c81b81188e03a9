"""Evaluation of a model folder on a test set: the scores equal those of `translate`."""

import gzip
import json
import math
from pathlib import Path

import pytest
import sacrebleu
import torch

import outrider
from outrider.cli.main import run
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError, DataError, ModelError
from outrider.evaluation.evaluate import evaluate_translation
from outrider.torch.evaluation.likelihood import evaluate_text
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig

SOURCES = ["ab ba", "a", "bb aa b", "b a"]
REFERENCES = ["ba ab", "a", "b aa bb", "a b"]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A translator and a language model with random weights."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(SOURCES, TokenizerConfig(kind="char", vocab_size=16))
    size = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    models = {
        "translator": Seq2Seq(Seq2SeqConfig(**size, encoder_layers=1, decoder_layers=1)),
        "writer": LanguageModel(LanguageModelConfig(**size, layers=1, max_positions=8)),
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save(tmp_path / name)
    return {name: tmp_path / name for name in models}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    source, reference = tmp_path / "test.en.gz", tmp_path / "test.de"
    source.write_bytes(gzip.compress("".join(f"{line}\n" for line in SOURCES).encode()))
    reference.write_text("".join(f"{line}\n" for line in REFERENCES))
    return source, reference


@pytest.mark.parametrize("split", [True, False])
def test_a_line_is_translated_as_translate_does_and_scored_whole(
    folders: dict[str, Path], tmp_path: Path, split: bool
) -> None:
    source, reference = tmp_path / "two.en", tmp_path / "two.de"
    source.write_text("ab! ba!\nbb\n")
    reference.write_text("ba! ab!\nbb\n")
    result = evaluate_translation(
        folders["translator"],
        source=source,
        reference=reference,
        decode=DecodeConfig(max_new_tokens=6),
        split=split,
        output=tmp_path / "out.txt",
    )
    translator = outrider.load(folders["translator"], dtype="float32")
    said = translator.translate(["ab! ba!", "bb"], split=split, max_new_tokens=6)
    assert (tmp_path / "out.txt").read_text().splitlines() == said
    assert (result["split"], result["scores"]["sentences"]) == (split, 2)


def test_scores_equal_those_of_translate(
    folders: dict[str, Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    rows: list[int] = []
    result = evaluate_translation(
        folders["translator"],
        source=files[0],
        reference=files[1],
        decode=DecodeConfig(beams=3, max_new_tokens=6),
        output=tmp_path / "out.txt",
        advance=rows.append,
    )
    expected = outrider.load(folders["translator"]).translate(SOURCES, beams=3, max_new_tokens=6)
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    assert result["scores"]["bleu"] == sacrebleu.corpus_bleu(expected, [REFERENCES]).score
    assert result["decode"] == {"strategy": "beam", "beams": 3, "max_new_tokens": 6}
    assert sum(rows) == len(SOURCES)
    assert result["data"]["source"]["file"] == "test.en.gz"


def test_the_tail_of_a_text_is_scored(folders: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ab ba " * 20)
    whole = evaluate_text(folders["writer"], text=text)
    tail = evaluate_text(folders["writer"], text=text, tail=0.25)
    assert (whole["scores"]["characters"], tail["scores"]["characters"]) == (120, 30)
    assert whole["context"] == 8
    assert tail["scores"]["nats_per_token"] > 0
    beside = evaluate_text(folders["writer"], text=text, counted=text, order=2)["scores"]
    assert beside["perplexity"] == whole["scores"]["perplexity"]
    assert 1 < beside["ngram_perplexity"] < 3, "two letters in a row say most of the next"
    assert beside["ngram_bits_per_character"] == pytest.approx(
        math.log2(beside["ngram_perplexity"]) * beside["tokens"] / 120
    )


def test_labels_are_scored_by_their_own_metrics(
    folders: dict[str, Path],
    files: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, reference = files
    result = tmp_path / "result.json"
    line = ["--source", source, "--reference", reference, "--beams", "1", "--json", result]
    line += ["--metric", "accuracy,macro_f1"]
    assert run(["evaluate", str(folders["translator"]), *map(str, line)]) == 0
    scores = json.loads(result.read_text())["scores"]
    assert scores.keys() == {"accuracy", "macro_f1", "sentences"}
    for line, said in (
        (["--source", source, "--reference", reference, "--metric", "rogue"], "unknown 'rogue'"),
        (
            ["--source", source, "--reference", reference, "--ngram", source],
            "--ngram: is for --text",
        ),
        (["--text", source, "--metric", "rouge"], "--metric: is for --source"),
    ):
        assert run(["evaluate", str(folders["translator"]), *map(str, line)]) == 2
        assert said in capsys.readouterr().err


def test_each_task_refuses_the_other_kind_of_model(
    folders: dict[str, Path], files: tuple[Path, Path]
) -> None:
    with pytest.raises(ModelError, match="is a language model; test it with --text"):
        evaluate_translation(
            folders["writer"], source=files[0], reference=files[1], decode=DecodeConfig()
        )
    with pytest.raises(ModelError, match="is a translation model; use --source and --reference"):
        evaluate_text(folders["translator"], text=files[1])


def test_unequal_line_counts_are_named(
    folders: dict[str, Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    longer = tmp_path / "longer.de"
    longer.write_text("a\n" * 9)
    with pytest.raises(DataError, match=r"test\.en\.gz has 4 lines and .*longer\.de has 9"):
        evaluate_translation(
            folders["translator"], source=files[0], reference=longer, decode=DecodeConfig()
        )


def test_broken_text_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.write_bytes(b"")
    broken.write_bytes(b"ab\n\xff\n")
    with pytest.raises(DataError, match="empty: the file is empty"):
        evaluate_translation(
            folders["translator"], source=empty, reference=broken, decode=DecodeConfig()
        )
    with pytest.raises(DataError, match="broken, line 2: is not UTF-8 text"):
        evaluate_text(folders["writer"], text=broken)


def test_the_output_never_overwrites_the_test_set(
    folders: dict[str, Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, reference = files
    (tmp_path / "link").symlink_to(reference)
    for output in (source, tmp_path / "link"):
        with pytest.raises(ConfigError, match=rf"--output: {output} is .* itself; choose another"):
            evaluate_translation(
                folders["translator"],
                source=source,
                reference=reference,
                decode=DecodeConfig(),
                output=output,
            )
    assert reference.read_text().splitlines() == REFERENCES
