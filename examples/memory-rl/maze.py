"""A T-maze: the observation of the first step determines the correct action of the last one.

    step      0           1 .. n        n + 1
    sees      the cue     noise         the junction
    correct   go on       go on         turn to the side of the cue

The agent moves by itself; turning in the corridor costs a little. At the junction the correct turn
earns 1, any other action -1, so an agent without memory earns 0 at best.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

__all__ = ["ACTIONS", "CHANNELS", "MAZE", "Maze"]

MAZE = "outrider/Maze-v0"
ON, LEFT, RIGHT = range(3)
ACTIONS = 3
START, CUE, JUNCTION = range(3)
CHANNELS = 8
"""Start, cue and junction; other channels are noise, and so is the cue after the first step."""
BUMP = 0.1

Seen = NDArray[np.float32]


class Maze(gymnasium.Env[Seen, np.int64]):
    """A corridor of noise between a cue and the junction."""

    def __init__(self, corridor: int = 16) -> None:
        self.corridor = corridor
        self.observation_space = Box(-1.0, 1.0, (CHANNELS,), np.float32)
        self.action_space = Discrete(ACTIONS)
        self._step = 0
        self._side = LEFT

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        """Start a new episode with a new cue."""
        super().reset(seed=seed)
        self._step = 0
        self._side = LEFT if self.np_random.random() < 0.5 else RIGHT
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Move one step; the episode ends at the junction."""
        if self._step == self.corridor + 1:
            right = action == self._side
            return self._look(), 1.0 if right else -1.0, True, False, {}
        self._step += 1
        return self._look(), 0.0 if action == ON else -BUMP, False, False, {}

    def _look(self) -> Seen:
        seen = self.np_random.uniform(-1, 1, CHANNELS).astype(np.float32)
        seen[START] = self._step == 0
        seen[JUNCTION] = self._step == self.corridor + 1
        if self._step == 0:
            seen[CUE] = 1.0 if self._side == RIGHT else -1.0
        return seen


gymnasium.register(MAZE, entry_point=Maze)
