"""Models of other families give the logits and tokens of transformers' implementations."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import outrider
from outrider.errors import ConfigError, ModelError
from outrider.formats.folder import read_config
from outrider.formats.readers import (
    bart,
    gpt2,
    llama,
    m2m_100,
    marian,
    mbart,
    mistral,
    mt5,
    qwen2,
    t5,
)
from outrider.runtime import Generator, Translator
from outrider.torch.models import LanguageModel, load_model
from tests.helpers import families
from tests.helpers.families import END, FAMILIES, FIRST_LANGUAGE, PAD

TRANSLATES = [name for name, one in FAMILIES.items() if one.translates]
CONTINUES = [name for name, one in FAMILIES.items() if not one.translates]
LENGTHS = (9, 4, 17, 1)
NEW = 24


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = families.make(name)
    model.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    source, target = torch.randint(4, 60, (3, 21)), torch.randint(4, 60, (3, 19))
    mask = (torch.arange(21) < torch.tensor([[21], [4], [16]])).long()
    source = source.where(mask.bool(), torch.tensor(PAD))
    batch = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
    if isinstance(ours, LanguageModel):
        batch = {"input_ids": target}
    with torch.no_grad():
        theirs = model(**batch).logits
        difference = (ours(**batch).logits - theirs).abs().max()
    assert theirs.std() > 0.1
    assert difference < 1e-4


def said(results: list[list[Any]]) -> list[list[int]]:
    return [list(best.tokens) for best, *_ in results]


@pytest.mark.parametrize("name", TRANSLATES)
def test_translations_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, dice = families.make(name), torch.Generator().manual_seed(1)
    before = "<s>" if name.startswith("bart") else ""
    loaded = outrider.load(
        families.save(model, tmp_path, before=before, after="</s>"), backend="torch"
    )
    assert isinstance(loaded, Translator)
    texts = [families.text(dice, length) for length in LENGTHS]
    wanted = []
    for one in texts:
        ids = [*([3] if before else []), *(int(word[1:]) for word in one.split()), END]
        found = families.greedy(model, {"input_ids": torch.tensor([ids])}, new=NEW)
        wanted.append(families.cut(found[1:], families.ends(model.config)))
    assert len({tuple(one) for one in wanted}) > 1
    options = {"max_new_tokens": NEW, "mode": "ar"}
    assert said(loaded.results(texts, **options)) == wanted
    assert [said(loaded.results([one], **options))[0] for one in texts] == wanted


@pytest.mark.parametrize("before", ["", "<s>"])
@pytest.mark.parametrize("name", CONTINUES)
def test_continuations_equal_those_of_transformers(name: str, before: str, tmp_path: Path) -> None:
    model, dice = families.make(name), torch.Generator().manual_seed(1)
    loaded = outrider.load(families.save(model, tmp_path, before=before), backend="torch")
    assert isinstance(loaded, Generator)
    texts = [families.text(dice, length) for length in LENGTHS]
    wanted = []
    for one in texts:
        ids = [*([3] if before else []), *(int(word[1:]) for word in one.split())]
        found = families.greedy(model, {"input_ids": torch.tensor([ids])}, new=NEW)
        wanted.append(families.cut(found[len(ids) :], families.ends(model.config)))
    assert len({tuple(one) for one in wanted}) > 1
    options = {"max_new_tokens": NEW, "mode": "ar"}
    assert said(loaded.results(texts, **options)) == wanted
    assert [said(loaded.results([one], **options))[0] for one in texts] == wanted


@pytest.mark.parametrize(
    ("name", "before", "after", "start"),
    [
        ("m2m_100", "eng_Latn", "</s>", END),
        ("mbart", "eng_Latn", "</s>", END),
        ("mbart", "", "</s> eng_Latn", FIRST_LANGUAGE),
    ],
)
def test_language_tokens_are_placed_as_in_the_family(
    name: str, before: str, after: str, start: int, tmp_path: Path
) -> None:
    """The tokenizer adds the source language; the decoder starts with the target language."""
    model = families.make(name)
    model.config.decoder_start_token_id = start
    model.generation_config.decoder_start_token_id = start
    folder = families.save(model, tmp_path, before=before, after=after, languages=True)
    loaded = outrider.load(
        folder, backend="torch", source_language="deu_Latn", target_language="fra_Latn"
    )
    assert isinstance(loaded, Translator)
    german, french = FIRST_LANGUAGE + 1, FIRST_LANGUAGE + 2
    source = [german, 7, 8, END] if before else [7, 8, END, german]
    forced = {"forced_bos_token_id": french} if start == END else {"decoder_start_token_id": french}
    found = families.greedy(model, {"input_ids": torch.tensor([source])}, new=NEW, **forced)
    begin = 2 if start == END else 1
    assert found[begin - 1] == french
    wanted = families.cut(found[begin:], families.ends(model.config))
    new = NEW - begin + 1
    assert said(loaded.results(["w7 w8"], max_new_tokens=new, mode="ar")) == [wanted]
    english = loaded.between("eng_Latn", "deu_Latn")
    assert english.source([7]) != loaded.source([7])
    assert loaded.source([7]).count(german) == 1


def test_a_language_must_be_named_and_known(tmp_path: Path) -> None:
    folder = families.save(
        families.make("m2m_100"), tmp_path, before="eng_Latn", after="</s>", languages=True
    )
    loaded = outrider.load(folder, backend="torch")
    assert isinstance(loaded, Translator)
    with pytest.raises(
        ConfigError, match=r"target_language: this model writes 3 languages .deu_La"
    ):
        loaded.translate("w7")
    with pytest.raises(ConfigError, match=r"unknown 'deu_Lat' .did you mean 'deu_Latn'"):
        loaded.between(target="deu_Lat")
    with pytest.raises(ConfigError, match="source_language: unknown 'english'"):
        loaded.between(source="english")


def test_a_model_without_languages_refuses_them(tmp_path: Path) -> None:
    folder = families.save(families.make("t5"), tmp_path / "t5", after="</s>")
    with pytest.raises(ConfigError, match="target_language: got 'de', but this model translates"):
        outrider.load(folder, backend="torch", target_language="de")
    folder = families.save(families.make("gpt2"), tmp_path / "gpt2")
    with pytest.raises(ConfigError, match="source_language: has no effect on a language model"):
        outrider.load(folder, backend="torch", source_language="de")


def test_the_first_token_may_be_forced(tmp_path: Path) -> None:
    """BART summarisers generate their start token first."""
    model = families.make("bart")
    model.generation_config.forced_bos_token_id = 3
    loaded = outrider.load(
        families.save(model, tmp_path, before="<s>", after="</s>"), backend="torch"
    )
    found = families.greedy(model, {"input_ids": torch.tensor([[3, 7, 8, END]])}, new=NEW)
    assert found[1] == 3
    wanted = families.cut(found[2:], families.ends(model.config))
    assert said(loaded.results(["w7 w8"], max_new_tokens=NEW - 1, mode="ar")) == [wanted]


DEFAULTS: list[tuple[type[Any], type[Any]]] = [
    (bart.BartValues, hf.BartConfig),
    (mbart.MBartValues, hf.MBartConfig),
    (m2m_100.M2M100Values, hf.M2M100Config),
    (t5.T5Values, hf.T5Config),
    (mt5.MT5Values, hf.MT5Config),
    (gpt2.Gpt2Values, hf.GPT2Config),
    (llama.LlamaValues, hf.LlamaConfig),
    (mistral.MistralValues, hf.MistralConfig),
    (qwen2.Qwen2Values, hf.Qwen2Config),
]
OURS = {
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "head_dim"),
    *("n_positions", "num_decoder_layers", "scale_decoder_outputs", "tie_word_embeddings"),
    *("attention_bias", "mlp_bias", "num_key_value_heads", "bos_token_id"),
    *("dense_act_fn", "is_gated_act", "layer_types"),
}
"""Keys with defaults in transformers, or that only some of the family have."""


@pytest.mark.parametrize(("ours", "theirs"), DEFAULTS)
def test_defaults_of_missing_keys_equal_those_of_transformers(
    ours: type[Any], theirs: type[Any]
) -> None:
    default, values = theirs(), asdict(ours())
    if ours is gpt2.Gpt2Values:
        assert values["n_positions"] == default.n_positions
    for key in values.keys() - OURS:
        assert values[key] == getattr(default, key, None), key


@pytest.mark.parametrize(("ours", "theirs"), [*DEFAULTS, (marian.MarianValues, hf.MarianConfig)])
def test_every_alias_of_a_key_is_known(ours: type[Any], theirs: type[Any]) -> None:
    assert theirs.attribute_map == ours.ALIASES


LINEAR = families.linear(3.0)
TWICE = LINEAR | {"factor": 6.0}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bart", {"decoder_ffn_dim": 41}, "decoder_ffn_dim: 41 differs from encoder_ffn_dim 40"),
    ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings: is false, not supported"),
    ("bart", {"activation_function": "tanh"}, "activation: unknown 'tanh'"),
    ("bart", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map: names remote code"),
    ("m2m_100", {"max_position_embeddings": 1 << 40}, "max_position_embeddings: got 1099511627776"),
    ("m2m_100", {"pad_token_id": 0}, "pad_token_id: got 0, but positions are counted from 1"),
    ("t5", {"feed_forward_proj": "x", "dense_act_fn": None}, "activation: unknown 'x'"),
    ("t5", {"feed_forward_proj": "gelu"}, "dense_act_fn: 'relu' differs from feed_forward_proj 'g"),
    ("t5 gated", {"dense_act_fn": "silu"}, "dense_act_fn: 'silu' differs from feed_forward_proj"),
    ("mt5", {"is_gated_act": False}, "is_gated_act: False differs from feed_forward_proj 'gated-"),
    ("t5", {"head_dim": 8}, "head_dim: 8 differs from d_kv 10; remove the wrong one"),
    ("mbart", {"num_hidden_layers": 3}, "num_hidden_layers: 3 differs from encoder_layers 2; rem"),
    ("gpt2", {"num_attention_heads": 4}, "num_attention_heads: 4 differs from n_head 3; remove "),
    ("t5", {"pad_token_id": None}, "pad_token_id: is null"),
    ("t5", {"relative_attention_num_buckets": 1 << 30}, "relative_buckets: got 1073741824"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention: is True, an unknown key"),
    ("gpt2", {"n_embd": "24"}, "n_embd: got '24', expected a whole number"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2}}, "rope_type: unknown 'yarn'"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "unknown 'llama3'|unknown"),
    ("mistral", {"rope_parameters": LINEAR, "rope_scaling": TWICE}, "rope_scaling: differs from"),
    (
        "llama",
        {"rope_parameters": {"factor": 2.0}},
        "rope_scale.factor: unknown option of 'default'",
    ),
    (
        "llama",
        {"original_max_position_embeddings": 16},
        "original_max_position_embeddings: 16",
    ),
    ("bart", {"is_causal": True}, "is_causal: is True, which changes the attention"),
    ("gpt2", {"is_causal": False}, "is_causal: is False, which changes the attention"),
    ("llama", {"is_causal": None}, "is_causal: is None, which changes the attention"),
    ("llama", {"use_bidirectional_attention": True}, "use_bidirectional_attention: is True"),
    ("qwen2", {"layer_types": ["sliding_attention"]}, r"layer_types: got \['sliding_attention'\]"),
    ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder: is False, but t5 is an encoder-dec"),
    ("llama", {"per_layer_config": {"0": {}}}, "per_layer_config: is {'0': {}}, an unknown"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5"),
    (
        "llama",
        {"quantization_config": {"bits": 4}},
        "quantization_config: is set, but quantised weights",
    ),
    ("llama", {"head_dim": 1 << 20}, "head_dim: got 1048576"),
    ("llama", {"num_hidden_layers": 1 << 30}, "layers: got 1073741824, expected 1 to 1024"),
    ("qwen2", {"use_sliding_window": True}, "use_sliding_window: is True, an unknown key"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED, ids=[m for *_, m in REFUSED])
def test_unsupported_keys_are_named(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    families.make(name).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    if changes.keys() & {"rope_scaling", "rope_parameters"} == {"rope_scaling"}:
        values.pop("rope_parameters", None)
    path.write_text(json.dumps({**values, **changes}))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=message) as caught:
        read_config(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter_beside_a_model_is_not_ignored(alone: bool, tmp_path: Path) -> None:
    families.make("llama").save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if alone:
        (tmp_path / "config.json").unlink()
    message = r"adapter_config\.json: belongs to a PEFT adapter, which is not supported: merge"
    with pytest.raises(ModelError, match=message):
        outrider.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "moved"),
    [
        ("bart", {"hidden_size": 24, "num_hidden_layers": 2}, ("d_model", "encoder_layers")),
        ("t5", {"num_attention_heads": 3}, ("num_heads", "dense_act_fn", "is_gated_act")),
        ("gpt2", {"max_position_embeddings": 80}, ("n_positions",)),
        ("mistral", {"rope_scaling": LINEAR}, ("rope_parameters",)),
        ("mistral", {"rope_scaling": LINEAR, "rope_parameters": LINEAR}, ()),
        ("llama", {"original_max_position_embeddings": 32}, ()),
        ("llama", {"is_causal": True, "layer_types": ["full_attention"] * 3}, ()),
    ],
    ids=str,
)
def test_redundant_keys_are_read_as_in_transformers(
    name: str, changes: dict[str, Any], moved: tuple[str, ...], tmp_path: Path
) -> None:
    model = families.make(name)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    kept = {key: one for key, one in values.items() if key not in moved}
    path.write_text(json.dumps({**kept, **changes}))
    ids = torch.randint(4, 60, (2, 19))
    batch = {"input_ids": ids} | ({"decoder_input_ids": ids} if FAMILIES[name].translates else {})
    theirs = type(model).from_pretrained(tmp_path)
    with torch.no_grad():
        difference = load_model(tmp_path)(**batch).logits - theirs(**batch).logits
    assert difference.abs().max() < 1e-4


@pytest.mark.parametrize("name", [one for one in FAMILIES if one != "mistral window"])
def test_the_native_core_writes_the_same(name: str, tmp_path: Path) -> None:
    """In float32 equal to PyTorch; in int8 bit-identical alone and in batches."""
    dice = torch.Generator().manual_seed(1)
    folder = families.save(families.make(name), tmp_path, after="</s>")
    texts = [families.text(dice, length) for length in LENGTHS]
    options: dict[str, Any] = {"max_new_tokens": NEW, "mode": "ar", "scores": True}

    def spoken(**engine: Any) -> list[list[list[int]]]:
        loaded: Any = outrider.load(folder, **engine)
        alone = [loaded.results([one], **options) for one in texts]
        together = loaded.results(texts, **options)
        if engine["backend"] == "native":
            assert together == [one for (one,) in alone]
        return [said(together), said([one for (one,) in alone])]

    native = spoken(backend="native", dtype="float32")
    assert native == spoken(backend="torch")
    assert spoken(backend="native", dtype="int8")


def test_sliding_windows_use_torch(tmp_path: Path) -> None:
    folder = families.save(families.make("mistral window"), tmp_path)
    with pytest.raises(ModelError, match=r"does not compute attention: .*sliding"):
        outrider.load(folder, backend="native")
