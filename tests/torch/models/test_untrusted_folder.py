"""Untrusted model folders: each loads or is refused promptly with one sentence."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.errors import ModelError, OutriderError
from outrider.formats.folder import read_model, read_parts
from outrider.torch.export import to_marian
from outrider.torch.models import load_model
from outrider.torch.models.folder import load_ctc, load_drafter
from tests.helpers import families, native_tiny, tiny

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tiny.seq2seq()
    model.save_pretrained(tmp_path)
    native_tiny.build_drafter(model, shortlist=9).save_pretrained(tmp_path / "drafter")
    native_tiny.build_ctc(model).save_pretrained(tmp_path / "ctc")
    return tmp_path


def load(folder: Path) -> None:
    model = load_model(folder)
    load_drafter(folder, model, load_ctc(folder, model))


def read(folder: Path) -> None:
    """What the native core reads, without PyTorch."""
    read_model(folder).check()
    read_parts(folder).check()


def refused(folder: Path, message: str) -> None:
    for loader in (load, read):
        began = time.perf_counter()
        with pytest.raises(ModelError, match=message) as caught:
            loader(folder)
        assert time.perf_counter() - began < 5, "it must not take long to say no"
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 900


def edit_config(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


FILES = [
    *("config.json", "model.safetensors", "model.safetensors.index.json"),
    *("drafter/config.json", "drafter/model.safetensors", "ctc/config.json"),
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_special_files_do_not_block(folder: Path, name: str, kind: str) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()  # the index is read only without it
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif name.endswith("index.json"):
        return  # a broken link counts as missing
    else:
        path.symlink_to(path.name)
    refused(folder, "is not a regular file|has no|cannot be read|is not a model folder")


@pytest.mark.parametrize("name", [one for one in FILES if one.endswith("json")])
@pytest.mark.parametrize("text", ["[]", "null", "{", '"a"', "[" * 9999, '{"a":' * 90, "\x00"])
def test_a_config_that_is_not_an_object_is_named(folder: Path, name: str, text: str) -> None:
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()  # the index is read only without it
    (folder / name).write_text(text)
    refused(folder, Path(name).name)


@pytest.mark.parametrize("part", [".", "drafter", "ctc"])
@pytest.mark.parametrize("dtype", ["nn", "__class__", "int8", "", [], {}, 1e300, True, "x" * 5000])
def test_unknown_dtypes_are_refused(folder: Path, part: str, dtype: Any) -> None:
    edit_config(folder / part / "config.json", dtype=dtype)
    refused(folder, "dtype: got .* expected one of float32, bfloat16|dtype: got 'xxx")


@pytest.mark.parametrize(
    "key", ["_attn_implementation", "_experts_implementation", "_name_or_path"]
)
@pytest.mark.parametrize("value", ["kernels-community/some-kernel", 7, {}, [None]])
def test_private_keys_of_transformers_are_ignored(folder: Path, key: str, value: Any) -> None:
    """An attention implementation may name a repository whose code would run."""
    edit_config(folder / "config.json", **{key: value})
    edit_config(folder / "drafter/config.json", **{key: value})
    load(folder)
    assert load_model(folder).config._attn_implementation == "sdpa"


def test_a_marian_config_runs_no_code(tmp_path: Path) -> None:
    to_marian(tiny.seq2seq(norm="post", logits_bias=True)).save_pretrained(tmp_path)
    for key in ("_attn_implementation", "attn_implementation"):
        edit_config(tmp_path / "config.json", **{key: "kernels-community/some-kernel"})
    assert load_model(tmp_path).config._attn_implementation == "sdpa"
    edit_config(tmp_path / "config.json", auto_map={"AutoModel": "modeling.Model"})
    refused(tmp_path, "config.json: auto_map: names remote code")
    edit_config(tmp_path / "config.json", auto_map=None, per_layer_config="some/kernel")
    refused(tmp_path, "config.json: per_layer_config: is 'some/kernel', an unknown key")


@pytest.mark.parametrize("key", ["id2label", "label2id", "problem_type", "return_dict"])
def test_irrelevant_keys_are_ignored(folder: Path, key: str) -> None:
    for value in (7, "x", [1], {"a": "b"}, None):
        edit_config(folder / "config.json", **{key: value})
        load(folder)


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    (".", {"encoder_layers": 1000, "decoder_layers": 1000}, "encoder_layers 1000, .* there are"),
    (".", {"model_type": []}, r"model_type is \[\]; Outrider can load"),
    (".", {"model_type": "x" * 9999}, "model_type is 'xxx"),
    (".", {"norm": "x" * 9999}, "norm: unknown 'xxx"),
    (".", {"hidden_size": ["x" * 9999]}, "hidden_size"),
    (".", {"dropout": float("nan")}, "dropout: got nan"),
    (".", {"vocab_size": 10**30}, "vocab_size: got 1000"),
    (".", {"max_positions": 10**9}, "max_positions: got 1000000000"),
    (".", {"max_positions": -1}, "max_positions: got -1"),
    (".", {"position": "learned", "max_positions": 1 << 24}, "position.table.weight"),
    (".", {"vocab_size": 1 << 24}, r"has shape \[23, 16\], config.json implies"),
    (".", {"pad_token_id": 23}, "pad_token_id: got 23, but the vocabulary has 23 tokens"),
    (".", {"pad_token_id": -1}, "pad_token_id: got -1"),
    (".", {"eos_token_id": [1, 99]}, "eos_token_id: got 99"),
    (".", {"eos_token_id": []}, "eos_token_id: is an empty list"),
    (".", {"decoder_start_token_id": 10**9}, "decoder_start_token_id: got 1000000000"),
    (".", {"bos_token_id": 23}, "bos_token_id: got 23"),
    ("ctc", {"ar_weight": float("nan")}, "ar_weight: got nan"),
    ("ctc", {"upsample": 10**9}, "upsample: got"),
    ("ctc", {"blank": -1}, "blank: got -1"),
    ("drafter", {"block": 10**9}, "block: got"),
    ("drafter", {"candidates": 0}, "candidates: got 0"),
    ("drafter", {"taps": [7]}, r"taps: got \[7\]"),
    ("drafter", {"taps": []}, r"taps: got \[\]"),
    ("drafter", {"shortlist": 10**9}, "shortlist: got"),
    ("drafter", {"model_type": None}, "model_type is None, expected 'outrider_drafter'"),
    ("drafter", {"decay": float("nan")}, "decay: got nan"),
]


@pytest.mark.parametrize(("part", "changes", "message"), CONFIGS, ids=[m for *_, m in CONFIGS])
def test_absurd_values_are_named(
    folder: Path, part: str, changes: dict[str, Any], message: str
) -> None:
    edit_config(folder / part / "config.json", **changes)
    refused(folder, message)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("part", [".", "drafter", "ctc"])
def test_weights_are_floating_point(folder: Path, part: str, dtype: torch.dtype) -> None:
    path = folder / part / "model.safetensors"
    name = {".": "tokens.weight", "drafter": "mask", "ctc": "copies"}[part]
    edit_weights(path, lambda w: w.update({name: w[name].to(dtype)}))
    refused(folder, f"'{name}' is stored as .*expected one of bfloat16, float16, float32, float64")


def test_weights_may_be_stored_in_float64(folder: Path) -> None:
    path = folder / "model.safetensors"
    edit_weights(path, lambda w: w.update({name: one.double() for name, one in w.items()}))
    assert load_model(folder).dtype == torch.float32


@pytest.mark.parametrize(
    "ids", [[0, 1, 2, 3, 4, 5, 6, 7, 23], [-1, *range(8)], [3, 2, *range(4, 11)], [5] * 9]
)
def test_a_shortlist_holds_tokens_in_order(folder: Path, ids: list[int]) -> None:
    path = folder / "drafter/model.safetensors"
    edit_weights(path, lambda w: w.update(kept_V=torch.tensor(ids)))
    refused(folder, "kept_V, the drafter's shortlist, must hold token ids from 0 to 22, in order")


def test_a_shortlist_holds_whole_numbers(folder: Path) -> None:
    path = folder / "drafter/model.safetensors"
    edit_weights(path, lambda w: w.update(kept_V=w["kept_V"].float()))
    refused(folder, "'kept_V' is stored as float32, expected one of int64")


def test_steps_are_counted_from_zero(folder: Path) -> None:
    path = folder / "ctc/model.safetensors"
    edit_weights(path, lambda w: w.update(steps=torch.tensor(-5)))
    refused(folder, "'steps' is -5, expected 0 or more")


def header(values: object, *, length: int | None = None) -> bytes:
    text = json.dumps(values).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


HEADERS = {
    "nothing": b"",
    "a length alone": b"\xff" * 8,
    "a huge length": header({}, length=1 << 62),
    "no object": header([]),
    "a huge tensor": header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}),
    "overflow": header({"a": {"dtype": "F32", "shape": [1 << 62, 8], "data_offsets": [0, 0]}}),
    "an unknown type": header({"a": {"dtype": "Q3", "shape": [0], "data_offsets": [0, 0]}}),
    "below zero": header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
    "nested": header({"a": {"dtype": "F32", "shape": [[[]]], "data_offsets": [0, 0]}}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_named(folder: Path, name: str) -> None:
    (folder / "model.safetensors").write_bytes(HEADERS[name])
    refused(folder, r"model\.safetensors: damaged or not safetensors")


@pytest.mark.parametrize("shard", ["", "..", ".", "config.json", "a\x00b", "x" * 5000, 7, None])
def test_an_index_without_weights_is_refused(folder: Path, shard: Any) -> None:
    index = {"weight_map": {"tokens.weight": shard}}
    (folder / "model.safetensors").unlink()  # the index is read only without it
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError):
        load(folder)


def test_marian_weights_of_wrong_shapes_are_named(tmp_path: Path) -> None:
    to_marian(tiny.seq2seq(norm="post", logits_bias=True)).save_pretrained(tmp_path)
    name = "model.encoder.layers.0.self_attn.q_proj.weight"
    edit_weights(tmp_path / "model.safetensors", lambda w: w.update({name: torch.zeros(3)}))
    with pytest.raises(ModelError, match=r"must match|dimension"):
        load_model(tmp_path)


ANY = [None, True, -1, 10**30, 0.5, float("nan"), "x", [], [[]], {}, {"kind": []}]


@pytest.mark.parametrize("part", [".", "drafter", "ctc"])
def test_any_value_of_a_key_loads_or_gives_one_sentence(folder: Path, part: str) -> None:
    path, model = folder / part / "config.json", load_model(folder)
    loaders = {".": load_model, "drafter": lambda f: load_drafter(f, model)}
    loader = loaders.get(part, lambda f: load_ctc(f, model))
    before = json.loads(path.read_text())
    for number, key in enumerate(before):
        path.write_text(json.dumps({**before, key: ANY[number % len(ANY)]}))
        with suppress(OutriderError):
            loader(folder)
        with suppress(OutriderError):
            read(folder)


FAMILY_NAMES = ("bart", "m2m_100", "t5 gated", "gpt2 scaled", "llama biased")


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_any_value_of_a_key_of_another_family_loads_or_gives_one_sentence(
    name: str, tmp_path: Path
) -> None:
    families.make(name).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    before = json.loads(path.read_text())
    for number, key in enumerate(before):
        for value in (ANY[number % len(ANY)], 1 << 62):
            path.write_text(json.dumps({**before, key: value}))
            for loader in (load_model, lambda folder: read_model(folder).check()):
                began = time.perf_counter()
                with suppress(OutriderError):
                    loader(tmp_path)
                assert time.perf_counter() - began < 5, (key, value)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_weights_of_another_family_that_do_not_fit_are_named(name: str, tmp_path: Path) -> None:
    families.make(name).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    before = load_file(path)
    for one in before:
        if one.endswith(("embed_tokens.weight", "lm_head.weight")):
            continue  # a second name of a table, which is forbidden
        for wrong in (torch.zeros(3), torch.zeros(2, 3, 4), torch.zeros(0), None):
            weights = {key: value for key, value in before.items() if key != one}
            save_file(weights if wrong is None else {**weights, one: wrong}, path)
            if wrong is None and one == "final_logits_bias":
                continue  # would become zeros
            with pytest.raises(ModelError) as caught:
                read_model(tmp_path).check()
            assert "\n" not in str(caught.value)


def test_a_folder_with_only_pickled_weights_is_refused_in_every_family(tmp_path: Path) -> None:
    for name in FAMILY_NAMES:
        folder = tmp_path / name
        families.make(name).save_pretrained(folder)
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        refused(folder, r"no model\.safetensors \(only pytorch_model\.bin; pickled")
