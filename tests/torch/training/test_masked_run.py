"""Masked language models: from text to a folder, and as the encoder of a translation model."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import outrider
from outrider.cli.main import run as outrider_command
from outrider.config import build_config
from outrider.errors import ConfigError, ModelError
from outrider.run_config import RunConfig
from outrider.torch.evaluation.likelihood import evaluate_text
from outrider.torch.inspect.attention_maps import read_maps, read_masked_maps
from outrider.torch.models import Seq2Seq, load_masked_lm, load_model
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run

SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "dropout": 0.0}
TRAIN = {
    **{"steps": 4, "batch_tokens": 512, "learning_rate": 0.01, "warmup": 1, "save_every": 2},
    **{"evaluate_every": 0, "log_every": 1, "device": "cpu", "label_smoothing": 0.0},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text with predictable letters: abcdef, repeated."""
    folder, dice = tmp_path_factory.mktemp("corpus"), random.Random(0)
    lines = []
    for _ in range(600):
        start, length = dice.randrange(6), dice.randint(6, 20)
        lines.append("".join("abcdef"[(start + i) % 6] for i in range(length)))
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "test.txt").write_text("\n".join(lines[:60]) + "\n")
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines[:80]))
    (folder / "train.de").write_text("".join(f"{line.upper()}\n" for line in lines[:80]))
    return folder


