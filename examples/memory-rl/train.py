"""Learn to remember a cue, with and without the gates of GTrXL (arXiv:1910.06764).

Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) on whole episodes:

    ratio_t = p(a_t) / p_old(a_t)
    loss = -min(ratio_t A_t, clip(ratio_t, 1 - e, 1 + e) A_t) + c (v_t - R_t)^2 - b entropy_t

with generalised advantages A_t (Schulman et al., 2015, arXiv:1506.02438).

python examples/memory-rl/train.py --json memory.json --png memory.png
python examples/memory-rl/train.py --segment 6 --json segments.json --png segments.png
"""

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from curves import draw
from gymnasium.vector import VectorEnv
from maze import ACTIONS, CHANNELS, MAZE
from policy import Policy
from torch import Tensor
from torch.distributions import Categorical

from outrider import yaml12
from outrider.formats.spec import check_keys
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.models import LanguageModelConfig

HERE = Path(__file__).parent
MODELS = ("transformer", "gtrxl", "gtrxl-closed")
SEGMENTED = ("transformer", "gtrxl")
"""Models compared with and without a memory of earlier segments."""
SOLVED = 0.95
"""A run counts as solved from this share of right turns in the last tenth of the updates."""


@dataclass(frozen=True)
class Settings:
    """The task and the training settings."""

    corridor: int = 16
    updates: int = 120
    episodes: int = 64
    """Parallel episodes per update."""
    epochs: int = 3
    """Passes over the episodes."""
    rate: float = 3e-3
    clip: float = 0.2
    discount: float = 0.99
    trace: float = 0.95
    """Decay of the advantage estimate (lambda)."""
    entropy: float = 0.01
    critic: float = 0.5


class Episodes(NamedTuple):
    """Observations, actions and rewards."""

    seen_BTC: Tensor
    action_BT: Tensor
    log_prob_BT: Tensor
    value_BT: Tensor
    reward_BT: Tensor


