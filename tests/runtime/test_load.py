"""`load`: from a folder to a Translator or Generator, and its errors."""

import json
import shutil
import warnings
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError, ModelError, SettingsWarning
from outrider.files.hub import SAFE_FILES
from outrider.runtime import Generator, Translator, load
from outrider.runtime.options import GenerationSettings
from outrider.torch.export import to_marian
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from tests.helpers import tiny

TEXT = ["a small dog runs", "two men play", "where is the station?", "it is late. we go home!"]


@pytest.fixture(scope="module")
def translator_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
    tokenizer.save(folder)
    torch.manual_seed(0)
    model = Seq2Seq(
        Seq2SeqConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            encoder_layers=1,
            decoder_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_positions=32,
            position="learned",
        )
    )
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory, translator_folder):
    folder = tmp_path_factory.mktemp("marian")
    shutil.copytree(translator_folder, folder, dirs_exist_ok=True)
    tokenizer = load(translator_folder, device="cpu").tokenizer
    to_marian(tiny.marian_like(vocab_size=tokenizer.vocab_size)).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    return folder


@pytest.fixture(scope="module")
def generator_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator")
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64), verbatim=True)
    tokenizer.save(folder)
    torch.manual_seed(0)
    model = LanguageModel(
        LanguageModelConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_positions=24,
            position="learned",
        )
    )
    model.save_pretrained(folder)
    return folder


def test_an_encoder_decoder_becomes_a_translator(translator_folder) -> None:
    translator = load(translator_folder, device="cpu")
    assert isinstance(translator, Translator)
    assert translator.longest == 32
    texts = ["two men", "", "a small dog runs. " * 20, "where?"]
    together = translator.translate(texts)
    assert together == [translator.translate(text) for text in texts]
    assert together[1] == ""
    assert translator.translate(texts, beams=3) == [translator.translate(t, beams=3) for t in texts]


def test_a_language_model_becomes_a_generator(generator_folder) -> None:
    generator = load(generator_folder, device="cpu")
    assert isinstance(generator, Generator)
    prompts = ["two ", "a small dog runs and runs and runs and runs", ""]
    options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 8}
    together = generator.generate(prompts, **options)
    assert together == [
        generator.generate(prompt, **{**options, "seed": 3 + n}) for n, prompt in enumerate(prompts)
    ]


def test_other_dtypes_load(translator_folder) -> None:
    translator = load(translator_folder, device="cpu", dtype="bfloat16")
    assert isinstance(translator.translate("two men"), str)


