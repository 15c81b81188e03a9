"""`outrider translate` and `outrider generate` with tiny models, through the command line."""

import io
import shutil
import sys

import pytest
import torch

from outrider.cli.translate import NOTICES
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.runtime import Translator, load
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig

TEXT = ["a small dog runs", "two men play", "where is the station?", "it is late. we go home!"]
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
    tokenizer.save(folder)
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocab_size=tokenizer.vocab_size, encoder_layers=1, decoder_layers=1, **SIZES
    )
    Seq2Seq(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    return load(folder, device="cpu").translate(TEXT, guard=True)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator")
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64), verbatim=True)
    tokenizer.save(folder)
    torch.manual_seed(0)
    LanguageModel(
        LanguageModelConfig(vocab_size=tokenizer.vocab_size, layers=1, **SIZES)
    ).save_pretrained(folder)
    return folder


def lines(texts: list[str]) -> str:
    return "".join(text + "\n" for text in texts)


@pytest.mark.parametrize("how", ["texts", "--in", "--shards"])
def test_text_in_another_script_gives_one_warning_per_command(
    command, folder, tmp_path, how
) -> None:
    english = tmp_path / "model"
    shutil.copytree(folder, english)
    (english / "README.md").write_text("---\nlanguage: [en, de]\n---\n")
    texts = ["请问最近的地铁站在哪里？"] * 50
    source = tmp_path / "in" / "a.txt"
    source.parent.mkdir()
    source.write_text(lines(texts))
    where = {
        "texts": texts,
        "--in": ["--in", source],
        "--shards": ["--shards", source.parent, "--out", tmp_path / "out"],
    }[how]
    code, _, err = command("translate", "--model", english, "--max-new-tokens", 1, *where)
    assert code == 0
    message = "the text is in Chinese script, but the model reads en or de; choose a model"
    assert err.count(f"outrider: {message}") == 1
    source.write_text(lines(TEXT))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    where = TEXT if how == "texts" else where
    assert "script" not in command("translate", "--model", english, *where)[2]
    assert "script" not in command("translate", "--model", folder, *texts)[2]


def test_texts_on_the_command_line(command, folder, expected) -> None:
    code, out, _ = command("translate", "--model", folder, *TEXT[:2])
    assert (code, out) == (0, lines(expected[:2]))


def test_faults_are_reported_with_their_lines(command, folder, expected) -> None:
    code, out, err = command("translate", "--model", folder, "--no-guard", *TEXT[:2])
    assert (code, err) == (0, "")
    assert out == lines(load(folder, device="cpu").translate(TEXT[:2]))
    code, out, err = command("translate", "--model", folder, *TEXT[:2])
    assert (code, out) == (0, lines(expected[:2]))
    results = load(folder, device="cpu").results(TEXT[:2], guard=True)
    faults = [(line, fault) for line, (best, *_) in enumerate(results, 1) for fault in best.faults]
    assert faults, "random weights write no words"
    assert err == "".join(f"outrider: line {line}: {NOTICES[fault]}\n" for line, fault in faults)


def test_from_file_to_file(command, folder, expected, tmp_path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    # A blank line, a Windows line end, an invalid byte and a long line affect one line each.
    long = TEXT[3].encode() * 6
    source.write_bytes(b"\n".join([TEXT[0].encode(), b"", TEXT[1].encode() + b"\r", b"\xff", long]))
    code, out, _ = command("translate", "--model", folder, "--in", source, "--out", target)
    written = target.read_text(encoding="utf-8").split("\n")
    assert (code, out, len(written)) == (0, "", 6)
    assert written[:3] == [expected[0], "", expected[1]]
    assert written[5] == ""


def test_standard_input(command, folder, expected, monkeypatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(lines(TEXT).encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, _ = command("translate", "--model", folder)
    assert (code, out) == (0, lines(expected))


def test_lines_are_split_into_sentences_unless_no_split(command, folder) -> None:
    text, translator = "it is late. we go home!", load(folder, device="cpu")
    parts = translator.translate(["it is late.", "we go home!"], guard=True)
    whole = translator.translate(text, split=False, guard=True)
    assert command("translate", "--model", folder, text)[:2] == (0, f"{parts[0]} {parts[1]}\n")
    assert command("translate", "--model", folder, "--no-split", text)[:2] == (0, f"{whole}\n")


def test_n_best_lists_line_text_and_score(command, folder) -> None:
    code, out, _ = command("translate", "--model", folder, "--beams", 3, "--n-best", 2, *TEXT[:2])
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert code == 0
    assert [row[0] for row in rows] == ["0", "0", "1", "1"]
    assert float(rows[0][2]) >= float(rows[1][2])


def test_an_interrupt_reports_how_many_lines_are_done(command, folder, monkeypatch) -> None:
    def results_iter(self, source, **_):
        yield self.results([next(source)])[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "results_iter", results_iter)
    code, out, err = command("translate", "--model", folder, *TEXT)
    assert (code, err) == (130, "outrider: 1 of 4 lines are done\n")
    assert len(out.splitlines()) == 1


def test_an_interrupt_of_shards_is_one_line(command, folder, tmp_path, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.jobs.translate.translate_shards", interrupted)
    where = ("--shards", tmp_path, "--out", tmp_path / "out")
    code, out, err = command("translate", "--model", folder, *where)
    message = "outrider: stopped; the finished files are kept; the same command continues\n"
    assert (code, out, err) == (130, "", message)


def test_generate_prints_prompt_and_continuation(command, language_model) -> None:
    options = ("--temperature", 0.9, "--seed", 4, "--max-new-tokens", 9)
    code, out, _ = command("generate", "--model", language_model, "two men", *options)
    expected = load(language_model, device="cpu").generate(
        "two men", temperature=0.9, seed=4, max_new_tokens=9
    )
    assert (code, out) == (0, f"two men{expected}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--strategy", "greedy", "--beams", 4), "--beams: 4 has no effect with strategy 'greedy'"),
        (("--beams", 2, "--n-best", 3), "--n-best: 3 is more than beams (2)"),
        (("--in", "nowhere.txt"), "nowhere.txt: no such file"),
        (("--in", "."), ".: cannot be read: Is a directory"),
        (("--out", "."), ".: cannot be written: it is a folder"),
        (("--out", "pyproject.toml/x"), "pyproject.toml/x: cannot be written: "),
        (("--in", "a", "--out", "a"), "--out: a is also the input and would be overwritten"),
        (("--batch-tokens", 0), "Invalid value for '--batch-tokens': Input should be greater"),
        (("--device", "abacus"), "device: got 'abacus', which this machine does not have"),
    ],
)
def test_mistakes_are_one_line(command, folder, arguments, message) -> None:
    text = () if "--in" in arguments else ("a",)
    code, out, err = command("translate", "--model", folder, *arguments, *text)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_text_and_file_together_are_refused(command, folder) -> None:
    code, _, err = command("translate", "--model", folder, "--in", "x", "a")
    assert code == 2
    assert "--in: cannot be combined with texts; leave out one of them" in err


def test_the_other_kind_of_model_is_named(command, folder, language_model) -> None:
    code, _, err = command("translate", "--model", language_model, "a")
    assert (code, "is a language model; use outrider generate" in err) == (2, True)
    code, _, err = command("generate", "--model", folder, "a")
    assert (code, "is an encoder-decoder; use outrider translate" in err) == (2, True)
