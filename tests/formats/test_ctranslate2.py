"""CTranslate2 folders and Argos packages: loaded without conversion and validated."""

import json
import random
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ModelError, OutriderError
from outrider.files import argos
from outrider.files.hub import model_folder
from outrider.files.writing import VARIABLE
from outrider.formats.folder import read_model
from outrider.formats.readers.ctranslate2_binary import read_binary
from outrider.formats.spec import Seq2SeqSpec
from outrider.runtime import Translator, load
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.marian import MarianTokenizer
from outrider.torch.export import export_copy, export_ctranslate2, export_marian
from outrider.torch.models.folder import load_model
from tests.helpers import tiny

ctranslate2 = pytest.importorskip("ctranslate2", reason="install outrider[peers] to test readers")

TEXT = ["the cat sees the dog", "the dog sees a cat", "a bird sings in the tree"] * 5
PARTS: dict[str, dict[str, Any]] = {
    "marian": {"norm": "post", "logits_bias": True},
    "pre": {"norm": "pre", "activation": "gelu"},
    "learned": {"norm": "post", "activation": "silu", "position": "learned", "max_positions": 64},
    "gated": {"norm": "pre", "gated": True, "activation": "silu", "tie_word_embeddings": False},
    "unshared": {"norm": "post", "share_embeddings": False, "scale_embedding": False},
}


