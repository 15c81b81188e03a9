"""Attention weights of every head on one text, and their similarity.

    similarity of two heads = 1 - mean over queries of sqrt(JS(p, q))

JS is the Jensen-Shannon divergence of their weights in bits: two heads that attend to the same
tokens have similarity 1, two without a common token 0.

`head_plane` maps all heads of a stack to a plane by classical multidimensional scaling (Torgerson,
1952): with D the distances (1 - similarity) and J the centring matrix, -J D^2 J / 2 holds the inner
products of points at these distances; its first two eigenvectors span the plane.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outrider.decoding import DecodeConfig
from outrider.decoding.alignment import find_heads
from outrider.errors import InputError
from outrider.runtime import Generator, Translator
from outrider.runtime.result import Result
from outrider.text.tokenizer import Tokenizer
from outrider.torch.backend import TorchBackend
from outrider.torch.inspect.attention_trace import self_weights
from outrider.torch.models import LanguageModel, MaskedLm, Seq2Seq
from outrider.torch.nn.family.skip import SkippingStack
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.stack import Stack

START, END, SPACE, BREAK = "▸", "■", "␣", "↵"
LONGEST = 256
"""Maximum tokens of a text; maps of longer texts are unreadable."""
FOCUSED = 0.4
"""Share of its weight above which a head is described by a single position."""


@dataclass(frozen=True)
class Maps:
    """All heads and layers of one stack."""

    name: str
    title: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights_LHTS: Tensor

    @property
    def similarity_LHH(self) -> Tensor:
        """Similarity of the heads of every layer."""
        return torch.stack([head_similarity(layer_HTS) for layer_HTS in self.weights_LHTS])

    @property
    def descriptions(self) -> list[list[str]]:
        """A short description of what each head attends to."""
        own = self.queries == self.keys
        return [[describe_head(w_TS, own=own) for w_TS in heads] for heads in self.weights_LHTS]


@dataclass(frozen=True)
class AttentionMaps:
    """The maps of a model on one text."""

    text: str
    output: str | None
    """The model's output; None if it generates none."""
    parts: tuple[Maps, ...]


def read_maps(loaded: Translator | Generator, text: str) -> AttentionMaps:
    """Run one text through a model; an encoder-decoder also generates, greedily."""
    assert isinstance(loaded.backend, TorchBackend)
    if isinstance(loaded, Generator):
        return _read(loaded, loaded.backend, text)
    return _translate(loaded, loaded.backend, text)


def head_similarity(weights_HTS: Tensor) -> Tensor:
    """Return the similarity of heads, [H, H]; queries with a single key are ignored."""
    p_HTS = weights_HTS.double().abs()
    p_HTS = p_HTS / p_HTS.sum(-1, keepdim=True).clamp(min=1e-30)
    chosen_T = (p_HTS > 0).any(0).sum(-1) > 1
    if not chosen_T.any():
        return torch.ones(len(p_HTS), len(p_HTS), dtype=torch.float64)
    p_HTS = p_HTS[:, chosen_T]
    middle_HHTS = (p_HTS[:, None] + p_HTS[None]) / 2
    bits_HT = torch.special.entr(p_HTS).sum(-1)
    bits_HHT = torch.special.entr(middle_HHTS).sum(-1)
    divergence_HHT = (bits_HHT - (bits_HT[:, None] + bits_HT[None]) / 2) / math.log(2)
    return 1 - divergence_HHT.clamp(0, 1).sqrt().mean(-1)


def describe_head(weights_TS: Tensor, *, own: bool) -> str:
    """Describe where a head attends, or to how many tokens (exp of the entropy).

    `own` means that queries and keys are the same tokens.
    """
    w_TS = weights_TS.double()
    total = max(float(w_TS.sum()), 1e-30)
    shares = {"first token": w_TS[:, 0].sum(), "last token": w_TS[:, -1].sum()}
    if own:
        shares["itself"] = w_TS.diagonal().sum()
        shares["token before"] = w_TS.diagonal(-1).sum()
        shares["token after"] = w_TS.diagonal(1).sum()
    name, share = max(((n, float(s) / total) for n, s in shares.items()), key=lambda pair: pair[1])
    if share >= FOCUSED:
        return f"{name} {share:.0%}"
    spread = torch.special.entr(w_TS.clamp(min=0)).sum(-1).exp().mean()
    return f"{float(spread):.1f} tokens"