def masked(corpus: Path, folder: Path, **changes: Any) -> RunConfig:
    """A run config; keys that start with `data_`, `model_` or `train_` go into that section."""
    data: dict[str, Any] = {
        "folder": str(folder / "text"),
        "root": str(corpus),
        "train": {"target": "text.txt"},
        "valid_fraction": 0.1,
        "sequence_length": 32,
        "tokenizer": {"kind": "char", "vocab_size": 32},
    }
    model = {"type": "masked_lm", "layers": 2, "position": "rotary", **SIZE}
    values: dict[str, Any] = {"name": "letters", "folder": str(folder / "masked")}
    sections: dict[str, Any] = {"data": data, "model": model, "train": dict(TRAIN)}
    for key, value in changes.items():
        section, _, name = key.partition("_")
        if section in sections:
            sections[section][name] = value
        else:
            values[key] = value
    return build_config(RunConfig, {**values, **sections})


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained on these letters."""
    folder = tmp_path_factory.mktemp("trained")
    options = {"train_steps": 120, "train_evaluate_every": 60, "train_save_every": 60}
    return train_run(masked(corpus, folder, **options, evaluate={"text": "test.txt"}))


def test_masked_run_learns_from_both_sides(trained: Path, corpus: Path) -> None:
    run = trained.parent
    log = read_log(run / "log.jsonl")
    losses = [one["loss"] for one in log if "learning_rate" in one]
    assert losses[-1] < losses[0] / 2
    checks = [one for one in log if one["event"] == "evaluation"]
    assert checks[-1]["loss"] < checks[0]["loss"]
    assert checks[-1]["accuracy"] > 0.7

    result = json.loads((run / "results.json").read_text())
    scores = result["scores"]
    assert result["task"] == "masked_lm"
    assert scores["accuracy"] > 2 * scores["commonest_accuracy"]
    assert scores["asked"] == pytest.approx(0.15 * scores["tokens"], rel=0.1)
    again = evaluate_text(trained, text=corpus / "test.txt")["scores"]
    assert again == scores, "the same places are asked for every time"
    assert outrider_command(["evaluate", str(trained), "--text", str(corpus / "test.txt")]) == 0
    card = (trained / "README.md").read_text()
    assert "A masked language model" in card
    assert "encoder: {pretrained: path/to/letters" in card


def test_transformers_reads_the_folder(trained: Path) -> None:
    """Mask, template and scores equal those of the folder."""
    tokenizer, ours = AutoTokenizer.from_pretrained(trained), load_masked_lm(trained)
    theirs = AutoModelForMaskedLM.from_pretrained(trained)
    assert ours is not None
    assert tokenizer.mask_token_id == ours.config.mask_token_id == len(tokenizer) - 1
    ids = tokenizer("abcdefabcdef", return_tensors="pt")["input_ids"]
    assert ids[0, [0, -1]].tolist() == [ours.config.bos_token_id, ours.config.eos_token_id]
    hidden = ids.clone()
    hidden[0, 6] = tokenizer.mask_token_id
    with torch.no_grad():
        logits = theirs(input_ids=hidden).logits
        assert torch.equal(logits, ours(input_ids=hidden).logits)
    assert logits[0, 6].argmax() == ids[0, 6], "f comes after e and before a"


def test_full_disk_raises_one_sentence(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = r"masked language model.*outrider evaluate --text.*model\.encoder\.pretrained"
    with pytest.raises(ModelError, match=wanted):
        outrider.load(trained)
    for command in (["translate", "ab", "--model", str(trained)], ["serve", str(trained)]):
        assert outrider_command(command) == 2
        error = capsys.readouterr().err
        assert "masked language model" in error
        assert len(error.strip().splitlines()) == 1


def test_killed_run_resumes_with_the_same_masks(corpus: Path, tmp_path: Path) -> None:
    whole = train_run(masked(corpus, tmp_path / "whole", model_dropout=0.1))
    train_run(masked(corpus, tmp_path / "parts", model_dropout=0.1, train_steps=2))
    parts = train_run(masked(corpus, tmp_path / "parts", model_dropout=0.1))
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    other = train_run(masked(corpus, tmp_path / "other", model_dropout=0.1, train_mask={}))
    assert (other / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    more = masked(corpus, tmp_path / "more", model_dropout=0.1, train_mask={"share": 0.4})
    assert (train_run(more) / "model.safetensors").read_bytes() != (
        whole / "model.safetensors"
    ).read_bytes()


def translator(corpus: Path, folder: Path, encoder: Path, **changes: Any) -> RunConfig:
    data = {
        "folder": str(folder / "pairs"),
        "root": str(corpus),
        "train": {"source": "train.en", "target": "train.de"},
        "tokenizer": {"kind": "char", "vocab_size": 32},
        "source_tokenizer": {"folder": str(encoder)},
        "clean": {"drop_duplicates": False, "max_tokens": 30},
    }
    model = {
        **SIZE,
        "hidden_size": 16,
        "decoder_layers": 1,
        "encoder": {"pretrained": str(encoder)},
    }
    model["encoder"] |= changes
    values = {"name": "shout", "folder": str(folder / "run"), "data": data, "model": model}
    return build_config(RunConfig, {**values, "train": TRAIN})


@pytest.mark.parametrize("freeze", [True, False])
def test_a_translator_uses_it_as_encoder(
    trained: Path, corpus: Path, tmp_path: Path, freeze: bool
) -> None:
    encoder = tmp_path / "encoder"
    shutil.copytree(trained, encoder)
    folder = train_run(translator(corpus, tmp_path, encoder, freeze=freeze))
    shutil.rmtree(encoder)
    loaded, source = outrider.load(folder, backend="torch"), load_masked_lm(trained)
    assert source is not None
    model = load_model(folder)
    assert isinstance(model, Seq2Seq)
    assert model.pretrained is not None
    ids = torch.tensor([[3, 5, 6, 7, 1]])
    with torch.no_grad():
        same = torch.allclose(model.pretrained.features(ids), source.hidden(ids), atol=1e-6)
    assert same == freeze
    texts = ["abcd", "cdefab"]
    assert loaded.translate(texts) == [loaded.translate(text) for text in texts]
    assert "head" not in {name.split(".")[2] for name in model.state_dict() if "pretrained" in name}
    (own, *_) = read_maps(loaded, "abcd").parts
    assert own.name == "encoder"
    assert own.weights_LHTS.shape[:2] == (2, 2)


def test_maps_of_a_masked_language_model(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_masked_lm(trained)
    assert model is not None
    tokenizer = outrider.text.tokenizer.load_tokenizer(trained)
    (own,) = read_masked_maps(model, tokenizer, "abcdef").parts
    assert own.queries == ("▸", *"abcdef", "■")
    torch.testing.assert_close(own.weights_LHTS.sum(-1), torch.ones(2, 2, 8))
    assert float(own.weights_LHTS[0, :, 1, 2:].sum()) > 0, "it looks ahead, too"
    assert outrider_command(["show", "attention", str(trained), "abc"]) == 0
    assert "the text looks at itself" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"model_attention": {"kind": "causal"}}, r"model\.attention\.kind"),
        ({"model_mask_token_id": 3}, r"model\.mask_token_id.*leave it out"),
        ({"model_memory": 8}, r"model\.memory: unknown key"),
        ({"model_start": "x", "data_tokenizer": {}}, r"model\.start.*fresh weights; leave it out"),
        ({"train_mask": {"share": 1.5}}, r"train\.mask\.share"),
        ({"train_mask": {"hidden": 0.9, "random": 0.2}}, r"train\.mask.*lower them to 1"),
        ({"train_mask": {"shares": 0.2}}, r"train\.mask\.shares.*did you mean 'share'"),
        ({"train_stop_metric": "bleu"}, r"train\.stop_metric.*perplexity"),
        ({"model_position": "learned", "model_max_positions": 32}, r"max_positions.*33 tokens"),
        ({"evaluate": {"source": "train.en", "reference": "train.de"}}, r"evaluate\.source"),
        ({"model_type": "language_model", "train_mask": {}}, r"train\.mask: is for a masked_lm"),
    ],
)
def test_incompatible_settings_are_refused(
    corpus: Path, tmp_path: Path, changes: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(ConfigError, match=wanted):
        train_run(masked(corpus, tmp_path, **changes))


def test_encoder_length_is_limited_to_its_positions(
    trained: Path, corpus: Path, tmp_path: Path
) -> None:
    config = translator(corpus, tmp_path, trained)
    config = config.model_copy(
        update={
            "data": config.data.model_copy(
                update={"clean": config.data.clean.model_copy(update={"max_tokens": 33})}
            )
        }
    )
    with pytest.raises(ConfigError, match=r"data\.clean\.max_tokens.*33 positions.*at most 32"):
        train_run(config)