def save(folder: Path, **parts: Any) -> Path:
    """Save a folder of ours in which every bias and norm is different."""
    tokenizer = train_tokenizer(iter(TEXT), TokenizerConfig(kind="unigram", vocab_size=400))
    model = tiny.seq2seq(vocab_size=tokenizer.vocab_size, **parts)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(4.0)
            else:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def argos_package(folder: Path, target: Path) -> Path:
    """Write a CTranslate2 folder as an Argos package: one SentencePiece model, next to `model/`."""
    root = "translate-xx_yy-1_0"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("model.bin", "config.json", "shared_vocabulary.json"):
            archive.write(folder / name, f"{root}/model/{name}")
        archive.write(folder / "source.spm", f"{root}/sentencepiece.model")
        archive.writestr(f"{root}/metadata.json", "{}")
        archive.writestr(f"{root}/stanza/resources.json", "not needed")
    return target


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with Marian's tokenizer files, in CTranslate2's format."""
    folder = tmp_path_factory.mktemp("marian")
    save(folder / "ours", norm="post", logits_bias=True)
    export_marian(folder / "ours", folder / "marian")
    return export_ctranslate2(folder / "marian", folder / "theirs", quantization="int8")


@pytest.mark.parametrize("kind", PARTS)
def test_an_exported_model_is_read_back(kind: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "ours", **PARTS[kind])
    target = export_ctranslate2(folder, tmp_path / "theirs")
    before, after = load_model(folder), load_model(target)
    source, text = torch.tensor([[5, 9, 12, 6, 10, 1]]), torch.tensor([[8, 11, 4, 14, 9]])
    with torch.no_grad():
        wanted = before(input_ids=source, labels=text).logits
        found = after(input_ids=source, labels=text).logits
    kept = [0, 2, 3]  # never generated: the bias in the file forbids these tokens
    wanted[..., kept] = found[..., kept] = 0
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_int8_weights_are_not_converted(marian: Path) -> None:
    part = read_model(marian)
    table = part.weights["encoder.blocks.0.attention.qkv.weight"]
    stored = read_binary(marian / "model.bin").variables
    name = "encoder/layer_0/self_attention/linear_0/weight"
    assert table.kind == "int8"
    assert table.data is stored[name].data or np.array_equal(table.data, stored[name].data)
    assert table.scale is not None
    np.testing.assert_allclose(table.scale * stored[f"{name}_scale"].data, 1, rtol=1e-6)


def test_both_backends_read_them(marian: Path) -> None:
    texts = TEXT[:3]
    for backend, dtype in (("native", "float32"), ("torch", "float32")):
        translator = load(marian, backend=backend, dtype=dtype)
        assert isinstance(translator, Translator)
        engine = ctranslate2.Translator(str(marian), compute_type="float32", intra_threads=1)
        pieces = sentencepiece.SentencePieceProcessor(str(marian / "source.spm"))
        sources = [pieces.encode(text, out_type=str) for text in texts]
        said = engine.translate_batch(sources, beam_size=1, max_decoding_length=12)
        words = json.loads((marian / "shared_vocabulary.json").read_text(encoding="utf-8"))
        wanted = [[words.index(word) for word in one.hypotheses[0]] for one in said]
        found = translator.results(texts, max_new_tokens=12)
        assert [list(best.tokens) for best, *_ in found] == wanted


def test_a_model_that_starts_from_zeros_and_has_no_padding(tmp_path: Path) -> None:
    """As written by the converter of Marian models: one additional token, never generated."""
    specs = ctranslate2.specs
    bent = specs.common_spec.Activation.GELUTanh
    spec = specs.TransformerSpec.from_config(
        (1, 1), 2, pre_norm=False, activation=bent, layernorm_embedding=True
    )
    spec.config.layer_norm_epsilon = 0.01
    dice = np.random.default_rng(0)
    words = ["</s>", "<unk>", *(f"w{n}" for n in range(10))]
    width, inner = 8, 12
    for side in (spec.encoder, spec.decoder):
        side.scale_embeddings = True
        side.layernorm_embedding.gamma = dice.normal(1, 0.1, size=width).astype(np.float32)
        side.layernorm_embedding.beta = dice.normal(size=width).astype(np.float32)
        for layer in side.layer:
            linears = [*layer.self_attention.linear, *getattr(layer, "attention", _None).linear]
            rows = [3 * width, width, width, 2 * width, width]
            for linear, count in zip(linears, rows, strict=False):
                linear.weight = dice.normal(size=(count, width)).astype(np.float32)
                linear.bias = dice.normal(size=count).astype(np.float32)
            for linear, shape in (
                (layer.ffn.linear_0, (inner, width)),
                (layer.ffn.linear_1, (width, inner)),
            ):
                linear.weight = dice.normal(size=shape).astype(np.float32)
                linear.bias = dice.normal(size=shape[0]).astype(np.float32)
            norms = [layer.self_attention.layer_norm, layer.ffn.layer_norm]
            norms += [layer.attention.layer_norm] if hasattr(layer, "attention") else []
            for norm in norms:
                norm.gamma = dice.normal(1, 0.1, size=width).astype(np.float32)
                norm.beta = dice.normal(size=width).astype(np.float32)
    table = dice.normal(size=(len(words), width)).astype(np.float32)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table
    spec.decoder.start_from_zero_embedding = True
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    (tmp_path / "model").mkdir()
    spec.save(str(tmp_path / "model"))  # without a position table: OpenNMT's sinusoids

    part = read_model(tmp_path)
    config = part.config
    assert isinstance(config, Seq2SeqSpec)
    assert (config.vocab_size, config.pad_token_id, config.decoder_start_token_id) == (13, 12, 12)
    assert not part.weights["tokens.weight"].as_float32()[12].any()
    model = load_model(tmp_path)
    engine = ctranslate2.Translator(str(tmp_path / "model"), compute_type="float32")
    source, target = [2, 5, 7, 3], [4, 9, 2, 2, 11]
    (said,) = engine.score_batch([[words[i] for i in source]], [[words[i] for i in target]])
    labels = torch.tensor([[*target, 0]])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*source, 0]]), labels=labels).logits
    found = logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze()
    assert found.tolist() == pytest.approx(said.log_probs, rel=1e-4)


class _None:
    linear: tuple[Any, ...] = ()


def test_a_target_vocabulary_becomes_a_tokenizer(marian: Path, tmp_path: Path) -> None:
    """Argos has no SentencePiece model of the target; words are segmented into known pieces."""
    package = argos_package(marian, tmp_path / "xx_yy.argosmodel")
    tokenizer = load_tokenizer(model_folder(package))
    assert isinstance(tokenizer, MarianTokenizer)
    (ids,) = tokenizer.encode_target_batch(["the cat sings"])
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == "the cat sings"
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.encode_target_batch(["the cat sings"]) == [ids]
    assert again.decode(ids) == "the cat sings"
    assert again.encode("a bird sees") == tokenizer.encode("a bird sees")


@pytest.mark.parametrize("place", ["cache", "off", "file/below", "n" * 300, "~no-such-user/cache"])
def test_a_package_is_read_like_a_folder(
    place: str, marian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, place)
    package = argos_package(marian, tmp_path / "xx_yy.argosmodel")
    first, again = load(package), load(package)
    folder = load(marian)
    for one in (first, again, folder):
        assert isinstance(one, Translator)
    assert (
        first.translate(TEXT[:3], max_new_tokens=9)
        == folder.translate(  # type: ignore[union-attr]
            TEXT[:3], max_new_tokens=9
        )
    )
    unpacked = model_folder(package)
    names = sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*.*"))
    assert names == [
        "metadata.json",
        "model/config.json",
        "model/model.bin",
        "model/shared_vocabulary.json",
        "sentencepiece.model",
    ]


def test_hostile_packages(marian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    package = tmp_path / "bad.argosmodel"

    def refused(because: str) -> None:
        with pytest.raises(ModelError, match=because):
            model_folder(package)
        assert not list((tmp_path / "cache").glob("bad*"))

    package.write_bytes(b"no archive")
    refused("not an Argos package")
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("root/model/model.bin", bytes(200 << 20))
    refused("would be 200 MiB in .* KiB; this is no real model")
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("root/model/model.bin", b"x")
        archive.writestr("root/sentencepiece.model", bytes(65 << 20))
    refused("sentencepiece.model would be 65 MiB")
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("../model/model.bin", b"x")
        archive.writestr("root/../../model/model.bin", b"x")
    refused("holds no model/model.bin")
    assert not (tmp_path / "model").exists()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("one/model/model.bin", b"x")
        archive.writestr("two/model/model.bin", b"y")
    refused("holds model/model.bin twice")
    monkeypatch.setattr(argos, "ENTRIES", 1)
    refused("holds more than 1 files")
    monkeypatch.undo()
    raw = argos_package(marian, package).read_bytes()
    dice = random.Random(0)
    for _ in range(300):  # any other exception fails the test
        bent = bytearray(raw)
        for _ in range(dice.randint(1, 8)):
            bent[dice.randrange(len(bent))] = dice.randrange(256)
        package.write_bytes(bent[: dice.choice([len(bent), dice.randrange(len(bent))])])
        monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
        with suppress(OutriderError):
            read_model(model_folder(package))


def test_hostile_files(marian: Path, tmp_path: Path) -> None:
    for name in ("config.json", "shared_vocabulary.json"):
        (tmp_path / name).write_bytes((marian / name).read_bytes())
    raw, path = (marian / "model.bin").read_bytes(), tmp_path / "model.bin"

    def refused(content: bytes, because: str) -> None:
        path.write_bytes(content)
        with pytest.raises(ModelError, match=because) as caught:
            read_model(tmp_path)
        assert str(caught.value).count(str(tmp_path)) == 1

    refused(b"", "cannot be mapped")
    refused(b"\x80\x02}q\x00.", "its format is")  # a pickle
    refused(struct.pack("<I", 5) + raw[4:], "its format is 5, Outrider reads 6")
    refused(raw[:-1], "ends within")
    refused(raw + b"\0", "1 bytes are left at its end")
    refused(raw[:4] + struct.pack("<H", 65535) + raw[6:], "a name of 65535 bytes")
    spec = raw.index(b"TransformerSpec")
    refused(raw.replace(b"TransformerSpec", b"TransformerSpeX", 1), "holds a TransformerSpeX")
    count = spec + len(b"TransformerSpec") + 1 + 4
    refused(raw[:count] + b"\xff\xff\xff\xff" + raw[count + 4 :], "CTranslate2")
    refused(raw.replace(b"decoder/num_heads", b"decoder/num_headz", 1), "lacks 'decoder/num_heads'")
    refused(
        raw.replace(b"ffn/linear_0/weight_scale", b"ffn/linear_0/weight_scaly", 1), "weight_scale"
    )


def test_damaged_files_cause_no_crash(marian: Path, tmp_path: Path) -> None:
    for name in ("config.json", "shared_vocabulary.json"):
        (tmp_path / name).write_bytes((marian / name).read_bytes())
    raw, dice = (marian / "model.bin").read_bytes(), random.Random(1)
    for _ in range(300):
        bent = bytearray(raw)
        for _ in range(dice.randint(1, 4)):
            bent[dice.randrange(min(len(bent), 4000))] = dice.choice([0, 1, 127, 255])
        (tmp_path / "model.bin").write_bytes(bent)
        with suppress(OutriderError):
            read_model(tmp_path).check()


@pytest.mark.parametrize(
    ("name", "content", "because"),
    [
        ("config.json", '{"eos_token": 5}', "eos_token is '5', which is no token"),
        ("config.json", '{"add_source_bos": true}', "add_source_bos is true: not supported"),
        ("config.json", '{"add_source_eos": 1}', "add_source_eos is '1', not true or false"),
        ("config.json", '{"layer_norm_epsilon": "x"}', "norm_eps"),
        ("config.json", '{"logit_cap": 30.0}', "config.json: logit_cap is 30.0, an unknown key"),
        ("config.json", "[]", "must hold one JSON object"),
        ("shared_vocabulary.json", "{}", "must hold one JSON list"),
        ("shared_vocabulary.json", '["</s>", "<unk>", 5]', "'5' is no token"),
        ("shared_vocabulary.json", '["</s>", "<unk>", "a", "a"]', "list of different tokens"),
        ("shared_vocabulary.json", '["</s>", "<unk>", "<pad>", "<s>"]', "the vocabulary implies"),
    ],
)
def test_configs_and_vocabularies_are_checked(
    name: str, content: str, because: str, marian: Path, tmp_path: Path
) -> None:
    for each in ("config.json", "shared_vocabulary.json", "model.bin"):
        (tmp_path / each).write_bytes((marian / each).read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=because):
        read_model(tmp_path)


def test_a_package_is_saved_as_a_folder(marian: Path, tmp_path: Path) -> None:
    package = argos_package(marian, tmp_path / "xx_yy.argosmodel")
    folder = export_copy(package, tmp_path / "ours", dtype="float32")
    before, after = (load(one, backend="torch") for one in (package, folder))
    assert isinstance(before, Translator)
    assert isinstance(after, Translator)
    wanted = before.translate(TEXT[:3], max_new_tokens=9)
    assert after.translate(TEXT[:3], max_new_tokens=9) == wanted
