"""What a worker asks for of the base weights that were listed to it."""

from __future__ import annotations

import asyncio

import pytest

from farflung.client.output.records import NO_BASE, BaseBytes
from farflung.client.run.base_transfer import BaseRequests, base_list
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol.sessions import BaseLacking

LISTED = base_list("j", 1, {1: ["b"], 0: ["a", "c"]}, {name: name.encode() * 32 for name in "abc"}, {}, [])
SIZES = {"a": 1, "b": 10, "c": 100}


def requests() -> BaseRequests:
    return BaseRequests("w", LISTED, SIZES)


def test_pieces_are_listed_by_segment() -> None:
    assert [(piece.segment, piece.name, piece.sha256[:1]) for piece in LISTED.pieces] == [
        (0, "a", b"a"),
        (0, "c", b"c"),
        (1, "b", b"b"),
    ]


def test_what_is_not_asked_for_was_there() -> None:
    async def scenario() -> None:
        asked = requests()
        asked.answered(BaseLacking("j", 1, [(1, "b")], last=False))
        asked.answered(BaseLacking("j", 1, [(0, "a")]))
        assert [(await asked.next()).pieces for _ in range(2)] == [[(1, "b")], [(0, "a")]]
        assert asked.bytes == BaseBytes(cached=100, sent=11)
        assert NO_BASE + asked.bytes + asked.bytes == BaseBytes(200, 22, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("pieces", [[(1, "a")], [(0, "d")], [(0, "a"), (0, "a")]])
def test_what_was_not_listed_or_is_asked_for_twice_is_refused(pieces: list[tuple[int, str]]) -> None:
    with pytest.raises(ProtocolError, match="worker w asks for base weights"):
        requests().answered(BaseLacking("j", 1, pieces))


def test_after_the_last_answer_and_of_what_was_sent_nothing_is_asked_for() -> None:
    asked = requests()
    asked.answered(BaseLacking("j", 1, [(0, "a")], last=False))
    with pytest.raises(ProtocolError, match="not listed"):
        asked.answered(BaseLacking("j", 1, [(0, "a")], last=False))
    asked.answered(BaseLacking("j", 1, []))
    with pytest.raises(ProtocolError, match="not listed"):
        asked.answered(BaseLacking("j", 1, [(1, "b")]))


def test_an_answer_of_another_attempt_is_passed_over_and_a_lost_worker_gives_none() -> None:
    async def scenario() -> None:
        asked = requests()
        asked.answered(BaseLacking("j", 2, [(9, "x")]))
        asked.lost()
        with pytest.raises(ConnectionFailed, match="worker w was lost"):
            await asked.next()

    asyncio.run(scenario())
