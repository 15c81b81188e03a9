"""Folders of every family with one change each: results of transformers, or a refusal.

A case is a family and a change of its weights, its config or its generation settings. `SAME` must
load and agree with transformers on the same folder in logits and greedy text, `REFUSED` must give
one error message that names the folder, `EITHER` may do either.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import outrider
from outrider.errors import OutriderError, SettingsWarning
from outrider.runtime.backend import export_native
from tests.helpers import families
from tests.helpers.families import END, FAMILIES

SAME, REFUSED, EITHER, WARNED = "same", "refused", "either", "warned"
NEW = 6
TEXT = "w7 w30 w11 w52 w9"
IDS = torch.tensor([[int(word[1:]) for word in TEXT.split()]])
TABLES = {
    "t5": "shared.weight",
    "mt5": "shared.weight",
    "gpt2": "transformer.wte.weight",
    **dict.fromkeys(("llama", "mistral", "qwen2"), "model.embed_tokens.weight"),
}
CHANGED = [name for name in FAMILIES if " " not in name]
"""One model of every reader."""
ROTARY = ("llama", "mistral", "qwen2")
Weights = dict[str, Tensor]


class Folder(NamedTuple):
    """A family's folder before the change."""

    family: str
    weights: Weights
    config: dict[str, Any]
    files: dict[str, bytes]
    model: type[Any]


class Case(NamedTuple):
    """One change of a folder."""

    label: str
    expected: str
    weights: Callable[[Weights], object] | None = None
    config: dict[str, Any] | None = None
    without: tuple[str, ...] = ()
    """Keys that are removed from the config."""
    generation: dict[str, Any] | None = None


