"""The progress of a request: pieces finish in any order, and results are joined in order."""

import asyncio

import pytest

from outrider.decoding import Hypothesis, Request, Update
from outrider.runtime import Result
from outrider.runtime.result import Work
from outrider.serving.request import LateError, RequestHandle


def join(pieces: list[list[Hypothesis]]) -> list[Result]:
    return [Result(" ".join(str(token) for best, *_ in pieces for token in best.tokens))]


def finished(piece: int, *tokens: int) -> tuple[int, Update]:
    return piece, Update(piece, tokens, [Hypothesis(tokens, "eos")])


def two_texts(**options: object) -> RequestHandle:
    works = [Work([Request(needs=(1, 10))] * pieces, join) for pieces in (2, 1)]
    return RequestHandle(works, **options)


def test_the_beginning_of_a_text_grows_in_order() -> None:
    async def story() -> None:
        handle = two_texts()
        assert handle.places == [(0, 0), (0, 1), (1, 0)]
        for event in (finished(1, 3, 4), (0, Update(0, (1,), None)), finished(0, 1, 2)):
            handle.receive(event)
        await handle.next()
        assert (handle.left, handle.beginning(0)) == (2, (0, [Result("")]))
        await handle.next()
        assert handle.left == 2, "new tokens are not a result"
        await handle.next()
        assert (handle.left, handle.written) == (1, 4)
        assert handle.beginning(0) == (2, [Result("1 2 3 4")])
        handle.receive(finished(2, 5))
        await handle.next()
        assert handle.results() == [[Result("1 2 3 4")], [Result("5")]]

    asyncio.run(story())


def test_finished_pieces_are_reported_on_receipt() -> None:
    async def story() -> None:
        pieces: list[int] = []
        handle = two_texts(on_piece=lambda handle, piece: pieces.append(piece))
        for event in (finished(2, 5), (0, Update(0, (1,), None)), finished(0, 1)):
            handle.receive(event)
        assert pieces == [2, 0]

    asyncio.run(story())


def test_errors_are_raised() -> None:
    async def story() -> None:
        handle = two_texts()
        handle.receive(ValueError("a bug"))
        with pytest.raises(ValueError, match="a bug"):
            await handle.next()
        late = two_texts(seconds=2, expires=asyncio.get_running_loop().time())
        with pytest.raises(LateError, match="did not finish within 2 seconds") as refused:
            await late.next()
        assert refused.value.retry_after == 2

    asyncio.run(story())
