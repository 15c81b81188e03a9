"""The decode benchmark at toy size: what it reports, and that it would notice a wrong token."""

import json

import pytest
import torch
from typer.testing import CliRunner

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.evaluation import decode_speed as module
from outrider.evaluation.decode_speed import SENTENCES, Workload, decode_speed, random_workload
from outrider.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig

KEYS = ["engine", "mode", "batch", "sentences_per_second", "ratio_to_hf_generate", "identical"]


def tiny(vocab_size: int = 50) -> Seq2Seq:
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        encoder_layers=1,
        decoder_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        norm="post",
        logits_bias=True,
    )
    return Seq2Seq(config).eval()


def test_reports_both_engines_at_every_batch_size() -> None:
    workload = random_workload(50, 1, rows=6, length=5)
    result = decode_speed(tiny(), workload, batches=(1, 4), repeats=2)
    assert [list(row) for row in result["rows"]] == [KEYS] * 4
    assert [(row["engine"], row["batch"]) for row in result["rows"]] == [
        ("outrider", 1),
        ("transformers", 1),
        ("outrider", 4),
        ("transformers", 4),
    ]
    for ours, theirs in zip(result["rows"][::2], result["rows"][1::2], strict=True):
        assert ours["identical"]
        assert theirs["identical"]
        assert theirs["ratio_to_hf_generate"] == 1.0
        ratio = ours["sentences_per_second"] / theirs["sentences_per_second"]
        assert ours["ratio_to_hf_generate"] == pytest.approx(ratio, rel=0.05)
    assert result["machine"]["threads"] == torch.get_num_threads()
    assert "transformers" in result["versions"]


def test_a_wrong_token_is_noticed(monkeypatch) -> None:
    honest = module.to_marian

    def damaged(model):
        twin = honest(model)
        with torch.no_grad():
            twin.final_logits_bias[0, 7] += 100.0
        return twin

    monkeypatch.setattr(module, "to_marian", damaged)
    result = decode_speed(tiny(), random_workload(50, 1, rows=3, length=5), batches=(3,), repeats=1)
    assert [row["identical"] for row in result["rows"]] == [False, False]
    assert result["sentences_that_differ"] == {"3": "3 of 3"}


def test_sentences_of_many_lengths_end_where_the_model_ends_them() -> None:
    model = tiny()
    with torch.no_grad():
        model.logits_bias[1] = 1.0  # let some sentences end
    sources = [[*range(4, 4 + n), 1] for n in (3, 9, 1, 6)]
    result = decode_speed(model, Workload(sources), batches=(2, 8), repeats=1)
    assert all(row["identical"] for row in result["rows"])


def test_a_slow_machine_repeats_less() -> None:
    calls = []
    workload = random_workload(50, 1, rows=1, length=3)
    decode_speed(
        tiny(), workload, batches=(1,), repeats=9, seconds=0.0, advance=lambda: calls.append(1)
    )
    assert len(calls) == 3  # one to warm up, two that count


@pytest.fixture
def run():
    import typer

    from outrider.cli.bench_decode import bench_decode

    app = typer.Typer()
    app.command()(bench_decode)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(SENTENCES, TokenizerConfig(kind="char", vocab_size=64))
    tokenizer.save(folder)
    tiny(tokenizer.vocab_size).save_pretrained(folder)
    return folder


def test_command_writes_json_and_a_table(run, folder, tmp_path) -> None:
    source = tmp_path / "source.txt"
    source.write_text("Hi.\n\nNo\n")
    result = run(folder, "--source", source, "--json", tmp_path / "out.json", "--quick")
    assert result.exit_code == 0, result.output
    assert "transformers" in result.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert [row["batch"] for row in written["rows"]] == [1, 1, 8, 8, 32, 32]
    assert all(list(row) == KEYS and row["identical"] for row in written["rows"])
    assert written["model"] == str(folder)


def test_command_names_mistakes(run, folder, tmp_path) -> None:
    def error(*arguments) -> str:
        return str(run(*arguments).exception)

    assert error().startswith("MODEL: give a model folder, or --random base")
    assert error(folder, "--random", "base").startswith("MODEL: give a model folder, or --random")
    assert error("--random", "huge") == "--random: got 'huge', expected base"
    assert error("--random", "base", "--source", "x").startswith("--source: has no effect with")
    assert error(folder, "--source", tmp_path / "nothing").endswith("nothing: no such file")
    (tmp_path / "empty").write_text("\n")
    assert error(folder, "--source", tmp_path / "empty").endswith("holds no sentence")

    other = tmp_path / "lm"
    config = LanguageModelConfig(
        vocab_size=9, hidden_size=8, layers=1, num_attention_heads=1, intermediate_size=8
    )
    LanguageModel(config).save_pretrained(other)
    assert error(other).endswith("is a language model; bench decode takes an encoder-decoder")
