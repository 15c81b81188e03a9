"""Division of texts into pieces that fit a model, at sentences of any language, and joining.

The rules use punctuation of many scripts and lists of abbreviations. A stop ends a sentence unless
a number, an initial, an abbreviation, a bracket or a lower-case letter indicates otherwise; in
doubt it does not. The parts concatenate to the text. Every step takes linear time.

Lists of abbreviations are lower-case and short: single letters, letters with dots between them,
Roman numerals and ordinals are recognised by their form, and common words of other languages are
left out.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from outrider.text.normalise import normalise, well_formed
from outrider.text.tokenizer import Tokenizer


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEFORE_A_NAME = _words(
    """
    mr mrs ms mx dr drs prof sen sens rep reps gov gen col maj capt cmdr lt sgt cpl pvt rev hon pres
    supt messrs adm amb insp brig pfc fr
    hr frl ing dipl mag phil med jur bürgerm
    m mm mme mmes mlle mgr pr ste
    sra srta dra dña dn lic sres sras exmo exma
    mudr
    """
)
"""Titles: never the last word of a sentence if capitalised."""

INSIDE = _words(
    """
    vs cf viz approx e.g i.e
    bzw evtl ggf inkl incl exkl vgl sog geb gest hl bspw insb zzgl z.b z.t d.h v.a
    p.ej p.ex c.-à-d aprox ee
    sig dott avv geom dhr mevr bijv d.w.z
    ul ks św np tzn tzw m.in např tzv
    проф акад им ул напр см т.е т.к г-н г-жа д-р
    """
)
"""Never the last word of a sentence."""

BEFORE_A_NUMBER = _words(
    """
    no nos nr fig figs vol vols pp pg ch chap sec sect art eq eqs tab tabs ca max min op ed
    abb abs kap bd aufl anm bl blz
    núm pág págs cap n tel ok
    рис стр табл гл ст
    jan feb mar apr jun jul aug sept sep oct nov dec mrz okt dez janv févr avr juil déc
    ene abr ago dic
    """
)
"""Not the last word of a sentence if a number follows."""

MAYBE_LAST = _words(
    """
    etc inc corp ltd co bros plc llc jr sr esq st mt ave blvd rd dept univ assn est al hrs ft lb oz
    usw gmbh chr jh tsd mio mrd std str tel bf hrsg verf
    cie av apr
    ud uds vd vds uu cía avda
    ecc enz osv itd itp atd vb
    гг тыс млн млрд руб др пр коп тт вв
    """
)
"""The last word of a sentence only where the next one is sure to begin one."""

FIRST_WORDS = _words(
    """
    the a an he she it we you they i this that these those there here in on at for but and so if
    when while after before as his her its our their my your what who why how where not no yes one
    some many most all however then now also since although because
    der die das ein eine er sie es wir ihr ich im am auf aber und doch wenn als da dann dies diese
    dieser dieses man mein meine sein seine für mit nach was wer wie wo nicht auch bei zu zum zur
    le la les un une il elle ils elles nous vous je tu ce cet cette ces mais et ou donc si quand
    dans en à au aux pour par sur avec son sa ses leur leurs mon ma mes
    el los las una él ella ellos ellas nosotros yo tú pero y cuando que como su sus mi este esta es
    lo gli lui lei noi ma e se quando questo questa non nel
    o os as um uma ele ela eles nós mas quando em não
    de het een hij zij ze wij ik maar als toen dit dat deze
    он она оно они мы вы я ты это в на но и а если когда как по с у для его её их так что не
    """
)
"""Words that, capitalised, begin a sentence far more often than they follow an abbreviation."""

NAME_PARTS = _words("le la les los las el das des de der den an so no on al")
"""First words that names begin with: `J. Le Clézio`."""


STRONG = "。！？｡．।॥؟۔։።፧။។៕܀߹᙮᠃᠉᱾᱿᭟꧉꯫"
"""Marks that end a sentence without a space after them."""
WEAK = ".!?…‼⁇⁈⁉།༎"
"""Marks that may end a sentence before white space or between Chinese characters."""
CLOSING = "\"'”’»›)\\]}」』】）〉》〕｣"
OPENING = "\"'“‘„«‹»›([{「『【（〈《〔｢¿¡-–—*_#"
BRACKETS = {")": "(", "]": "[", "}": "{", "）": "（", "】": "【", "〕": "〔"}

# The part after each repetition may be empty, so there is no backtracking; possessive quantifiers
# (`*+`) are wrong in Python before 3.11.5.
_STOP = re.compile(
    # Full stops; two Ethiopic word separators; the Greek question mark; the Armenian full stop.
    rf"(?<![{STRONG}{WEAK}])(?P<marks>(?:[{STRONG}{WEAK}]|፡፡)+"
    r"|(?<=[Ͱ-Ͽἀ-῿])[;\u037e]|(?<=[԰-֏]):)"
    # Closing quotes that are opening quotes in other languages need a space after them.
    rf"(?P<closing>(?:[{CLOSING}]|[“‘«‹](?=\s|\Z)|\s[»›](?=[\s,.;:]|\Z))*)(?P<space>\s*)"
)
_WORD = re.compile(r"[$€£¥]?[^\W_]+(?:['’\-][^\W_]+)*")
_DOTTED = re.compile(r"[^\W\d_]{1,3}(?:\.-?[^\W\d_]{1,3})+|[^\W\d_]")
"""An initial, or letters with dots between them: J, U.S, Ph.D, J.-C."""
_ROMAN = re.compile(r"[IVX]{2,}")
_ITEM = re.compile(r"(?:\d{1,3}|[^\W\d_]|[ivxIVX]+)\Z")
"""The number of an item of a list."""
_SPACED = re.compile(r"(?:z\. ?B|[du]\. ?[hä]|[uvso]\. ?[aäou]|i\. ?d\. ?R|p\. ?e[jx]|т\. ?е)\Z")
"""Abbreviations with spaces inside."""
_COUNTED = re.compile(r"[^\W\d_]\. ?\d+\Z")
"""A number after an abbreviation, as in `No. 5`, is not an ordinal."""
_SAID = re.compile(r"(?:[とっ]|[^，。！？；：,\s]{0,6}[说說问問道喊叫答嚷])")
"""Words after a quotation that continue the sentence around it."""
_PAUSE = re.compile(r"(?P<clause>[,;:]\s+|[，、；：،؛]\s*)|\s+")
_LONGEST_WORD = 24
_LONGEST_BRACKET = 400


def split_sentences(text: str) -> list[str]:
    """Split into sentences with the white space after them; they concatenate to `text`."""
    sentences: list[str] = []
    for line in text.splitlines(keepends=True):
        start = 0
        for end in _ends(line):
            sentences.append(line[start:end])
            start = end
        if start < len(line):
            sentences.append(line[start:])
    return sentences


def cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Halve a text until every piece fits: after a clause, or at white space, or anywhere."""
    if len(text) < 2 or fits(text.strip()):
        return [text]
    middle = _cutting_point(text)
    return cut(text[:middle], fits) + cut(text[middle:], fits)


