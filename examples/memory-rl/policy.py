"""A policy with memory: a stack of causal layers over past observations.

    h_t = stack(W o_1, ..., W o_t)        action ~ softmax(A h_t)        value = v . h_t

An episode of at most `max_positions` steps is one sequence: acting appends one observation to a
cache, training computes all steps in one pass. A longer one is split into segments of that many
steps. Every layer keeps its last `memory` inputs of earlier segments, without gradient
(Transformer-XL, `outrider.torch.nn.stack.memory`). In both cases acting and training compute the
same numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.torch.models import DecoderState, LanguageModelConfig
from outrider.torch.models.base import init_weights
from outrider.torch.models.build import build_position, build_stack
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack.memory import Memory, run_segment

__all__ = ["Policy", "Reading"]


@dataclass
class Reading:
    """The state of episodes that are read in segments."""

    memory: Memory
    """Memory of earlier segments."""
    seen_BTC: Tensor
    """Observations of the current segment."""


class Policy(nn.Module):
    """Actor and critic on one stack."""

    def __init__(self, config: LanguageModelConfig, channels: int, actions: int) -> None:
        super().__init__()
        self.segment, self.memory = config.max_positions, config.memory
        self.look = nn.Linear(channels, config.hidden_size)
        self.position = build_position(config)
        self.stack = build_stack(config, "attention", cross=False)
        self.actor = nn.Linear(config.hidden_size, actions)
        self.critic = nn.Linear(config.hidden_size, 1)
        self.apply(init_weights)
        for head in (self.actor, self.critic):  # at the start all actions are about equally likely
            nn.init.normal_(head.weight, std=0.01)

    def forward(self, seen_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """Run whole episodes: logits of the actions, [B, T, A], and values, [B, T].

        Segments have a memory of earlier ones, without gradient.
        """
        rows, steps, _ = seen_BTC.shape
        if steps <= self.segment:
            positions = Positions.upto(steps, seen_BTC.device)
            return self._judge(self.stack(self._embed(seen_BTC, positions), positions))
        memory, hidden = Memory.empty(self.stack, rows, self.memory), []
        for segment_BTC in seen_BTC.split(self.segment, dim=1):
            hidden_BTD, memory = self._read(segment_BTC, memory)
            hidden.append(hidden_BTD)
        return self._judge(torch.cat(hidden, dim=1))

    def open(self, rows: int, steps: int) -> DecoderState | Reading:
        """Start `rows` episodes of at most `steps` steps."""
        if steps > self.segment:
            nothing_B0C = self.look.weight.new_zeros(rows, 0, self.look.in_features)
            return Reading(Memory.empty(self.stack, rows, self.memory), nothing_B0C)
        caches = self.stack.new_caches(rows, steps)
        return DecoderState(
            caches,
            [None] * len(caches),
            lengths=[0] * rows,
            capacity=steps,
            device=self.look.weight.device,
        )

    @torch.no_grad()
    def extend(self, seen_BC: Tensor, state: DecoderState | Reading) -> tuple[Tensor, Tensor]:
        """Add one observation to every episode: logits, [B, A], and values, [B]."""
        seen_B1C = seen_BC[:, None]
        if isinstance(state, Reading):
            hidden_B1D = self._read_again(seen_B1C, state)
        else:
            hidden_B1D = self._append(seen_B1C, state)
        logits_B1A, value_B1 = self._judge(hidden_B1D)
        return logits_B1A[:, 0], value_B1[:, 0]

    def _append(self, seen_B1C: Tensor, state: DecoderState) -> Tensor:
        counts = [1] * state.rows
        step = state.step(1, counts)
        x_B1D = self._embed(seen_B1C, step.positions)
        hidden_B1D = self.stack.extend(x_B1D, state.caches, step, state.sources)
        state.advance(counts)
        return hidden_B1D

    def _read_again(self, seen_B1C: Tensor, state: Reading) -> Tensor:
        """Run a segment from its beginning; a full segment becomes the memory."""
        segment_BTC = torch.cat([state.seen_BTC, seen_B1C], dim=1)
        hidden_BTD, memory = self._read(segment_BTC, state.memory)
        if segment_BTC.shape[1] == self.segment:
            state.memory, segment_BTC = memory, segment_BTC[:, :0]
        state.seen_BTC = segment_BTC
        return hidden_BTD[:, -1:]

    def _read(self, seen_BTC: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        positions = Positions.upto(seen_BTC.shape[1], seen_BTC.device)
        begins_BT = torch.zeros(seen_BTC.shape[:2], dtype=torch.bool, device=seen_BTC.device)
        return run_segment(self.stack, self._embed(seen_BTC, positions), begins_BT, memory)

    def _embed(self, seen_BTC: Tensor, positions: Positions) -> Tensor:
        x_BTD: Tensor = self.look(seen_BTC)
        return x_BTD if self.position is None else self.position(x_BTD, positions)

    def _judge(self, hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden_BTD), self.critic(hidden_BTD)[..., 0]
