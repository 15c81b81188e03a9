"""Every model, on every device PyTorch has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.backends.special_tokens import special_tokens
from outrider.decoding.protocol import Draft, State
from outrider.errors import ModelError
from outrider.models import Drafter, LanguageModel, Seq2Seq
from outrider.models.ctc import Ctc
from outrider.models.state import DecoderState
from outrider.nn.cache import SLACK

__all__ = ["TorchBackend"]

PACK_UP_TO = 2 << 30


class TorchBackend:
    """Implements `decoding.protocol.Backend` with a model of ours."""

    def __init__(
        self,
        model: Seq2Seq | LanguageModel,
        *,
        drafter: Drafter | None = None,
        ctc: Ctc | None = None,
        frozen: bool = False,
        ends: Sequence[int] = (),
    ) -> None:
        """Compute with `model`; `frozen` says that its weights will not change any more.

        Then weights of up to `PACK_UP_TO` bytes are kept a second time, laid out for this CPU.
        `ends` are end tokens beside those of the model's config.
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
        config = model.config
        self.vocab_size: int = config.vocab_size
        self.start, self.ends, self.pad = special_tokens(config, ends)
        self.eos = self.ends[0]
        self.max_length: int | None = config.max_positions if config.position == "learned" else None
        self.longest_draft: int = 0 if drafter is None else drafter.config.block
        self.longest_text: int = 0 if drafter is None else drafter.config.longest_text
        self.has_ctc: bool = ctc is not None
        self.epsilon: float = torch.finfo(model.dtype).eps

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.tokens.weight.device

    @torch.inference_mode()
    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int,
        drafting: bool = False,
        parallel: bool = False,
    ) -> DecoderState:
        """Open one row per source."""
        memory_BSD = keep_BS = None
        # A block is verified with the newest token before it, and may all be taken back.
        slack = max(SLACK, self.longest_draft + 1) if drafting else SLACK
        if isinstance(self.model, LanguageModel):
            state = self.model.open(len(source), capacity=capacity, slack=slack)
        else:
            memory_BSD, keep_BS = self._encode(self.model, source)
            if capacity:
                state = self.model.open(memory_BSD, keep_BS, capacity=capacity, slack=slack)
            else:  # nothing will be decoded token by token, so nothing is made ready for it
                lengths = [0] * len(source)
                state = DecoderState([], [], lengths=lengths, capacity=0, device=self.device)
        if drafting:
            if self.drafter is None:
                raise ModelError("this model has no drafter")
            self.drafter.attach(state, memory_BSD, keep_BS)
        if parallel:
            state.memory_BSD, state.keep_BS = memory_BSD, keep_BS
        return state

    def _encode(
        self, model: Seq2Seq, source: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's output, and which of its rows' positions are real."""
        longest = max(len(row) for row in source)
        padded = [[*row, *[self.pad] * (longest - len(row))] for row in source]
        source_BS = torch.tensor(padded, device=self.device)
        keep_BS = None
        if any(len(row) < longest for row in source):
            length_B1 = torch.tensor([len(row) for row in source], device=self.device)[:, None]
            keep_BS = torch.arange(longest, device=self.device) < length_B1
        return model.encode(source_BS, keep_BS), keep_BS

    @torch.inference_mode()
    def extend(
        self,
        tokens_BT: Tensor,
        state: State,
        *,
        count_B: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """Append tokens to every row; logits in float32 whatever the weights are."""
        assert isinstance(state, DecoderState), "a state of another backend"
        return self.model.extend(tokens_BT, state, count_B=count_B, last=last).float()

    @torch.inference_mode()
    def draft(
        self,
        last_B1: Tensor,
        state: State,
        tokens: int,
        *,
        temperature: float = 1.0,
        uniform_BK: Tensor | None = None,
    ) -> Draft:
        """Guess the tokens that follow `last_B1`."""
        assert isinstance(state, DecoderState), "a state of another backend"
        if self.drafter is None or state.drafter is None:
            raise ModelError("this state was not opened for drafting")
        found = self.drafter.draft(
            last_B1, state, tokens, temperature=temperature, uniform_BK=uniform_BK
        )
        return Draft(*found)

    @torch.inference_mode()
    def predict(self, last_B1: Tensor, state: State, known_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Guess a whole block of which some tokens are known."""
        assert isinstance(state, DecoderState), "a state of another backend"
        if self.drafter is None or state.drafter is None:
            raise ModelError("this state was not opened for drafting")
        return self.drafter.predict(last_B1, state, known_BK)

    @torch.inference_mode()
    def ctc(self, state: State, known_BU: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score the slots of whole texts."""
        assert isinstance(state, DecoderState), "a state of another backend"
        if self.ctc_decoder is None or state.memory_BSD is None:
            raise ModelError("this model has no CTC decoder, or the state was not opened for it")
        memory_BSD, keep_BS = state.memory_BSD, state.keep_BS
        logits_BUV = self.ctc_decoder.slots(memory_BSD, keep_BS, known_BU)
        return logits_BUV.float(), self.ctc_decoder.count(memory_BSD, keep_BS)


def _bind_ctc(ctc: Ctc | None, model: Seq2Seq | LanguageModel) -> Ctc | None:
    if ctc is None:
        return None
    if not isinstance(model, Seq2Seq):
        raise ModelError("a CTC decoder needs a source to read; a language model has none")
    return ctc.bind(model).eval()