def join(parts: Sequence[str], gaps: Sequence[str]) -> str:
    """Join the translations of the first pieces; `gaps` is the white space between the sources.

    Gaps are adapted to the target's script: a space between sentences of scripts that use one, none
    between Chinese or Japanese sentences.
    """
    return join_at(parts, gaps)[0]


def join_at(parts: Sequence[str], gaps: Sequence[str]) -> tuple[str, list[int]]:
    """Like `join`, with the offset of each part."""
    text, starts = "", []
    for part, gap in zip(parts, ["", *gaps], strict=False):
        text += _fitting_gap(text, gap, part)
        starts.append(len(text))
        text += part
    return text, starts


def _ends(line: str) -> Iterator[int]:
    """Yield the offsets at which a sentence ends and another begins."""
    cased = any(map(str.isupper, line))
    start = counted = quotes = 0
    for stop in _STOP.finditer(line):
        quotes += line.count('"', counted, stop.end("marks"))
        counted = stop.end("marks")
        end = stop.end()
        if stop["closing"][:1] == '"' and not stop["space"] and quotes % 2 == 0:
            end = stop.end("marks")  # an opening quote
        if end < len(line) and _ends_sentence(line, stop, start, end, cased):
            yield end
            start = end


def _ends_sentence(line: str, stop: re.Match[str], start: int, end: int, cased: bool) -> bool:
    marks, closing = stop["marks"], stop["closing"] if end == stop.end() else ""
    if _inside_brackets(line, closing, start, stop.start()):
        return False
    if any(mark in STRONG for mark in marks) or marks == "፡፡":
        return _strong_end(line, stop, start, end, closing)
    ellipsis = set(marks) <= {".", "…"} and marks != "."
    if not stop["space"]:
        around = line[stop.start() - 1 : stop.start()], line[end : end + 8].lstrip(OPENING)[:1]
        return not ellipsis and all(c.isalpha() and _is_dense(c) for c in around)
    ahead = line[end : end + 40].lstrip(OPENING + " ")
    if ahead[:1] in f",;:)]}}{WEAK}" or (cased and _is_small(ahead[0])):
        return False
    word = (_WORD.match(ahead) or [""])[0]
    if marks != ".":
        # An English I does not indicate a beginning: `Well... I see.` and `"Why?" I asked.`
        doubtful = re.split("['’]", word)[0] == "I"
        return ahead[:1].isupper() and not doubtful if ellipsis else not (closing and doubtful)
    sure = cased and word.lower() in FIRST_WORDS and not ahead.startswith(f"{word}.")
    return _dot_ends(_before(line, start, stop.start()), word, sure, cased)


