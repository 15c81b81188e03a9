"""Tandem decoding for a model that stays in transformers.

    from outrider.transformers import tandem

    model = MarianMTModel.from_pretrained("Helsinki-NLP/opus-mt-zh-en")
    model.generate(**inputs, custom_generate=tandem("FOLDER"), num_beams=1)

gives what `model.generate(**inputs, num_beams=1)` gives, in fewer passes: the drafter that lies in
FOLDER guesses a block of tokens, and the model's own weights confirm or correct it in one pass.

Who verifies? The caches of transformers have one length for a whole batch, so rows that accept
different numbers of tokens cannot stand in one. Ours have a length per row. So the encoder's output
is taken from transformers as `generate` computed it, and our decoder goes on with the weights of
the model itself: they are shared on a CPU, but for queries, keys and values, which we keep in one
matrix (a copy of a quarter of the decoder). They are taken anew when they change.

Is it exact? Logits processors and stopping criteria are those that `generate` prepared, asked about
the text of a row as it stands at each token. Two engines add up the same float32 numbers in another
order, as one engine does in batches of another size. Where the best two tokens lie within that
rounding, transformers' own forward is asked about this text and decides. In half precision such
ties are common, so it is refused, and so is every option that this loop does not honour.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel, generation
from transformers.generation import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from outrider.errors import ConfigError, ModelError, UnsupportedError
from outrider.formats.folder import READERS, Part
from outrider.formats.safetensors import Weight
from outrider.hub import model_folder
from outrider.models import Drafter, Seq2Seq
from outrider.models.folder import build_model, load_ctc, load_drafter
from outrider.nn.cache import SLACK

__all__ = ["Tandem", "tandem"]

BLOCK = 8
"""Tokens drafted at once where the user does not say."""
NEAR = 32 * torch.finfo(torch.float32).eps
"""Two tokens are nearly tied when their scores differ by less than this share of the larger,"""
USUAL = 10.0
"""or of this, where that is more: a small logit may be the sum of large numbers."""

PROBE = 16
"""Tokens of the text by which two engines are compared."""
AGREEMENT = 1e-3
"""By how much of the largest score they may differ."""

PROCESSORS = (
    *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
    *("RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor"),
    *("SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"),
    *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
    *("SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor"),
    *("InfNanRemoveLogitsProcessor", "LogitNormalization", "ExponentialDecayLengthPenalty"),
)
"""Those that look at one row alone, so that its text may be asked about out of turn."""
CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")
GIVEN = ("encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep")
"""What `generate` hands over and is honoured, or has no say in the tokens."""
REFUSED = (
    *("return_dict_in_generate", "output_scores", "output_logits", "output_attentions"),
    *("output_hidden_states", "cache_implementation", "prefill_chunk_size"),
)
"""Options of a generation config that would change what is returned or computed."""


def tandem(folder: str | Path, *, draft_tokens: int | None = None) -> "Tandem":
    """Return what `generate(..., custom_generate=...)` takes, with the drafter of a model folder.

    Args:
        folder: An Outrider model folder with a drafter, or a Hub name.
        draft_tokens: Tokens drafted at once; by default 8, or as many as the drafter can.
    """
    return Tandem(model_folder(folder), draft_tokens)


@dataclass
class _Row:
    """One text in the making."""

    place: int
    tokens: list[int]


class Tandem:
    """Greedy decoding by draft and verification; see `tandem`."""

    def __init__(self, folder: Path, draft_tokens: int | None) -> None:
        self.folder, self.draft_tokens = folder, draft_tokens
        self._bound: WeakKeyDictionary[Any, tuple[Any, Seq2Seq, Drafter]] = WeakKeyDictionary()

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor:
        """Go on from `input_ids`, as transformers' own decoding methods do."""
        _check_dropped(sys._getframe(1).f_locals)
        _check_options(generation_config, logits_processor, stopping_criteria, model_kwargs)
        _check_model(model)
        ends = generation_config._eos_token_tensor
        memory_BSD = model_kwargs["encoder_outputs"][0]
        mask_BS = model_kwargs.get("attention_mask")
        target, drafter = self._bind(model, memory_BSD[:1])
        loop = _Loop(
            target,
            drafter,
            memory_BSD=memory_BSD,
            keep_BS=None if mask_BS is None or bool(mask_BS.all()) else mask_BS.bool(),
            block=self._block(drafter),
            limit=int(generation_config.max_length),
            ends=set() if ends is None else {int(token) for token in ends.flatten()},
            processors=logits_processor,
            settle=lambda row: _ask(model, memory_BSD, mask_BS, row),
        )
        texts = loop.run(input_ids.tolist())
        longest = max(map(len, texts))
        pad = generation_config._pad_token_tensor
        filled = [
            [*text, *[0 if pad is None else int(pad)] * (longest - len(text))] for text in texts
        ]
        return torch.tensor(filled, dtype=input_ids.dtype, device=input_ids.device)

    def _block(self, drafter: Drafter) -> int:
        longest, wanted = drafter.config.block, self.draft_tokens
        if wanted is not None and not 1 <= wanted <= longest:
            message = f"got {wanted}, but this drafter guesses 1 to {longest} at once"
            raise ConfigError("draft_tokens", message)
        return wanted or min(BLOCK, longest)

    def _bind(self, model: PreTrainedModel, memory_1SD: Tensor) -> tuple[Seq2Seq, Drafter]:
        """Return our view of the model and its drafter; made anew where weights have changed."""
        now = [(weight.data_ptr(), weight._version) for weight in model.state_dict().values()]
        if (bound := self._bound.get(model)) is not None and bound[0] == now:
            return bound[1], bound[2]
        target = _view(model)
        _compare(model, target, memory_1SD)
        drafter = load_drafter(self.folder, target, load_ctc(self.folder, target))
        if drafter is None:
            raise ModelError(f"{self.folder}: has no drafter; outrider accelerate makes one")
        self._bound[model] = now, target, drafter
        return target, drafter


