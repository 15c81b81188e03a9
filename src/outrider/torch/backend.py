"""PyTorch backend: every model, on every device of PyTorch."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.decoding.protocol import Candidates, Proposal, State
from outrider.decoding.queries import Argmax, Forbidden, Query
from outrider.errors import ModelError
from outrider.formats.folder import Parts
from outrider.formats.spec import special_tokens
from outrider.torch.models import Drafter, LanguageModel, Seq2Seq
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.folder import build_ctc, build_drafter, build_model
from outrider.torch.models.state import DecoderState
from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.layer.heads import CrossAttention

if TYPE_CHECKING:
    from outrider.decoding.alignment import AlignmentHeads

AnswerT = TypeVar("AnswerT")

PACK_UP_TO = 2 << 30
"""Bytes of weights up to which a frozen model also keeps them packed."""


class TorchBackend:
    """Implements `decoding.protocol.Backend` with a PyTorch model."""

    compact_threshold = 0.25
    alignment_heads: "AlignmentHeads | None" = None

    def __init__(
        self,
        model: Seq2Seq | LanguageModel,
        *,
        drafter: Drafter | None = None,
        ctc: Ctc | None = None,
        frozen: bool = False,
        ends: Sequence[int] = (),
    ) -> None:
        """Build the backend.

        Args:
            model: The target model.
            drafter: Drafts for tandem decoding.
            ctc: Decodes whole sentences in parallel.
            frozen: The weights no longer change. Up to `PACK_UP_TO` bytes of weights are then also
                kept in a layout packed for this CPU.
            ends: End tokens in addition to those of the model's config.
        """
        self.model = model.eval()
        self.ctc_decoder = _bind_ctc(ctc, model)
        self.drafter = None if drafter is None else drafter.bind(model, self.ctc_decoder).eval()
        if frozen and sum(weight.nbytes for weight in model.parameters()) <= PACK_UP_TO:
            model.pack_weights()
            if drafter is not None:
                drafter.pack_weights()
            if ctc is not None:
                ctc.pack_weights()
        self.config = config = model.config
        self.vocab_size: int = config.vocab_size
        self.start, self.ends, self.pad = special_tokens(config, ends)
        self.eos = self.ends[0]
        self.max_length: int | None = config.max_positions if config.position == "learned" else None
        self.epsilon: float = torch.finfo(model.dtype).eps

    # Created on each access: a stored object and this one would reference each other.
    @property
    def drafts(self) -> "TorchDrafts | None":
        """The drafter."""
        return None if self.drafter is None else TorchDrafts(self, self.drafter)

    @property
    def slots(self) -> "TorchSlots | None":
        """The CTC decoder."""
        return None if self.ctc_decoder is None else TorchSlots(self, self.ctc_decoder)

    @property
    def source_vocab_size(self) -> int:
        """Number of source tokens, which a pretrained encoder has its own of."""
        encoder = getattr(self.model, "pretrained", None)
        return self.vocab_size if encoder is None else int(encoder.model.config.vocab_size)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.tokens.weight.device

    @torch.inference_mode()
    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int | Sequence[int],
        drafting: bool = False,
        parallel: bool = False,
    ) -> DecoderState:
        """Open one row per source; all rows get the largest requested capacity."""
        capacity = capacity if isinstance(capacity, int) else max(capacity)
        memory_BSD = keep_BS = None
        # A block is verified together with the token before it, and can be rolled back whole.
        slack, spare = SLACK, 1
        if drafting and self.drafter is not None:
            spare = self.drafter.config.block + 1
            slack = max(SLACK, spare)
        total = capacity + spare
        if isinstance(self.model, LanguageModel):
            state = self.model.open(len(source), capacity=total, slack=slack)
            state.spare = spare
        else:
            memory_BSD, keep_BS = self._encode(self.model, source)
            if capacity:
                state = self.model.open(memory_BSD, keep_BS, capacity=total, slack=slack)
                state.spare = spare
            else:  # parallel decoding only: no caches
                lengths = [0] * len(source)
                state = DecoderState([], [], lengths=lengths, capacity=0, device=self.device)
        if drafting:
            if self.drafter is None:
                raise ModelError("this model has no drafter")
            self.drafter.attach(state, memory_BSD, keep_BS)
        if parallel:
            state.memory_BSD, state.keep_BS = memory_BSD, keep_BS
        return state

    @torch.inference_mode()
    def cross_attention(
        self, source: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return the weights [L, H, T, S] of each row of target tokens on its source."""
        assert isinstance(self.model, Seq2Seq), "a language model has no source"
        memory_BSD, keep_BS = self._encode(self.model, source)
        found: list[Tensor] = []

        def record(module: CrossAttention, inputs: tuple[Any, ...]) -> None:
            found.append(module.weights(*inputs).float().cpu())

        parts = [part for part in self.model.modules() if isinstance(part, CrossAttention)]
        hooks = [part.register_forward_pre_hook(record) for part in parts]
        try:
            self.model.decode(self.padded(tokens), memory_BSD, keep_BS)
        finally:
            for hook in hooks:
                hook.remove()
        weights_BLHTS = torch.stack(found, dim=1).numpy()
        rows = zip(weights_BLHTS, source, tokens, strict=True)
        return [row[:, :, : len(fed), : len(ids)] for row, ids, fed in rows]

    def _encode(
        self, model: Seq2Seq, source: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's output and the mask of real positions."""
        longest = max(len(row) for row in source)
        source_BS = self.padded(source)
        keep_BS = None
        if any(len(row) < longest for row in source):
            length_B1 = torch.tensor([len(row) for row in source], device=self.device)[:, None]
            keep_BS = torch.arange(longest, device=self.device) < length_B1
        return model.encode(source_BS, keep_BS), keep_BS

    @torch.inference_mode()
    def extend(
        self,
        tokens: Sequence[Sequence[int]],
        state: State,
        query: Query[AnswerT],
        *,
        last: bool = False,
    ) -> AnswerT:
        """Append tokens to every row; scores are float32 for weights of any type."""
        assert isinstance(state, DecoderState), "a state of another backend"
        count_B, counts = None, [len(row) for row in tokens]
        if min(counts) < max(counts):
            count_B = torch.tensor(counts, device=self.device)
        logits_BTV = self.model.extend(self.padded(tokens), state, count_B=count_B, last=last)
        return query.answer(_on_host(logits_BTV.float()))

    def greedy(
        self,
        newest: Sequence[int],
        state: State,
        forbidden: Sequence[int],
        *,
        steps: int,
        ends: Collection[int],
    ) -> list[list[int]]:
        """Decode one token per row; `steps` is an upper bound."""
        query = Argmax(Forbidden(tuple(forbidden)))
        return self.extend([[token] for token in newest], state, query).tokens

    def padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return token ids as a tensor; shorter rows are padded."""
        longest = max(len(row) for row in rows)
        full = [[*row, *[self.pad] * (longest - len(row))] for row in rows]
        # Through numpy, in a third of the time.
        return torch.from_numpy(np.array(full, dtype=np.int64)).to(self.device)


class TorchDrafts:
    """Implements `decoding.protocol.Drafts`."""

    def __init__(self, backend: TorchBackend, drafter: Drafter) -> None:
        self.backend, self.drafter = backend, drafter
        self.longest: int = drafter.config.block
        self.longest_text: int = drafter.config.longest_text

    @torch.inference_mode()
    def draft(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        *,
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] | None = None,
    ) -> Proposal:
        """Draft the next tokens; all rows are computed for the largest count."""
        longest, uniform_BK = max(tokens), None
        if uniform is not None:
            numbers = [[*row[:longest], *[0.0] * (longest - len(row))] for row in uniform]
            uniform_BK = torch.tensor(numbers, dtype=torch.float64, device=self.backend.device)
        tokens_BK, ids_BKC, prob_BKC, confidence_BK = self.drafter.draft(
            self.backend.padded([[token] for token in newest]),
            _drafting(state),
            tokens,
            temperature=temperature,
            uniform_BK=uniform_BK,
        )
        drafted, confidence = (
            [row[:count] for row, count in zip(part.tolist(), tokens, strict=True)]
            for part in (tokens_BK, confidence_BK)
        )
        q = Candidates(_on_host(ids_BKC), _on_host(prob_BKC))
        return Proposal(drafted, confidence, q)

    @torch.inference_mode()
    def predict(
        self, newest: Sequence[int], state: State, known: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Predict blocks in which some tokens are known."""
        newest_B1, known_BK = (self.backend.padded(x) for x in ([[t] for t in newest], known))
        tokens_BK, prob_BK = self.drafter.predict(newest_B1, _drafting(state), known_BK)
        return tokens_BK.tolist(), prob_BK.tolist()


class TorchSlots:
    """Implements `decoding.protocol.Slots`."""

    def __init__(self, backend: TorchBackend, ctc: Ctc) -> None:
        self.backend, self.ctc = backend, ctc
        self.per_token: int = ctc.config.upsample

    @torch.inference_mode()
    def fill(
        self, state: State, query: Query[AnswerT], known: Sequence[Sequence[int]] | None = None
    ) -> AnswerT:
        """Answer a query about the slots of whole sentences."""
        assert isinstance(state, DecoderState), "a state of another backend"
        if state.memory_BSD is None:
            raise ModelError("this state was not opened for parallel decoding")
        known_BU = None if known is None else self.backend.padded(known)
        logits_BUV = self.ctc.slots(state.memory_BSD, state.keep_BS, known_BU)
        return query.answer(_on_host(logits_BUV.float()))


def _drafting(state: State) -> DecoderState:
    assert isinstance(state, DecoderState), "a state of another backend"
    if state.drafter is None:
        raise ModelError("this state was not opened for drafting")
    return state


def _on_host(tensor: Tensor) -> Any:
    """Return a CPU tensor as a numpy array, which is faster to index; others are returned as is."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _bind_ctc(ctc: Ctc | None, model: Seq2Seq | LanguageModel) -> Ctc | None:
    if ctc is None:
        return None
    if not isinstance(model, Seq2Seq):
        raise ModelError("a CTC decoder needs a source to read; a language model has none")
    return ctc.bind(model).eval()


def build_torch(
    parts: Parts,
    *,
    dtype: str,
    device: str,
    threads: int | None = None,
    ends: Sequence[int] = (),
) -> TorchBackend:
    """Build the backend from the parts of a model folder."""
    if threads is not None:
        torch.set_num_threads(threads)
    model = build_model(parts.model, dtype=dtype, device=device)
    ctc = None if parts.ctc is None else build_ctc(parts.ctc, model)
    drafter = None if parts.drafter is None else build_drafter(parts.drafter, model, ctc)
    return TorchBackend(model, drafter=drafter, ctc=ctc, frozen=True, ends=ends)
