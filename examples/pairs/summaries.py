"""Reports of football matches, each with a summary in one sentence.

A summary names the winner, the result and the first scorer: these are distributed over the report,
and most of the report is irrelevant.
"""

import random

from corpus import Pair, make

TEAMS = ("Reds", "Blues", "Greens", "Whites")
PLAYERS = ("Lina", "Omar", "Yuki", "Pavel", "Rosa", "Chen", "Ada", "Ivo")
ASIDE = (
    "The referee showed {player} a yellow card.",
    "{player} of the {team} was replaced.",
    "It began to rain.",
    "A shot of {player} hit the post.",
    "The {team} were pressing.",
    "There was a short break for water.",
)
GOAL = (
    "{player} scored for the {team}.",
    "A goal of the {team} by {player}.",
    "The {team} scored through {player}.",
)


def draw(dice: random.Random) -> Pair:
    """Generate a match."""
    home, away = dice.sample(TEAMS, 2)
    goals = [(dice.choice((home, away)), dice.choice(PLAYERS)) for _ in range(dice.randint(0, 4))]
    events = [
        dice.choice(GOAL).format(team=team, player=player) if team else _aside(dice, home, away)
        for team, player in _among(dice, goals)
    ]
    report = [f"The {home} met the {away}.", *events]
    count = [sum(team == side for team, _ in goals) for side in (home, away)]
    return " ".join(report), _summary((home, away), count, goals)


def _among(dice: random.Random, goals: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Insert irrelevant events between the goals."""
    events = [*goals]
    for _ in range(dice.randint(2, 6)):
        events.insert(dice.randint(0, len(events)), ("", ""))
    return events


def _aside(dice: random.Random, home: str, away: str) -> str:
    return dice.choice(ASIDE).format(player=dice.choice(PLAYERS), team=dice.choice((home, away)))


def _summary(teams: tuple[str, str], count: list[int], goals: list[tuple[str, str]]) -> str:
    if not goals:
        return "No goals."
    better = max(count), min(count)
    if better[0] == better[1]:
        ended = f"A draw, {better[0]} all"
    else:
        ended = f"The {teams[count.index(better[0])]} won {better[0]} to {better[1]}"
    return f"{ended}; {goals[0][1]} scored first."


if __name__ == "__main__":
    make("Reports and their summaries.", draw)
