"""Little stories and a question about each, after the first tasks of bAbI (Weston et al., 2015).

People walk about and carry things. Where somebody is, the last sentence about them says; where a
thing is, two sentences say together.
"""

import random

from corpus import Pair, make

PEOPLE = ("Mary", "John", "Aisha", "Liu")
PLACES = ("kitchen", "garden", "office", "cellar", "hall", "attic")
THINGS = ("apple", "book", "ball", "key")
WALKS = ("went to the", "walked to the", "moved to the")


def draw(dice: random.Random) -> Pair:
    """Make a story up, and ask for what it says."""
    place = dict.fromkeys(PEOPLE, "")
    holder: dict[str, str] = {}
    lines = []
    for _ in range(dice.randint(2, 5)):
        who = dice.choice(PEOPLE)
        free = [thing for thing in THINGS if thing not in holder]
        if place[who] and free and dice.random() < 0.4:
            thing = dice.choice(free)
            holder[thing] = who
            lines.append(f"{who} took the {thing}.")
        else:
            place[who] = dice.choice([one for one in PLACES if one != place[who]])
            lines.append(f"{who} {dice.choice(WALKS)} {place[who]}.")
    known = [(who, where) for who, where in place.items() if where]
    known += [(f"the {thing}", place[who]) for thing, who in holder.items()]
    asked, answer = dice.choice(known)
    return f"{' '.join(lines)} Where is {asked}?", answer


if __name__ == "__main__":
    make("Stories with questions, and the answers.", draw, train=40_000)