def test_padding_and_suppressed_tokens_are_never_produced(tmp_path, echo) -> None:
    backend = echo()
    assert GenerationSettings(tmp_path).defaults(backend) == {"suppress": (0,), "force_eos": False}
    values = {"bad_words_ids": [[3], [4, 5], [10**6]], "forced_eos_token_id": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert GenerationSettings(tmp_path).defaults(backend) == {"suppress": (0, 3), "force_eos": True}
    (tmp_path / "generation_config.json").write_text('{"bad_words_ids": [3]}')
    with pytest.raises(ModelError, match=r"bad_words_ids must be a list of lists of token ids"):
        GenerationSettings(tmp_path).defaults(backend)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config.json: is not JSON"):
        GenerationSettings(tmp_path).defaults(backend)


SETTINGS = {
    "repetition_penalty": (1.3, 1.0),
    "no_repeat_ngram_size": (3, 0),
    "begin_suppress_tokens": ([5], None),
    "sequence_bias": ([[[5], -9.0]], None),
    "min_length": (5, 0),
}
"""A value with an effect in transformers, and one without."""


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("key", SETTINGS)
def test_ignored_generation_settings_give_a_warning(marian_folder, tmp_path, key, file) -> None:
    shutil.copytree(marian_folder, tmp_path, dirs_exist_ok=True)
    path, (value, off) = tmp_path / file, SETTINGS[key]
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, key: value}))
    with pytest.warns(SettingsWarning) as caught:
        load(tmp_path, device="cpu")
    (message,) = [str(one.message) for one in caught]
    assert message.startswith(f"{path}: {key}: not applied, the text can differ")
    path.write_text(json.dumps({**before, key: off}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, device="cpu")


def test_all_generation_settings_are_one_warning(marian_folder, tmp_path) -> None:
    shutil.copytree(marian_folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "generation_config.json"
    values = {"bad_words_ids": [[3], [4, 5]], "num_beams": 4, "do_sample": True, "temperature": 2}
    path.write_text(json.dumps({**values, "min_length": 5}))
    message = f"{path}: min_length, bad_words_ids of several tokens: not applied"
    with pytest.warns(SettingsWarning) as caught:
        load(tmp_path, device="cpu")
    assert [str(one.message).startswith(message) for one in caught] == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"device": "abacus"},
            r"^device: got 'abacus', which this machine does not have; try auto",
        ),
        (
            {"dtype": "int3"},
            r"^dtype: got 'int3', expected one of float32, bfloat16, float16, int8",
        ),
        ({"threads": 0}, r"^threads: got 0, expected 1 to 1024$"),
        ({"threads": 10**11}, r"^threads: got 100000000000, expected 1 to 1024$"),
    ],
)
def test_wrong_options_are_named(translator_folder, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(translator_folder, **options)


def test_threads_are_set(translator_folder) -> None:
    before = torch.get_num_threads()
    try:
        load(translator_folder, device="cpu", threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_folder_without_a_model_is_refused(tmp_path, translator_folder) -> None:
    with pytest.raises(ModelError, match=r"nowhere: no such folder; give a model folder or a Hub"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"^no/such/model: no such folder; give a model folder"):
        load("no/such/model")
    with pytest.raises(ModelError, match=r"config.json: is a file; give the folder that holds"):
        load(translator_folder / "config.json")
    with pytest.raises(ModelError, match=r"is not a model folder, it has no config.json"):
        load(tmp_path)


def test_a_tokenizer_of_another_model_is_refused(tmp_path, translator_folder) -> None:
    for file in translator_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    letters = [chr(code) for code in range(33, 127)]
    train_tokenizer([" ".join(letters)], TokenizerConfig(kind="char", vocab_size=99)).save(tmp_path)
    with pytest.raises(
        ModelError, match=r"tokens, the model only \d+; they do not belong together"
    ):
        load(tmp_path)


def test_a_hub_model_is_fetched_without_code_or_pickle(monkeypatch, translator_folder) -> None:
    asked = {}

    def snapshot_download(hub_id, *, allow_patterns):
        asked[hub_id] = allow_patterns
        return str(translator_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert isinstance(load("someone/model", device="cpu"), Translator)
    assert asked == {"someone/model": list(SAFE_FILES)}
    for name in ("pytorch_model.bin", "pytorch_model-1-of-2.bin", "modeling.py", "model.pt"):
        assert not any(fnmatch(name, pattern) for pattern in SAFE_FILES)


def test_an_unavailable_hub_model_is_named(monkeypatch) -> None:
    def snapshot_download(hub_id, *, allow_patterns):
        raise OSError("no route to host\nmore")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(
        ModelError, match=r"^a/b: no such folder here, and .* give it \(no route to host\)$"
    ):
        load("a/b")


def test_older_summarisers_begin_with_their_start_token(tmp_path: Path) -> None:
    """As in transformers, the old key applies only without a generation config."""
    values = {"force_bos_token_to_be_generated": True, "bos_token_id": 3}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert GenerationSettings(tmp_path).forced_first(9) == 3
    with pytest.raises(ModelError, match=r"config\.json: forced_bos_token_id is 3, not a token"):
        GenerationSettings(tmp_path).forced_first(3)
    (tmp_path / "generation_config.json").write_text('{"num_beams": 4}')
    assert GenerationSettings(tmp_path).forced_first(9) is None
    (tmp_path / "config.json").write_text(json.dumps(values | {"forced_bos_token_id": 5}))
    assert GenerationSettings(tmp_path).forced_first(9) == 5
