"""A policy that remembers: a stack of causal layers over what was seen so far.

    h_t = stack(W o_1, ..., W o_t)        action ~ softmax(A h_t)        value = v . h_t

Acting appends one observation to a cache; training reads whole episodes in one pass. Both compute
the same numbers.
"""

import torch
from torch import Tensor, nn

from outrider.models import DecoderState, LanguageModelConfig
from outrider.models.base import init_weights
from outrider.models.build import build_position, build_stack
from outrider.nn.position import Positions

__all__ = ["Policy"]


class Policy(nn.Module):
    """Actor and critic on one stack."""

    def __init__(self, config: LanguageModelConfig, channels: int, actions: int) -> None:
        super().__init__()
        self.look = nn.Linear(channels, config.hidden_size)
        self.position = build_position(config)
        self.stack = build_stack(config, "attention", cross=False)
        self.actor = nn.Linear(config.hidden_size, actions)
        self.critic = nn.Linear(config.hidden_size, 1)
        self.apply(init_weights)
        for head in (self.actor, self.critic):  # at first every action is as good as another
            nn.init.normal_(head.weight, std=0.01)

    def forward(self, seen_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """Read whole episodes: logits of the actions, [B, T, A], and values, [B, T]."""
        positions = Positions.upto(seen_BTC.shape[1], seen_BTC.device)
        return self._judge(self.stack(self._embed(seen_BTC, positions), positions))

    def open(self, rows: int, steps: int) -> DecoderState:
        """Begin `rows` episodes of at most `steps` steps."""
        caches = self.stack.new_caches(rows, steps)
        return DecoderState(
            caches,
            [None] * len(caches),
            lengths=[0] * rows,
            capacity=steps,
            device=self.look.weight.device,
        )

    @torch.no_grad()
    def extend(self, seen_BC: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """Take in one more observation of every episode: logits, [B, A], and values, [B]."""
        counts = [1] * state.rows
        step = state.step(1, counts)
        x_B1D = self._embed(seen_BC[:, None], step.positions)
        logits_B1A, value_B1 = self._judge(
            self.stack.extend(x_B1D, state.caches, step, state.sources)
        )
        state.advance(counts)
        return logits_B1A[:, 0], value_B1[:, 0]

    def _embed(self, seen_BTC: Tensor, positions: Positions) -> Tensor:
        x_BTD: Tensor = self.look(seen_BTC)
        return x_BTD if self.position is None else self.position(x_BTD, positions)

    def _judge(self, hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden_BTD), self.critic(hidden_BTD)[..., 0]
