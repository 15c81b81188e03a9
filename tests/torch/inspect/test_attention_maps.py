"""Attention maps: weights, labels, similarity and descriptions."""

import math
from dataclasses import replace

import pytest
import torch

from outrider.decoding.alignment import find_heads
from outrider.errors import InputError
from outrider.runtime import load
from outrider.show.attention import draw_maps
from outrider.torch.inspect.attention_maps import (
    END,
    START,
    describe_head,
    head_similarity,
    read_maps,
)
from tests.helpers.drafted import TEXT, save_language_model, save_translator


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return load(save_translator(tmp_path_factory.mktemp("t"), drafter=False), device="cpu")


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    return load(save_language_model(tmp_path_factory.mktemp("g"), drafter=False), device="cpu")


def test_a_translator_has_maps_of_its_attention_and_its_alignment(translator) -> None:
    maps = read_maps(translator, TEXT[0])
    *parts, alignment = maps.parts
    encoder, decoder, cross = parts
    assert maps.output == translator.translate(TEXT[0])
    assert "".join(encoder.keys) == TEXT[0].replace(" ", "␣") + END
    assert decoder.queries[0] == START
    assert cross.queries == (*decoder.queries[1:], END)
    assert cross.keys == encoder.keys
    assert (alignment.queries, alignment.keys) == (decoder.queries[1:], encoder.keys)
    heads = find_heads(translator.backend)
    steps = slice(1, None) if heads.later else slice(None, -1)
    picked = torch.stack([cross.weights_LHTS[spot] for spot in heads.heads]).mean(0)[steps]
    torch.testing.assert_close(alignment.weights_LHTS[0, 0], picked)
    for part in parts:
        size = (1, 2, len(part.queries), len(part.keys))
        assert part.weights_LHTS.shape == size
        torch.testing.assert_close(part.weights_LHTS.sum(-1), torch.ones(size[:3]))
        assert part.similarity_LHH.shape == (1, 2, 2)
        assert len(part.descriptions[0]) == 2
    assert not decoder.weights_LHTS.triu(1).any()
    assert encoder.weights_LHTS.triu(1).any()


def test_weights_reproduce_the_output_of_a_layer(translator) -> None:
    """The output of the first encoder layer's attention is rebuilt from the map and the values."""
    part = read_maps(translator, TEXT[1]).parts[0]
    model = translator.backend.model
    layer = model.encoder.blocks[0].attention
    taken = {}
    hook = layer.attention.register_forward_hook(lambda m, i, o: taken.update(v=i[2], out=o))
    source = translator.tokenizer.encode(TEXT[1])
    with torch.no_grad():
        model.encode(torch.tensor([[*source, translator.backend.eos]]))
    hook.remove()
    torch.testing.assert_close(part.weights_LHTS[0] @ taken["v"][0], taken["out"][0])


def test_a_language_model_has_one_map_per_head(generator) -> None:
    maps = read_maps(generator, "two men")
    (part,) = maps.parts
    assert maps.output is None
    assert part.queries == (START, "t", "w", "o", "␣", "m", "e", "n")
    assert not part.weights_LHTS.triu(1).any()


def test_hooks_are_removed(generator) -> None:
    read_maps(generator, "a")
    assert not generator.backend.model.decoder.blocks[0].attention.attention._forward_pre_hooks


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty"), ("a\nb", "cut into 2 pieces"), ("a" * 300, "pieces|too many")],
)
def test_unsuitable_texts_are_refused(translator, text, message) -> None:
    with pytest.raises(InputError, match=message):
        read_maps(translator, text)


def test_similarity_is_one_minus_the_distance() -> None:
    left, right = [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]
    half = [0.5, 0.25, 0.25]
    weights = torch.tensor([[left], [right], [left], [half]])
    similarity = head_similarity(weights)
    assert similarity[0, 0] == similarity[0, 2] == 1
    assert similarity[0, 1] == pytest.approx(0)
    # JS of (1, 0) and (1/2, 1/2) in bits: H(3/4) - H(1/2) / 2
    divergence = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)) - 0.5
    assert similarity[0, 3] == pytest.approx(1 - math.sqrt(divergence))
    torch.testing.assert_close(similarity, similarity.T)


def test_queries_with_one_key_are_ignored() -> None:
    """The first query of a causal map sees one key, so it is equal for all heads."""
    weights = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    assert head_similarity(weights)[0, 1] == pytest.approx(0)
    assert head_similarity(weights[:, :1])[0, 1] == 1


def test_head_descriptions() -> None:
    assert describe_head(torch.eye(5), own=True) == "itself 100%"
    assert describe_head(torch.eye(5).roll(1, 0), own=True) == "token before 80%"
    assert describe_head(torch.tensor([[0.0, 1.0]] * 3), own=False) == "last token 100%"
    assert describe_head(torch.full((4, 4), 0.25), own=True) == "4.0 tokens"


def test_recurrent_parts_have_no_self_attention_maps(tmp_path) -> None:
    folder = save_translator(tmp_path, drafter=False, decoder_core="gru")
    maps = read_maps(load(folder, device="cpu"), TEXT[0])
    assert [part.name for part in maps.parts] == ["encoder", "cross", "alignment"]
    folder = save_translator(tmp_path / "b", drafter=False, encoder_core="lstm")
    maps = read_maps(load(folder, device="cpu"), TEXT[0])
    assert [part.name for part in maps.parts] == ["decoder", "cross", "alignment"]


def test_models_without_maps_are_refused(tmp_path) -> None:
    loaded = load(save_language_model(tmp_path, drafter=False, core="gru"), device="cpu")
    with pytest.raises(InputError, match="recurrent"):
        read_maps(loaded, TEXT[0])


@pytest.mark.parametrize("heads", [2, 12])
def test_a_picture_fits_a_page_at_any_number_of_heads(translator, tmp_path, heads: int) -> None:
    pytest.importorskip("matplotlib")
    maps = read_maps(translator, TEXT[0])
    wide = tuple(
        replace(part, weights_LHTS=part.weights_LHTS[:, :1].repeat(1, heads, 1, 1))
        for part in maps.parts
    )
    draw_maps(replace(maps, parts=wide), tmp_path / "heads.png")
    width = int.from_bytes((tmp_path / "heads.png").read_bytes()[16:20], "big")
    assert width < 1100


def test_skipped_tokens_have_no_attention(tmp_path) -> None:
    skip = {"below": 0.02, "layers": [0]}
    loaded = load(save_translator(tmp_path, drafter=False, skip=skip), device="cpu")
    model, text = loaded.backend.model, TEXT[0]
    ids = [*loaded.tokenizer.encode(text), loaded.backend.eos]
    rare = ids[2]
    counts = torch.full_like(model.router.count_V, 1 << 30)
    counts[rare] = 0
    model.router.set_counts(counts)
    part = read_maps(loaded, text).parts[0]
    out_S = torch.tensor(ids) == rare
    weights_HSS = part.weights_LHTS[0]
    assert weights_HSS.shape[1:] == (len(ids), len(ids))
    assert not weights_HSS[:, out_S].any(), "they look nowhere"
    assert not weights_HSS[:, :, out_S].any(), "and they receive no attention"
    torch.testing.assert_close(
        weights_HSS[:, ~out_S].sum(-1), torch.ones(len(weights_HSS), int((~out_S).sum()))
    )
