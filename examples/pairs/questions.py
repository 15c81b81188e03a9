"""Short stories with a question, similar to bAbI (Weston et al., 2015).

The place of a person follows from one sentence, the place of a thing from two.
"""

import random

from corpus import Pair, make

PEOPLE = ("Mary", "John", "Aisha", "Liu", "Omar", "Rosa")
PLACES = ("kitchen", "garden", "office", "cellar", "hall", "attic")
THINGS = ("apple", "book", "ball", "key")
WALKS = ("went to the", "walked to the", "moved to the")


def draw(dice: random.Random) -> Pair:
    """Generate a story, a question and its answer."""
    place = {who: dice.choice(PLACES) for who in dice.sample(PEOPLE, dice.randint(2, 4))}
    holder = {thing: dice.choice([*place]) for thing in dice.sample(THINGS, dice.randint(0, 2))}
    lines = [f"{who} {dice.choice(WALKS)} {where}." for who, where in place.items()]
    lines += [f"{who} took the {thing}." for thing, who in holder.items()]
    dice.shuffle(lines)
    known = [*place.items()] + [(f"the {thing}", place[who]) for thing, who in holder.items()]
    asked, answer = dice.choice(known)
    return f"{' '.join(lines)} Where is {asked}?", answer


if __name__ == "__main__":
    make("Stories with questions, and the answers.", draw, train=40_000)
