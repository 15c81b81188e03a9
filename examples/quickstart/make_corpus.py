"""Write the tiny English-German corpus of the quickstart: sentences from a small grammar.

It is not a word-by-word substitution: German nouns have genders, articles and adjectives agree with
them, verbs move in questions and after an adverb, and "does not" has no single translation.
"""

import random
from pathlib import Path
from typing import NamedTuple


class Noun(NamedTuple):
    """A noun with its gender."""

    english: str
    german: str
    gender: str


PEOPLE = [
    Noun("man", "Mann", "m"),
    Noun("woman", "Frau", "f"),
    Noun("child", "Kind", "n"),
    Noun("teacher", "Lehrer", "m"),
    Noun("girl", "Mädchen", "n"),
    Noun("neighbour", "Nachbarin", "f"),
    Noun("cook", "Koch", "m"),
    Noun("doctor", "Ärztin", "f"),
]
THINGS = [
    Noun("house", "Haus", "n"),
    Noun("flower", "Blume", "f"),
    Noun("apple", "Apfel", "m"),
    Noun("book", "Buch", "n"),
    Noun("lamp", "Lampe", "f"),
    Noun("table", "Tisch", "m"),
    Noun("bicycle", "Fahrrad", "n"),
    Noun("bag", "Tasche", "f"),
    Noun("ball", "Ball", "m"),
    Noun("picture", "Bild", "n"),
]
TRAITS = [
    ("old", "alt"),
    ("young", "jung"),
    ("tall", "groß"),
    ("clever", "klug"),
    ("friendly", "freundlich"),
]
QUALITIES = [
    ("old", "alt"),
    ("small", "klein"),
    ("red", "rot"),
    ("new", "neu"),
    ("beautiful", "schön"),
    ("heavy", "schwer"),
]
VERBS = [
    ("see", "sieht"),
    ("buy", "kauft"),
    ("find", "findet"),
    ("draw", "zeichnet"),
    ("need", "braucht"),
    ("bring", "bringt"),
]
ADVERBS = [("today", "heute"), ("tomorrow", "morgen"), ("often", "oft"), ("here", "hier")]

THE = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das")}
A = {"m": ("ein", "einen"), "f": ("eine", "eine"), "n": ("ein", "ein")}
ENDING_THE = {"m": ("e", "en"), "f": ("e", "e"), "n": ("e", "e")}
ENDING_A = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es")}


def phrase(dice: random.Random, case: int) -> tuple[str, str]:
    """Return a noun phrase in English and German; case 0 is the subject, 1 the object."""
    noun = dice.choice((PEOPLE, THINGS)[case])
    english_adjective, german_adjective = dice.choice((TRAITS, QUALITIES)[case])
    definite = dice.random() < 0.5
    article = (THE if definite else A)[noun.gender][case]
    ending = (ENDING_THE if definite else ENDING_A)[noun.gender][case]
    if dice.random() < 0.5:
        return (
            f"{english_article(definite, english_adjective)} {english_adjective} {noun.english}",
            f"{article} {german_adjective}{ending} {noun.german}",
        )
    return f"{english_article(definite, noun.english)} {noun.english}", f"{article} {noun.german}"


def english_article(definite: bool, before: str) -> str:
    """Return the, a or an."""
    return "the" if definite else "an" if before[0] in "aeiou" else "a"


def sentence(dice: random.Random) -> tuple[str, str]:
    """Return one sentence and its translation."""
    (who, wer), (what, was) = phrase(dice, 0), phrase(dice, 1)
    verb, verb_form = dice.choice(VERBS)
    adverb, adverb_form = dice.choice(ADVERBS)
    pairs = [
        (f"{who} {verb}s {what}.", f"{wer} {verb_form} {was}."),
        (f"{who} does not {verb} {what}.", f"{wer} {verb_form} {was} nicht."),
        (f"{adverb} {who} {verb}s {what}.", f"{adverb_form} {verb_form} {wer} {was}."),
        (f"does {who} {verb} {what}?", f"{verb_form} {wer} {was}?"),
        (f"does {who} {verb} {what} {adverb}?", f"{verb_form} {wer} {adverb_form} {was}?"),
    ]
    english, german = dice.choice(pairs)
    return english[0].upper() + english[1:], german[0].upper() + german[1:]


def main() -> None:
    """Write train.tsv, test.en and test.de beside this file; no pair is in both."""
    dice = random.Random(1)
    pairs = dict.fromkeys(sentence(dice) for _ in range(3_000))
    test, train = list(pairs)[:200], list(pairs)[200:]
    folder = Path(__file__).parent
    write(folder / "train.tsv", [f"{english}\t{german}" for english, german in train])
    write(folder / "test.en", [english for english, _ in test])
    write(folder / "test.de", [german for _, german in test])


def write(path: Path, lines: list[str]) -> None:
    """Write one item per line."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
