"""Pictures of two coloured shapes as pixels, with a sentence that describes each.

A picture has 10 rows of 10 pixels, each a word that names its colour; rows are not marked.
"""

import random

from corpus import Pair, make

SIDE, SIZE = 10, 3
COLOURS = {"red": "r", "green": "g", "blue": "b", "yellow": "y", "white": "w"}
EMPTY = "k"
SHAPES = {
    "square": ("###", "###", "###"),
    "cross": (".#.", "###", ".#."),
    "ring": ("###", "#.#", "###"),
    "corner": ("#..", "#..", "###"),
}


def draw(dice: random.Random) -> Pair:
    """Draw two shapes that do not touch."""
    while True:
        places = [(dice.randint(0, SIDE - SIZE), dice.randint(0, SIDE - SIZE)) for _ in range(2)]
        (y1, x1), (y2, x2) = places
        beside, below = abs(x1 - x2) > SIZE, abs(y1 - y2) > SIZE
        if beside != below:  # side by side or one above the other: exactly one description
            break
    named = [(dice.choice([*COLOURS]), dice.choice([*SHAPES])) for _ in range(2)]
    order = sorted(range(2), key=lambda at: places[at][1 if beside else 0])
    grid = [[EMPTY] * SIDE for _ in range(SIDE)]
    for (top, left), (colour, shape) in zip(places, named, strict=True):
        for y, row in enumerate(SHAPES[shape]):
            for x, dot in enumerate(row):
                if dot == "#":
                    grid[top + y][left + x] = COLOURS[colour]
    first, second = (" ".join(named[at]) for at in order)
    how = "left of" if beside else "above"
    return " ".join(pixel for row in grid for pixel in row), f"a {first} {how} a {second}"


if __name__ == "__main__":
    make("Pictures and their captions.", draw)