class _Loop:
    """Draft, verify, accept, for rows that each go on at their own pace."""

    def __init__(
        self,
        target: Seq2Seq,
        drafter: Drafter,
        *,
        memory_BSD: Tensor,
        keep_BS: Tensor | None,
        block: int,
        limit: int,
        ends: set[int],
        processors: LogitsProcessorList,
        settle: Callable[[_Row], Tensor],
    ) -> None:
        self.target, self.drafter = target, drafter
        self.memory_BSD, self.keep_BS = memory_BSD, keep_BS
        self.block, self.limit, self.ends = block, limit, ends
        self.processors, self.settle = processors, settle

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return every row's text, prompt included."""
        rows = [_Row(place, list(prompt)) for place, prompt in enumerate(prompts)]
        texts = [row.tokens for row in rows]
        width = self.drafter.config.block + 1
        self.state = self.target.open(
            self.memory_BSD, self.keep_BS, capacity=self.limit + width, slack=max(SLACK, width)
        )
        self.state.spare = width
        self.drafter.attach(self.state, self.memory_BSD, self.keep_BS)
        if len(prompts[0]) > 1:
            self._extend([row.tokens[:-1] for row in rows])
        while rows:
            done = self._round(rows)
            if any(done):
                left = [n for n, over in enumerate(done) if not over]
                self.state.select(left)
                rows = [rows[n] for n in left]
        return texts

    def _round(self, rows: Sequence[_Row]) -> list[bool]:
        """Take every row further by at least one token; return who is done."""
        drafted = self._draft(rows)
        logits_BTV = self._extend([[r.tokens[-1], *d] for r, d in zip(rows, drafted, strict=True)])
        best = None if self.processors else _likeliest(logits_BTV)
        done, lengths = [], []
        for n, (row, guesses) in enumerate(zip(rows, drafted, strict=True)):
            over = False
            for place in range(len(guesses) + 1):
                if best is None:
                    token = self._choose(row, logits_BTV[n, place])
                elif best[1][n][place]:
                    token = int(self.settle(row).argmax())
                else:
                    token = best[0][n][place]
                row.tokens.append(token)
                over = token in self.ends or len(row.tokens) >= self.limit
                if over or place == len(guesses) or guesses[place] != token:
                    break
            done.append(over)
            lengths.append(len(row.tokens) - 1)
        self.state.rollback(lengths)
        return done

    def _draft(self, rows: Sequence[_Row]) -> list[list[int]]:
        counts = [min(self.block, self.limit - len(row.tokens) - 1) for row in rows]
        if max(counts) < 1:
            return [[] for _ in rows]
        newest_B1 = torch.tensor([[row.tokens[-1]] for row in rows], device=self.memory_BSD.device)
        tokens = self.drafter.draft(newest_B1, self.state, counts).tokens_BK.tolist()
        return [row[:count] for row, count in zip(tokens, counts, strict=True)]

    def _extend(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        counts = [len(row) for row in tokens]
        longest = max(counts)
        full = [[*row, *[0] * (longest - len(row))] for row in tokens]
        tokens_BT = torch.tensor(full, device=self.memory_BSD.device)
        ragged = min(counts) < longest
        count_B = torch.tensor(counts, device=tokens_BT.device) if ragged else None
        return self.target.extend(tokens_BT, self.state, count_B=count_B)

    def _choose(self, row: _Row, logits_V: Tensor) -> int:
        """Return what greedy decoding says after the text of a row."""
        text_1T = torch.tensor([row.tokens], device=logits_V.device)
        score_1V = self.processors(text_1T, logits_V[None].clone())
        (tokens,), (near,) = (answer[0] for answer in _likeliest(score_1V[None]))
        if near:
            score_1V = self.processors(text_1T, self.settle(row)[None])
            return int(score_1V.argmax())
        return int(tokens)


def _likeliest(score_BTV: Tensor) -> tuple[list[list[int]], list[list[bool]]]:
    """Return the best token everywhere, and whether another is as good but for rounding."""
    top = score_BTV.topk(2, dim=-1)
    first, second = top.values.unbind(-1)
    near_BT = first - second <= NEAR * first.abs().clamp(min=USUAL)
    return top.indices[..., 0].tolist(), near_BT.tolist()


def _ask(model: PreTrainedModel, memory_BSD: Tensor, mask_BS: Tensor | None, row: _Row) -> Tensor:
    """Let transformers itself score the token after the text of a row."""
    place = slice(row.place, row.place + 1)
    logits: Tensor = model(
        encoder_outputs=(memory_BSD[place],),
        attention_mask=None if mask_BS is None else mask_BS[place],
        decoder_input_ids=torch.tensor([row.tokens], device=memory_BSD.device),
        use_cache=False,
    ).logits
    return logits[0, -1].float()


def _view(model: PreTrainedModel) -> Seq2Seq:
    """Build our model over the weights of theirs."""
    kind, name = model.config.model_type, type(model).__name__
    if kind not in READERS:
        raise UnsupportedError(f"{name}: Outrider knows {', '.join(READERS)}, not {kind}")
    reader = READERS[kind]
    values = model.config.to_dict()
    config = reader.import_config(values)
    theirs = {key: Weight("float32", w.detach().cpu().numpy()) for key, w in _floats(model)}
    part = Part(Path(name), config, reader.import_weights(theirs, config, values))
    target = build_model(part, device=model.device, copy=False)
    if not isinstance(target, Seq2Seq):
        raise UnsupportedError(f"{name}: only encoder-decoders are drafted for")
    return target


def _compare(model: PreTrainedModel, target: Seq2Seq, memory_1SD: Tensor) -> None:
    """Refuse a model that does more than its config says, such as one with hooks or adapters."""
    length = min(PROBE, target.config.max_positions)
    probe = _Row(0, [token % target.config.vocab_size for token in range(length)])
    theirs_V = _ask(model, memory_1SD, None, probe)
    tokens_1T = torch.tensor([probe.tokens], device=memory_1SD.device)
    with torch.inference_mode():
        ours_V = target.logits(target.decode(tokens_1T, memory_1SD))[0, -1]
    if not torch.allclose(ours_V, theirs_V, atol=float(AGREEMENT * theirs_V.abs().max())):
        raise UnsupportedError(
            f"{type(model).__name__} computes something else than its config.json says, so its "
            "drafts cannot be verified"
        )


def _floats(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    return [(key, one) for key, one in model.state_dict().items() if one.is_floating_point()]


def _check_model(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if model.training:
        raise UnsupportedError(
            f"{name} is in training mode, where dropout draws; call model.eval()"
        )
    if not model.config.is_encoder_decoder:
        raise UnsupportedError(f"{name}: only encoder-decoders are drafted for")
    kinds = {str(one.dtype).removeprefix("torch.") for _, one in _floats(model)}
    if kinds != {"float32"}:
        found = ", ".join(sorted(kinds - {"float32"}))
        raise UnsupportedError(
            f"{name} computes in {found}, where near-ties are too common to be exact; load it with "
            "dtype=torch.float32"
        )
    if len({one.device for one in model.parameters()}) > 1:
        raise UnsupportedError(f"{name} lies on several devices; put it on one")


def _check_dropped(given: dict[str, Any]) -> None:
    """Refuse what `generate` takes but does not hand to a callable: it would go unnoticed."""
    for option in ("streamer", "assistant_model", "synced_gpus"):
        if given.get(option):
            _refuse(option)


def _check_options(
    config: GenerationConfig,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    model_kwargs: dict[str, Any],
) -> None:
    """Refuse whatever would not be honoured, by name."""
    for option in ("num_beams", "num_return_sequences"):
        if (getattr(config, option) or 1) > 1:
            _refuse(f"{option}={getattr(config, option)}", f"; pass {option}=1")
    if config.do_sample:
        _refuse("do_sample", "; pass do_sample=False")
    mode = config.get_generation_mode()
    if mode != generation.GenerationMode.GREEDY_SEARCH:
        _refuse(mode.value.replace("_", " "))
    for option in REFUSED:
        if getattr(config, option, None):
            _refuse(option)
    for one in processors:
        if type(one).__name__ not in PROCESSORS or not _is_theirs(one):
            _refuse(f"the logits processor {type(one).__name__}")
    for one in criteria:
        if type(one).__name__ not in CRITERIA or not _is_theirs(one):
            _refuse(f"the stopping criterion {type(one).__name__}")
    for key, value in model_kwargs.items():
        if key not in GIVEN and value is not None:
            _refuse(key)
    past = model_kwargs.get("past_key_values")
    if past is not None and past.get_seq_length():
        _refuse("past_key_values")


def _is_theirs(part: Any) -> bool:
    """Whether a processor is transformers' own, not somebody's of the same name."""
    return type(part).__module__.startswith("transformers.generation.")


def _refuse(option: str, fix: str = "") -> None:
    raise UnsupportedError(f"tandem decoding in transformers does not honour {option}{fix}")