def spread(names: list[str], count: int) -> list[str]:
    """Choose names from all parts of a model."""
    step = max(1, len(names) // count)
    return names[step // 2 :: step][:count]


def put(name: str, value: Tensor, weights: Weights) -> None:
    weights[name] = value


def change(name: str, how: Callable[[Tensor], Tensor], weights: Weights) -> None:
    weights[name] = how(weights[name])


def with_nan(weight: Tensor) -> Tensor:
    weight = weight.clone()
    weight.view(-1)[weight.numel() // 2] = torch.nan
    return weight


def move(name: str, other: str, weights: Weights) -> None:
    weights[other] = weights.pop(name)


def copies_of(family: str) -> list[str]:
    """Return names under which a family's table may be stored again."""
    if family in ("t5", "mt5"):
        return ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    if family in ("gpt2", *ROTARY):
        return ["lm_head.weight"]
    return [
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    ]


KINDS = {
    torch.float16: EITHER,  # the position table may exceed the precision
    torch.bfloat16: SAME,
    torch.float64: SAME,
    torch.float8_e4m3fn: REFUSED,
    torch.int8: REFUSED,
}


def weight_cases(family: str, names: list[str]) -> Iterator[Case]:
    kind = family.split()[0]
    for name in ("model.q_norm.weight", f"{names[0]}.extra"):
        yield Case(f"extra {name}", REFUSED, partial(put, name, torch.ones(4)))
    for name in spread(names, 3):
        yield Case(f"missing {name}", EITHER, lambda w, n=name: w.pop(n))
    for name in spread(names, 4):
        yield Case(f"negated {name}", SAME, partial(change, name, torch.neg))
    for (dtype, expected), name in zip(KINDS.items(), spread(names, len(KINDS)), strict=True):
        label = f"{dtype} {name}"
        yield Case(label, expected, partial(change, name, lambda one, d=dtype: one.to(d)))
    for name in spread(names, 3):
        yield Case(f"NaN {name}", REFUSED, partial(change, name, with_nan))
    table = TABLES.get(kind, "model.shared.weight")
    for copy in copies_of(kind):
        yield Case(f"copied to {copy}", SAME, lambda w, c=copy: put(c, w[table].clone(), w))
        yield Case(f"negated copy {copy}", EITHER, lambda w, c=copy: put(c, -w[table], w))
        yield Case(f"moved to {copy}", EITHER, partial(move, table, copy))


def value_cases(config: dict[str, Any]) -> Iterator[Case]:
    """Change the values of a config."""
    for key, value in config.items():
        if key.startswith(("_", "output")) or key in UNCHANGED or key.endswith(DROPOUT):
            continue
        if key in ("activation_function", "hidden_act", "feed_forward_proj", "dense_act_fn"):
            others: list[Any] = ["relu", "gated-gelu"]
        elif isinstance(value, bool):
            others = [not value]
        elif isinstance(value, int) or key == "rope_theta":
            others = [value + 1]
        elif isinstance(value, float):
            others = [value + 0.25]
        else:
            continue
        yield from (Case(f"{key}={one}", EITHER, config={key: one}) for one in others)


DROPOUT = ("dropout", "dropout_rate", "pdrop", "layerdrop")
UNCHANGED = (
    *("model_type", "transformers_version", "dtype", "use_cache", "return_dict"),
    *("output_hidden_states", "initializer_range", "init_std", "initializer_factor"),
    *(
        "is_encoder_decoder",
        "is_decoder",
        "pad_token_id",
        "classifier_dropout",
        "relative_attention_max_distance",
    ),
    *("summary_proj_to_labels", "summary_use_proj"),
)
"""Keys that change no result, or that have separate cases below."""


def config_cases(family: str, config: dict[str, Any], aliases: dict[str, str]) -> Iterator[Case]:
    kind, translates = family.split()[0], FAMILIES[family].translates
    for key, value in (("no_such_key", 3), ("attn_logit_softcapping", 2.0), ("n_ctx", 10)):
        expected = SAME if (kind, key) == ("gpt2", "n_ctx") else REFUSED
        yield Case(f"unknown {key}", expected, config={key: value})
        yield Case(f"empty {key}", SAME, config={key: None})
    for value in (True, False, None):
        expected = SAME if value and not translates else REFUSED
        yield Case(f"is_causal={value}", expected, config={"is_causal": value})
    told: dict[str, Any] = {
        "auto_map": {"AutoModel": "x.Y"},
        "is_encoder_decoder": not translates,
        "per_layer_config": {"0": {"dropout": 0.5}},
        "quantization_config": {"bits": 4},
        "use_bidirectional_attention": True,
    }
    yield from (Case(f"{key}={one}", REFUSED, config={key: one}) for key, one in told.items())
    for alias, key in aliases.items():
        both = {alias: config[key]}
        yield Case(f"{alias} alone", SAME, config=both, without=(key,))
        yield Case(f"{alias} contradicts", REFUSED, config={alias: 2 * config[key]})
    if kind in ("t5", "mt5"):
        for value in ("relu", "silu", "gelu", "gelu_new"):
            yield Case(f"dense_act_fn={value}", EITHER, config={"dense_act_fn": value})
        for key in ("is_gated_act", "scale_decoder_outputs", "tie_word_embeddings"):
            for flag in (True, False):
                yield Case(f"{key}={flag}", EITHER, config={key: flag})
    if kind in ROTARY:
        yield from rotary_cases(config)


def rotary_cases(config: dict[str, Any]) -> Iterator[Case]:
    layers, theirs = config["num_hidden_layers"], config["rope_parameters"]
    yield Case("full layers", SAME, config={"layer_types": ["full_attention"] * layers})
    for count in (1, layers):
        kinds = ["sliding_attention"] * count + ["full_attention"] * (layers - count)
        yield Case(f"{count} sliding layers", REFUSED, config={"layer_types": kinds})
    scalings: list[dict[str, Any]] = [
        {"rope_type": "linear", "factor": 2.0},
        {"type": "linear", "factor": 2.0, "rope_theta": 70.0},
        {"rope_type": "dynamic", "factor": 2.0},
        families.LLAMA3,
    ]
    for scaling in scalings:
        alone = REFUSED if "dynamic" in scaling.values() else SAME
        both = SAME if scaling == theirs else REFUSED
        yield Case(f"rope_scaling {scaling}", both, config={"rope_scaling": scaling})
        section = {"rope_scaling": scaling, "rope_theta": 90.0}
        yield Case(f"only {section}", alone, config=section, without=("rope_parameters",))
        yield Case(f"rope_parameters {scaling}", alone, config={"rope_parameters": scaling})
    yield Case("the same twice", SAME, config={"rope_scaling": theirs})
    yield Case("theta outside", SAME, config={"rope_theta": 77.0})
    length = {"original_max_position_embeddings": 16}
    contradicts = theirs["rope_type"] == "llama3"
    yield Case("length outside", REFUSED if contradicts else SAME, config=length)


def generation_cases() -> Iterator[Case]:
    words = [[word] for word in range(4, 40)]
    yield Case("bad_words_ids", SAME, generation={"bad_words_ids": words})
    yield Case("decoder_start_token_id", SAME, generation={"decoder_start_token_id": 9})
    yield Case("beams and sampling", SAME, generation={"num_beams": 4, "temperature": 0.5})
    settings: dict[str, Any] = {
        "repetition_penalty": 1.5,
        "sequence_bias": [[[7], -9.0]],
    }
    for key, value in settings.items():
        yield Case(f"{key} {value}", WARNED, generation={key: value})


def cases() -> Iterator[Any]:
    for family in CHANGED:
        model = families.make(family)
        config = json.loads(model.config.to_json_string(use_diff=False))
        found = [
            *weight_cases(family, sorted(name for name, _ in model.named_parameters())),
            *value_cases(config),
            *config_cases(family, config, model.config.attribute_map),
            *generation_cases(),
        ]
        yield from (pytest.param(family, case, id=f"{family}: {case.label}") for case in found)


CASES = list(cases())


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    """Save each family once."""
    found = {}
    for family in CHANGED:
        folder, model = tmp_path_factory.mktemp("original"), families.make(family)
        after = "</s>" if FAMILIES[family].translates else ""
        families.save(model, folder, after=after)
        config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        changed = ("config.json", "model.safetensors")
        rest = [path for path in folder.iterdir() if path.name not in changed]
        files = {path.name: path.read_bytes() for path in rest}
        found[family] = Folder(family, weights, config, files, type(model))
    return found


def write(original: Folder, case: Case, folder: Path) -> None:
    weights = dict(original.weights)
    if case.weights is not None:
        case.weights(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    kept = {key: one for key, one in original.config.items() if key not in case.without}
    (folder / "config.json").write_text(json.dumps({**kept, **(case.config or {})}))
    for name, raw in original.files.items():
        (folder / name).write_bytes(raw)
    if case.generation is not None:
        path = folder / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **case.generation}))


def load(folder: Path, case: Case) -> Any:
    """Load a folder; None if it is refused with one error message that names it."""
    if case.expected == WARNED:
        with pytest.warns(SettingsWarning, match=next(iter(case.generation or {}))):
            outrider.load(folder, backend="torch")
        return None
    try:
        return outrider.load(folder, backend="torch")
    except OutriderError as error:
        message = str(error)
    assert case.expected != SAME, message
    assert str(folder) in message
    assert "\n" not in message
    return None


def agree(loaded: Any, theirs: Any) -> None:
    """Compare logits and greedy text."""
    translates = theirs.config.is_encoder_decoder
    batch = {"input_ids": IDS} | ({"decoder_input_ids": IDS} if translates else {})
    with torch.no_grad():
        expected, found = theirs(**batch).logits, loaded.backend.model(**batch).logits
    assert (found - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()))
    source = torch.cat([IDS, torch.tensor([[END]])], 1) if translates else IDS
    said = families.greedy(theirs, {"input_ids": source}, new=NEW)
    said = said[1 if translates else source.shape[1] :]
    ((best, *_),) = loaded.results([TEXT], max_new_tokens=NEW, mode="ar")
    assert list(best.tokens) == families.cut(said, families.ends(theirs.generation_config))