def _strong_end(line: str, stop: re.Match[str], start: int, end: int, closing: str) -> bool:
    marks, after = stop["marks"], line[end]
    if marks == "．" and (
        after.isdigit() or _ITEM.match(_before(line, start, stop.start()).strip())
    ):
        return False
    etc = line.startswith("ល។", end) or line.endswith("។ល", start, stop.start())  # Khmer
    if etc or after in f"，、；：,;:、{STRONG}":
        return False
    return not (closing and _SAID.match(line, end, end + 8))


def _before(line: str, start: int, stop: int) -> str:
    """Return the end of the sentence before a stop, with its whole last word."""
    return line[max(start, stop - _LONGEST_WORD) : stop]


def _dot_ends(before: str, after: str, sure: bool, cased: bool) -> bool:
    """Whether a dot ends a sentence; `sure`: the next word certainly begins one."""
    words = before.split()
    word = words[-1].lstrip(OPENING) if words else ""
    if not word:
        return True
    lower = word.lower()
    if len(before) < _LONGEST_WORD and len(words) == 1 and _ITEM.match(word):
        return False
    if lower in INSIDE or _SPACED.search(before):
        return False
    if lower in BEFORE_A_NAME and (word[0].isupper() or not cased):
        return False
    if lower in BEFORE_A_NUMBER and (after.strip("$€£¥")[:1].isdigit() or _ROMAN.fullmatch(after)):
        return False
    if _DOTTED.fullmatch(word):
        return sure and not (len(word) == 1 and after.lower() in NAME_PARTS)
    ordinal = word.isdigit() and len(word) <= 3 and not _COUNTED.search(before)
    if ordinal or lower in MAYBE_LAST or _ROMAN.fullmatch(word):
        return sure
    return True


def _inside_brackets(line: str, closing: str, start: int, stop: int) -> bool:
    """Whether a bracket closes that was opened inside the sentence."""
    for mark in closing:
        if mark in BRACKETS:
            opened = line.rfind(BRACKETS[mark], max(start, stop - _LONGEST_BRACKET), stop)
            return opened >= 0 and _before(line, start, opened).strip(OPENING + " ") != ""
    return False