def translate_one(loaded: Translator, text: str) -> tuple[Result, list[int], list[int]]:
    """Translate one sentence greedily; return the result, its source and the decoder's input."""
    pieces = loaded.requests([text], DecodeConfig(), split=False)[0]
    if len(pieces) != 1:
        problem = "empty" if not pieces else f"cut into {len(pieces)} pieces"
        raise InputError(f"this text is {problem}; give one sentence")
    result = loaded.results([text], split=False, mode="ar", strategy="greedy")[0][0]
    fed = [*pieces[0].opening(loaded.backend), *loaded.turned(result.tokens)]
    return result, list(pieces[0].source), fed


def _check_drawable(model: Seq2Seq | LanguageModel | MaskedLm) -> None:
    if model.config.position in ("bucketed", "distance"):
        raise InputError("this model's scores have a bias by distance, which maps do not show yet")


@torch.inference_mode()
def _translate(loaded: Translator, backend: TorchBackend, text: str) -> AttentionMaps:
    result, source, fed = translate_one(loaded, text)
    _check_length(source, result.tokens)
    model = backend.model
    assert isinstance(model, Seq2Seq)
    _check_drawable(model)
    source_1S = torch.tensor([source], device=backend.device)
    pretrained = model.pretrained
    pretrained_stack = None if pretrained is None else pretrained.stack
    stack = pretrained_stack or model.encoder
    with _record_weights(stack) as encoder, _record_weights(model.decoder) as decoder:
        memory_BSD = model.encode(source_1S)
        model.decode(torch.tensor([fed], device=backend.device), memory_BSD)
    if pretrained is not None and pretrained_stack is None:
        encoder.own = pretrained.attentions(source_1S)
    elif pretrained is not None:
        encoder.own = pretrained.read_from(encoder.own)
    if model.router is not None:
        assert isinstance(model.encoder, SkippingStack)
        encoder.mask_skipped(model.router(source_1S, None)[0], model.encoder.layers)
    source_labels = token_labels(source, loaded.tokenizer, backend)
    target_labels = token_labels(fed, loaded.tokenizer, backend)
    next_labels = (*target_labels[1:], END)
    parts = []
    if encoder.own:
        title = "the source looks at itself"
        parts.append(Maps("encoder", title, source_labels, source_labels, encoder.own_LHTS()))
    if decoder.own:  # a recurrent decoder has no self-attention
        title = "the output looks back at itself"
        parts.append(Maps("decoder", title, target_labels, target_labels, decoder.own_LHTS()))
    title = "the next word looks at the source"
    parts.append(Maps("cross", title, next_labels, source_labels, decoder.cross_LHTS()))
    first = len(fed) - len(result.tokens)
    aligned = find_heads(backend)
    weights_TS = torch.from_numpy(aligned.weights(decoder.cross_LHTS()[:, :, first - 1 :].numpy()))
    names = " and ".join(f"layer {layer + 1} head {head + 1}" for layer, head in aligned.heads)
    title = f"the source of each word, by {names}{', one step later' if aligned.later else ''}"
    labels = target_labels[first:]
    parts.append(Maps("alignment", title, labels, source_labels, weights_TS[None, None]))
    return AttentionMaps(text, result.text, tuple(parts))


@torch.inference_mode()
def _read(loaded: Generator, backend: TorchBackend, text: str) -> AttentionMaps:
    (request,) = loaded.requests([text], DecodeConfig(max_new_tokens=1))
    fed = request.opening(backend)
    _check_length(fed)
    model = backend.model
    assert isinstance(model, LanguageModel)
    _check_drawable(model)
    with _record_weights(model.decoder) as decoder:
        model.hidden(torch.tensor([fed], device=backend.device))
    if not decoder.own:
        core = model.config.core
        raise InputError(f"this model's layers are recurrent (core: {core}): it has no attention")
    labels = token_labels(fed, loaded.tokenizer, backend)
    title = "the text looks back at itself"
    return AttentionMaps(text, None, (Maps("text", title, labels, labels, decoder.own_LHTS()),))


@torch.inference_mode()
def read_masked_maps(model: MaskedLm, tokenizer: Tokenizer, text: str) -> AttentionMaps:
    """Run one text through a masked language model, without hidden tokens."""
    config = model.config
    ids = [config.bos_token_id, *tokenizer.encode(text), config.end_tokens[0]]

    _check_drawable(model)
    with _record_weights(model.encoder) as encoder:
        model.hidden(torch.tensor([ids], device=model.device))
    special = {config.bos_token_id: START, **dict.fromkeys(config.end_tokens, END)}
    labels = _labels(ids, tokenizer, special)
    title = "the text looks at itself"
    return AttentionMaps(text, None, (Maps("text", title, labels, labels, encoder.own_LHTS()),))