@pytest.mark.parametrize(("family", "case"), CASES)
def test_a_changed_folder_agrees_with_transformers_or_is_refused(
    family: str, case: Case, originals: dict[str, Folder], tmp_path: Path
) -> None:
    original = originals[family]
    write(original, case, tmp_path)
    if (loaded := load(tmp_path, case)) is None:
        return
    assert case.expected != REFUSED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from transformers
        theirs = original.model.from_pretrained(tmp_path, dtype=torch.float32).eval()
    agree(loaded, theirs)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 500


def test_packed_weights_of_another_head_are_not_used(tmp_path: Path) -> None:
    """Weights that change after `outrider export --to native` change the text."""
    pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    model = families.make("gpt2 scaled")
    families.save(model, tmp_path)
    export_native(tmp_path)
    path, options = tmp_path / "model.safetensors", {"max_new_tokens": NEW, "mode": "ar"}
    before = outrider.load(tmp_path, backend="native").results([TEXT], **options)
    weights = load_file(path)
    weights["lm_head.weight"] = weights["lm_head.weight"].flip(0)
    save_file(weights, path, metadata={"format": "pt"})
    after = outrider.load(tmp_path, backend="native").results([TEXT], **options)
    (tmp_path / "model.packed").unlink()
    assert after == outrider.load(tmp_path, backend="native").results([TEXT], **options)
    assert after != before
