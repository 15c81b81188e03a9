"""The duplicate filter: exact while it has space, and of fixed size."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.data.cleaning import SeenBefore


@given(st.lists(st.lists(st.text("abc", max_size=2))))
def test_it_equals_a_set_while_it_has_space(chunks: list[list[str]]) -> None:
    seen_before, known = SeenBefore(1), set()
    for chunk in chunks:
        expected = []
        for text in chunk:
            expected.append(text in known)
            known.add(text)
        assert seen_before(chunk).tolist() == expected


def test_it_forgets_the_oldest_when_full() -> None:
    seen_before = SeenBefore(1)
    room = (1 << 20) // 8
    texts = [str(n) for n in range(4 * room)]
    for start in range(0, len(texts), 4096):
        assert not seen_before(texts[start : start + 4096]).any()
    assert seen_before(texts[-room // 4 :]).mean() > 0.99
    assert seen_before(texts[: room // 4]).mean() < 0.05


def test_half_full_it_finds_nearly_all_duplicates() -> None:
    seen_before = SeenBefore(1)
    texts = [str(n) for n in range(50_000)]
    for start in range(0, len(texts), 4096):
        assert not seen_before(texts[start : start + 4096]).any()
    assert seen_before(texts).mean() > 0.99