def _is_small(character: str) -> bool:
    """Whether a letter is lower-case, in a script whose sentences begin with a capital."""
    return character.islower() and not "ა" <= character <= "ჿ"


def _cutting_point(text: str) -> int:
    """Return an offset strictly inside the text, at a pause of its middle half if it has one."""
    middle, quarter = len(text) // 2, len(text) // 4
    pauses = list(_PAUSE.finditer(text, quarter, len(text) - quarter))
    clauses = [pause for pause in pauses if pause["clause"]]
    places = [pause.end() for pause in clauses or pauses]
    best = min(places, key=lambda place: abs(place - middle), default=middle)
    # Keep combining marks with their letter, unless there are too many.
    best += next(
        (n for n, c in enumerate(text[best : best + 8]) if not unicodedata.combining(c)), 0
    )
    return min(max(1, best), len(text) - 1)


def _fitting_gap(left: str, gap: str, right: str) -> str:
    if not left or not right:
        return gap if left else ""
    dense = _is_dense(left[-1]) and _is_dense(right[0])
    if gap == "":
        return "" if dense or _is_dense(left[-1]) else " "
    if gap == "\u3000" and not _is_dense(left[-1]):
        return " "
    return "" if gap == " " and dense else gap


def _is_dense(character: str) -> bool:
    """Whether the script of this character puts no spaces between sentences."""
    if not character or unicodedata.east_asian_width(character) not in "WF":
        return False
    return "HANGUL" not in unicodedata.name(character, "")


class Piece(NamedTuple):
    """A part of a text, and the token ids of its normalised form."""

    text: str
    ids: list[int]


class Segments(NamedTuple):
    """The pieces of one text, and the white space between them."""

    pieces: list[Piece]
    gaps: list[str]
    starts: list[int]
    """Offset of each piece in the text."""


def segment(
    texts: Sequence[str], tokenizer: Tokenizer, *, longest: int, split: bool = True
) -> list[Segments]:
    """Divide every text into sentences, or lines, of at most `longest` tokens."""

    def encode(parts: Sequence[str]) -> list[Piece]:
        rows = tokenizer.encode_batch([normalise(part) for part in parts])
        return [Piece(part, ids) for part, ids in zip(parts, rows, strict=True)]

    def divide(piece: Piece, into: Callable[[str], list[str]]) -> list[Piece]:
        return [piece] if len(piece.ids) <= longest else encode(into(piece.text))

    def fits(text: str) -> bool:
        return len(tokenizer.encode(normalise(text))) <= longest

    cuts: list[Callable[[str], list[str]]] = [split_sentences, partial(cut, fits=fits)]
    if not split:
        cuts.insert(0, partial(str.splitlines, keepends=True))
    first, *others = cuts
    rows = [first(well_formed(text)) for text in texts]
    encoded = iter(encode([part for row in rows for part in row]))
    segmented = []
    for row in rows:
        pieces = [next(encoded) for _ in row]
        for into in others:
            pieces = [part for piece in pieces for part in divide(piece, into)]
        segmented.append(_without_blanks(pieces, longest))
    return segmented


def _without_blanks(pieces: list[Piece], longest: int) -> Segments:
    """Move white space between pieces, and blank pieces, into the gaps."""
    segments, gap, end = Segments([], [], []), "", 0
    for text, ids in pieces:
        start, end = end, end + len(text)
        if not ids:
            gap += "".join(c for c in text if c.isspace())
            continue
        lead, trail = len(text) - len(text.lstrip()), len(text.rstrip())
        if segments.pieces:
            segments.gaps.append(gap + text[:lead])
        # A single character may have more tokens than fit; the rest is dropped.
        segments.pieces.append(Piece(text, ids[:longest]))
        segments.starts.append(start)
        gap = text[trail:]
    return segments