def _check_length(*rows: Sequence[int]) -> None:
    if max(map(len, rows)) > LONGEST:
        raise InputError(
            f"{max(map(len, rows))} tokens are too many for a map; give at most {LONGEST}"
        )


class _Recorder:
    """Attention weights of every layer, recorded during a run."""

    def __init__(self) -> None:
        self.own: list[Tensor] = []
        self.cross: list[Tensor] = []

    def mask_skipped(self, active_S: Tensor, layers: Collection[int]) -> None:
        """Set the weights of skipped tokens to zero in the layers that skip."""
        if not active_S.any():
            raise InputError("this model's encoder skips every token of this text")
        for layer in layers:
            self.own[layer] = self.own[layer] * active_S[:, None]

    def own_LHTS(self) -> Tensor:
        return torch.cat(self.own).float().cpu()

    def cross_LHTS(self) -> Tensor:
        return torch.cat(self.cross).float().cpu()


@contextmanager
def _record_weights(stack: Stack) -> Iterator[_Recorder]:
    recorder = _Recorder()

    def record_own(module: Any, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        recorder.own.append(self_weights(module, *inputs[:2], keep_BT=options.get("keep_BT")))

    def record_cross(module: Any, inputs: tuple[Any, ...]) -> None:
        recorder.cross.append(module.weights(*inputs))

    hooks = []
    for block in stack.blocks:
        if isinstance(block.attention, SelfAttention):
            attention: nn.Module = block.attention.attention
            hooks.append(attention.register_forward_pre_hook(record_own, with_kwargs=True))
        if block.cross is not None:
            hooks.append(block.cross.register_forward_pre_hook(record_cross))
    try:
        yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def token_labels(
    ids: Sequence[int], tokenizer: Tokenizer, backend: TorchBackend
) -> tuple[str, ...]:
    """Return the text that each token adds; a symbol for white space and special tokens."""
    return _labels(ids, tokenizer, {backend.start: START, **dict.fromkeys(backend.ends, END)})


def _labels(
    ids: Sequence[int], tokenizer: Tokenizer, special: Mapping[int, str]
) -> tuple[str, ...]:
    return tuple(
        special.get(token) or _label(ids[:place], token, tokenizer.decode)
        for place, token in enumerate(ids)
    )


def _label(before: Sequence[int], token: int, decode: Callable[[Sequence[int]], str]) -> str:
    prefix, whole = decode(before), decode([*before, token])
    added = whole[len(prefix) :] if whole.startswith(prefix) else decode([token])
    return added.strip() or (BREAK if "\n" in added else SPACE)


class HeadPlane(NamedTuple):
    """Heads as points of a plane, and the similarity of each layer's heads."""

    points_LH2: Tensor
    kept: float
    """Share of the variance that the plane shows."""
    alike_L: Tensor
    """Mean similarity of two heads of a layer; 1 for a single head."""

    @property
    def trend(self) -> float:
        """Rank correlation of layer number and similarity of its heads, from -1 to 1.

        1 means that every layer's heads are more similar than those of the layer below; 0 for one
        layer.
        """
        layers = len(self.alike_L)
        if layers < 2:
            return 0.0
        place, rank = torch.arange(layers), self.alike_L.argsort().argsort()
        stacked = torch.stack([place, rank]).double()
        return float(torch.corrcoef(stacked)[0, 1])


def head_plane(part: Maps) -> HeadPlane:
    """Map all heads of a stack to a plane."""
    layers, heads = part.weights_LHTS.shape[:2]
    similarity = head_similarity(part.weights_LHTS.flatten(0, 1))
    points, kept = in_a_plane(1 - similarity)
    inside = similarity.view(layers, heads, layers, heads).diagonal(dim1=0, dim2=2)
    others = heads * (heads - 1)
    total_L = inside.sum((0, 1)) - heads
    alike_L = total_L / others if others else torch.ones(layers, dtype=torch.float64)
    return HeadPlane(points.view(layers, heads, 2), kept, alike_L)


def in_a_plane(distance_NN: Tensor) -> tuple[Tensor, float]:
    """Return points of a plane that approximate these distances, and the share of variance kept."""
    count = len(distance_NN)
    centre = torch.eye(count, dtype=torch.float64) - 1 / count
    inner = -centre @ distance_NN.double().square() @ centre / 2
    values, vectors = torch.linalg.eigh((inner + inner.T) / 2)
    values = values.clamp(min=0)
    top = values[-2:].flip(0)
    points = vectors[:, -2:].flip(1) * top.sqrt()
    if points.shape[1] < 2:  # a single head
        points = torch.nn.functional.pad(points, (0, 2 - points.shape[1]))
    total = float(values.sum())
    return points, float(top.sum()) / total if total else 1.0
