"""Splitting loses nothing and skips abbreviations and numbers; joining restores the spaces."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.text.sentences import cut, join, split_sentences

# A bar marks the end of a sentence.
TABLE = {
    "English": [
        "I lost my keys. |My brother has found them. |He gave them to me.",
        "Really? |Yes! |Good.",
        "Wait... |What?",
        "Well... maybe not.",
        "Well... I see.",
        "He said: “Stop!” |She did not.",
        "“Really?” he asked. |“Yes.” |“Good.”",
        '"Why is this?" I ask myself.',
        '"What shall I do?" , or "What now?"',
        '"Should I feel bad?" - as a vegan you have to be tactful.',
        "(It was late.) |They left.",
        "It was late (as always). |They left.",
        "The (supposedly!) Great War ended.",
        "It was 1999. |Then it ended.",
        "She is 42. |He is 43.",
        "Pi is 3.14 and e is 2.72 today. |So it is.",
        "Mr. Smith met Dr. Jones. |They talked.",
        "J. R. R. Tolkien wrote it. |I read it.",
        "The U.S. Army is here. |We saw it.",
        "He lives in the U.S. |The army does not.",
        "It starts at 5 p.m. sharp. |Do not be late.",
        "It starts at 5 p.m. |He comes at six.",
        "See Fig. 3 and Vol. II for this. |No. |I do not want to.",
        "Take apples, pears, etc. |The rest is mine.",
        "Apple Inc. CEO Tim Cook spoke. |It was short.",
        "She has a Ph.D. in physics. |He has none.",
        "Version 2.0.1 is out. |Get it at example.com. |Or see docs/index.html?page=2.",
        "Open setup.py. |Then run it.",
        "1. Wash the rice. |2. Boil it.",
        "We met at 10.30. |It rained.",
        "i lost my keys. |my brother found them, e.g. in the car. |good!",
        "He worked for Brig. Gen. Sean B. MacFarland. |Nobody knew.",
        "Hello . |How are you ?",
        "Stop!!! |Why?! |Because.",
        "It costs approx. $5. |The other is free.",
        "World War II. |The end.",
        "Great! |😀 See you.",
        "She came.\t|He left.",
        "She came.  |He left. \n|\n|It was over.",
    ],
    "German": [
        "Wir kommen am 3. Mai an. |Dann fahren wir.",
        "Im 19. Jahrhundert gab es das nicht. |Heute schon.",
        "Es war das 165. Stiftungsfest. |Alle kamen.",
        "Das ist z.B. Unsinn. |Und das d. h. Quatsch auch.",
        "Das ist z. B. Unsinn, u. a. Quatsch. |Ja.",
        "Er kam mit Hrn. |Schmidt.",
        "Herr Dr. Müller und Fr. Prof. Dr. Meier sind da. |Setz dich.",
        "Es kostet ca. 5 Mio. Euro. |Das ist viel.",
        "Obst, Gemüse usw. |Das mag ich.",
        "Kaiser Wilhelm II. war da. |Ludwig XIV. König von Frankreich auch.",
        "„Warum?“ |Er ging.",
        "„Warum?“, fragte er. |»So.« |Er ging.",
        "Er kam. |»Warum?« fragte sie.",
        "Das (wirklich!) Haus steht noch. |Es ist alt.",
        "Siehe Abb. 3, Nr. 5 und S. 12. |Sonst nichts.",
    ],
    "French": [
        "M. Le Pen et Mme. Dupont sont là. |Il pleut.",
        "« Viens ! » |Il partit.",
        "« Viens ! » dit-il. |Elle vint.",
        "Où est la gare ? |Là-bas !",
        "En 50 av. J.-C. la Gaule fut prise. |Toute ? |Non !",
        "Des pommes, p. ex. des rouges. |C'est tout.",
        "J. Le Clézio a écrit ce livre. |Je l'ai lu.",
    ],
    "Spanish": [
        "¿Dónde está? |¡Aquí!",
        "El Sr. García y la Sra. López viven en EE. UU. |No los conozco.",
        "Vive en la Avda. Mayor, núm. 5. |Está lejos.",
        "Vino el Dr. Ruiz. |—¿Quién? |—El médico.",
        "Nadamos en el mar. |Hacía calor.",
    ],
    "Italian, Dutch, Polish, Portuguese": [
        "Il sig. Rossi e il dott. Bianchi arrivano. |Che bello!",
        "Dhr. Jansen komt, d.w.z. morgen. |Goed.",
        "Mieszkam przy ul. Długiej 5, tzn. blisko. |To wszystko.",
        "O Sr. Silva chegou. |Não o vi.",
    ],
    "Russian": [
        "Он родился в 1999 г. в Москве. |Она тоже.",
        "«Стой!» |Он убежал.",
        "«Стой!» – крикнул он. |Было поздно.",
        "Это стоит 5 тыс. руб. за штуку. |Дорого, т. е. не для нас.",
        "А. С. Пушкин писал стихи. |Я их читал.",
    ],
    "Greek, Armenian, Georgian": [
        "Πού είναι; |Εδώ.",
        "Նա եկավ։ |Մենք գնացինք։",
        "Նա եկավ: |Մենք գնացինք:",
        "ის მოვიდა. |ჩვენ წავედით.",
    ],
    "Chinese": [
        "今天下雨。|我们不出去。",
        "你好吗？|我很好！|谢谢。",
        "价格是3.14元。|很贵！",
        "他说：“你好。”|她走了。",
        "“你去哪儿？”他问。|“回家。”",
        "他走了。|“你好，”她说。",
        '他走了。|"你好。"|她也走了。',
        "谁会想要听到演员开口说话呢？”。",
        "一方面……，另一方面……",
        "我……我不知道。|真的！",
        "你好吗?|我很好.|谢谢",
        "他来了（昨天！）然后走了。|好。",
        "１．洗米。|２．煮饭。",
        "使用展开语法时，... 出现在右边。|请访问www.example.com吧。",
        "真的？！|是的！！！",
        "甲。 |乙。",
    ],
    "Japanese, Korean": [
        "「行きますか？」|「はい。」|彼は言った。",
        "「行きますか？」と彼は言った。|私は黙った。",
        "円周率は３．１４です。|長い。",
        "雨だ。\u3000|出かけない。",
        "비가 온다. |우리는 집에 있다.",
    ],
    "Arabic, Urdu, Hebrew, Persian": [
        "هل تفهم؟ |نعم. |شكرا!",
        "یہ گھر ہے۔ |وہ بڑا ہے۔",
        "הוא בא. |אנחנו הלכנו.",
        "کجا می‌روی؟|به خانه.",
    ],
    "Hindi, Bengali": [
        "यह एक घर है। |वह बड़ा है।",
        "यह घर है।|वह बड़ा है॥",
        "এটা একটা বাড়ি। |ওটা বড়।",
    ],
    "Amharic, Burmese, Khmer, Tibetan": [
        "እሱ መጣ። |እኛ ሄድን።",
        "እሱ መጣ፡፡ |እኛ ሄድን፧ |አዎ።",
        "သူလာတယ်။ |ငါတို့သွားတယ်။",
        "គាត់មក។ |យើងទៅ។",
        "ផ្លែឈើ បន្លែ ។ល។ និងត្រី។ |ចប់។",
        "ཁོང་ཕེབས་སོང་། |ང་ཚོ་ཕྱིན་པ་ཡིན།",
    ],
}
CASES = [case for cases in TABLE.values() for case in cases]


@pytest.mark.parametrize("case", CASES)
def test_sentences_end_at_the_marks(case: str) -> None:
    assert split_sentences(case.replace("|", "")) == case.split("|")


def test_the_table_has_enough_cases() -> None:
    assert len(CASES) >= 80
    assert len(TABLE) >= 8


@pytest.mark.parametrize("text", ["", "   ", ".", "...", "。", "”", "a"])
def test_a_single_sentence_is_not_split(text: str) -> None:
    assert split_sentences(text) == ([text] if text else [])


ALPHABET = " \n\t.!?…。！」”“«»\"'()（）aAIé1你,;:．፡ა።M\u0301"


@given(st.text(alphabet=st.sampled_from(ALPHABET), max_size=60) | st.text(max_size=60))
def test_the_parts_are_the_text(text: str) -> None:
    assert "".join(split_sentences(text)) == text
    assert all(split_sentences(text))


@given(st.lists(st.sampled_from(CASES), min_size=1, max_size=4))
def test_lines_are_split_independently(cases: list[str]) -> None:
    alone = [part for case in cases for part in split_sentences(case.replace("|", "") + "\n")]
    assert split_sentences("".join(case.replace("|", "") + "\n" for case in cases)) == alone


@given(st.text(max_size=80), st.integers(1, 9))
def test_cut_pieces_fit_and_are_the_text(text: str, longest: int) -> None:
    pieces = cut(text, lambda piece: len(piece) <= longest)
    assert "".join(pieces) == text
    assert all(len(piece.strip()) <= longest for piece in pieces)


def test_cuts_at_clauses_then_at_spaces() -> None:
    fits = 20
    assert cut("one two, three four, five six", lambda p: len(p) <= fits)[0].endswith(", ")
    assert cut("one two three four five six", lambda p: len(p) <= fits)[0].endswith(" ")


@pytest.mark.parametrize(
    "unit", ["a", ".", " ", "a. ", "“", "。", ",", "\n", "a.b", "\u0301", ". A"]
)
def test_huge_lines_take_linear_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    start = time.process_time()
    assert "".join(split_sentences(text)) == text
    cut(text, lambda piece: len(piece) <= 512)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("parts", "gaps", "text"),
    [
        (["A.", "B."], [" "], "A. B."),
        (["A.", "B."], ["\n\n"], "A.\n\nB."),
        (["A.", "B."], [""], "A. B."),
        (["甲。", "乙。"], [" "], "甲。乙。"),
        (["甲。", "乙。"], [""], "甲。乙。"),
        (["甲。", "乙。"], ["\n"], "甲。\n乙。"),
        (["가.", "나."], [""], "가. 나."),
        (["A.", "", "B."], ["\n", "\n"], "A.\n\nB."),
        (["A."], [], "A."),
    ],
)
def test_gaps_follow_the_target(parts: list[str], gaps: list[str], text: str) -> None:
    assert join(parts, gaps) == text