def read_model(name: str, changes: dict[str, int] | None = None) -> tuple[str, LanguageModelConfig]:
    """Read a YAML file with changed keys: the model's name and config."""
    spec = yaml12.parse((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    model = spec["model"] | (changes or {})
    check_keys(LanguageModelConfig, model, prefix="model.")
    return spec["name"], LanguageModelConfig(**model)


def play(policy: Policy, mazes: VectorEnv[Any, Any, Any], steps: int, device: str) -> Episodes:
    """Play one episode in every maze; all have the same number of steps."""
    seen, _ = mazes.reset()
    state = policy.open(len(seen), steps)
    columns: list[tuple[Tensor, ...]] = []
    for _ in range(steps):
        seen_BC = torch.as_tensor(seen, device=device)
        logits_BA, value_B = policy.extend(seen_BC, state)
        choice = Categorical(logits=logits_BA)
        action_B = choice.sample()
        seen, reward, _, _, _ = mazes.step(action_B.cpu().numpy())
        reward_B = torch.as_tensor(reward, dtype=torch.float32, device=device)
        columns.append((seen_BC, action_B, choice.log_prob(action_B), value_B, reward_B))
    return Episodes(*(torch.stack(column, dim=1) for column in zip(*columns, strict=True)))


def advantages(value_BT: Tensor, reward_BT: Tensor, settings: Settings) -> Tensor:
    """Generalised advantages; episodes end with their last step."""
    steps = value_BT.shape[1]
    advantage_BT = torch.zeros_like(value_BT)
    later_B, next_B = torch.zeros_like(value_BT[:, 0]), torch.zeros_like(value_BT[:, 0])
    for t in reversed(range(steps)):
        surprise_B = reward_BT[:, t] + settings.discount * next_B - value_BT[:, t]
        later_B = surprise_B + settings.discount * settings.trace * later_B
        advantage_BT[:, t], next_B = later_B, value_BT[:, t]
    return advantage_BT


def loss_of(policy: Policy, played: Episodes, advantage_BT: Tensor, settings: Settings) -> Tensor:
    """The clipped objective, the critic's error, and the entropy bonus."""
    logits_BTA, value_BT = policy(played.seen_BTC)
    choice = Categorical(logits=logits_BTA)
    ratio_BT = (choice.log_prob(played.action_BT) - played.log_prob_BT).exp()
    scaled_BT = (advantage_BT - advantage_BT.mean()) / (advantage_BT.std() + 1e-6)
    clipped_BT = ratio_BT.clamp(1 - settings.clip, 1 + settings.clip)
    gain = torch.minimum(ratio_BT * scaled_BT, clipped_BT * scaled_BT).mean()
    error = (value_BT - (advantage_BT + played.value_BT)).square().mean()
    return settings.critic * error - gain - settings.entropy * choice.entropy().mean()


def learn(config: LanguageModelConfig, settings: Settings, seed: int, device: str) -> list[float]:
    """Train one policy; return the share of right turns by update."""
    torch.manual_seed(seed)
    policy = Policy(config, CHANNELS, ACTIONS).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.rate)
    mazes = gymnasium.make_vec(
        MAZE, settings.episodes, vectorization_mode="sync", corridor=settings.corridor
    )
    mazes.reset(seed=seed)
    curve = []
    for _ in range(settings.updates):
        played = play(policy, mazes, settings.corridor + 2, device)
        advantage_BT = advantages(played.value_BT, played.reward_BT, settings)
        for _ in range(settings.epochs):
            optimizer.zero_grad()
            loss_of(policy, played, advantage_BT, settings).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        curve.append((played.reward_BT[:, -1] > 0).float().mean().item())
    mazes.close()
    return curve


def measure(
    name: str, settings: Settings, seeds: int, device: str, changes: dict[str, int]
) -> dict[str, Any]:
    """Train one kind of policy with several seeds at one learning rate."""
    title, config = read_model(name, changes)
    told = ", ".join([title, *(f"{key} {value}" for key, value in changes.items())])
    start = time.process_time()
    curves = []
    for seed in range(seeds):
        curves.append(learn(config, settings, seed, device))
        seconds = time.process_time() - start
        share = f"{at_end(curves[-1]):.0%} right at the end"
        print(f"{told}, rate {settings.rate:g}, seed {seed}: {share}, {seconds:.0f} s", flush=True)
    return {
        "name": title,
        "model": config.to_diff_dict(),
        "parameters": sum(p.numel() for p in Policy(config, CHANNELS, ACTIONS).parameters()),
        "rate": settings.rate,
        "solved": sum(at_end(curve) >= SOLVED for curve in curves) / seeds,
        "seconds": round(time.process_time() - start, 1),
        "curves": [[round(share, 4) for share in curve] for curve in curves],
    }


def at_end(curve: list[float]) -> float:
    """Return the share of right turns in the last tenth of the updates."""
    last = curve[-max(1, len(curve) // 10) :]
    return sum(last) / len(last)


def main() -> None:
    """Train, compare and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smoke test: a few short runs")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=Settings.updates)
    parser.add_argument("--corridor", type=int, default=Settings.corridor)
    parser.add_argument("--rates", type=float, nargs="+", help="by default 0.003 and 0.01")
    parser.add_argument("--segment", type=int, help="steps per segment; by default all")
    parser.add_argument("--memory", type=int, nargs="+", help="steps of memory, with --segment")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=Path("memory.json"))
    parser.add_argument("--png", type=Path, default=Path("memory.png"))
    arguments = parser.parse_args()
    settings = Settings(corridor=arguments.corridor, updates=arguments.updates)
    seeds = arguments.seeds
    if arguments.quick:
        settings, seeds = Settings(corridor=3, updates=3, episodes=8), 2
    results = [
        measure(name, replace(settings, rate=rate), seeds, arguments.device, changes)
        for name, rate, changes in plan(arguments)
    ]
    draw(results, settings.corridor, settings.episodes, arguments.png)
    record = {"settings": asdict(settings), "seeds": seeds, "runs": results}
    write_result(arguments.json, {**record, "machine": machine(), "versions": versions()})


def plan(arguments: argparse.Namespace) -> list[tuple[str, float, dict[str, int]]]:
    """List the trainings: a model, a learning rate, and changed config keys."""
    segment = arguments.segment
    if segment is None:
        if arguments.memory is not None:
            raise SystemExit("--memory is of earlier segments; say with --segment how long one is")
        rates = arguments.rates or [3e-3, 1e-2]
        return [(name, rate, {}) for rate in rates for name in MODELS]
    memories = [0, segment, 2 * segment] if arguments.memory is None else arguments.memory
    return [
        (name, rate, {"max_positions": segment, "memory": memory})
        for rate in arguments.rates or [3e-3]
        for memory in memories
        for name in SEGMENTED
    ]


if __name__ == "__main__":
    main()
