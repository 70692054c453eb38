"""Connections that come to nothing make later ones of their address wait, and keep out no other address."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.certificates import TestAuthority
from tests.support.links import Recorder, run, usual_but

from farflung.transport import unknown_peers
from farflung.transport.deferral import Budgets, Deferred
from farflung.transport.endpoint import Hello, Peer, dial, listen
from farflung.transport.net.addresses import parse_address

HOME, OTHER = "192.0.2.7", "192.0.2.8"


def begins(budgets: Budgets, host: str, now: float, tries: int = 1000) -> int:
    """How many of `tries` connections may begin now."""
    begun = 0
    for _ in range(tries):
        if not budgets.is_spent(host, now):
            budgets.spend(host, now)
            begun += 1
    return begun


def test_failures_use_a_budget_up_and_time_gives_it_back() -> None:
    budgets = Budgets(free=10, per_second=5)
    assert begins(budgets, HOME, 0.0) == 10
    assert begins(budgets, OTHER, 0.0) == 10, "each address has its own"
    assert [begins(budgets, HOME, now) for now in (0.1, 0.2, 1.2, 100.0)] == [0, 1, 5, 10]


def test_connections_of_use_cost_nothing() -> None:
    budgets = Budgets(free=3, per_second=0.001)
    for _ in range(50):
        assert begins(budgets, HOME, 0.0, tries=2) == 2
        budgets.restore(HOME, 0.0)
        budgets.restore(HOME, 0.0)
    budgets.restore(HOME, 0.0)
    assert begins(budgets, HOME, 0.0) == 3, "and earn nothing"


def test_this_machine_has_no_limit() -> None:
    assert begins(Budgets(free=3), "127.0.0.1", 0.0) == 1000


def test_a_home_of_ipv6_has_one_budget() -> None:
    budgets = Budgets(free=3, per_second=0.001)
    assert begins(budgets, "2001:db8:1:2::1", 0.0, tries=2) == 2
    assert begins(budgets, "2001:db8:1:2::2", 0.0) == 1


def test_sources_that_are_quiet_again_are_forgotten() -> None:
    budgets = Budgets(free=3, per_second=1)
    for number in range(5000):
        budgets.spend(f"10.0.{number // 250}.{number % 250}", number / 100)
    assert len(budgets) <= 1024


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 0.5)), max_size=150))
def test_a_source_never_begins_more_than_it_has(steps: list[tuple[int, bool, float]]) -> None:
    budgets, now = Budgets(free=5, per_second=2), 0.0
    begun = [0.0] * 4
    for source, was_of_use, passed in steps:
        now += passed
        host = f"192.0.2.{source}"
        if begins(budgets, host, now, tries=1):
            begun[source] += 1
            if was_of_use:
                budgets.restore(host, now)
                begun[source] -= 1
        assert begun[source] <= 5 + 2 * now + 1e-6


def test_those_that_wait_are_let_through_as_their_address_may() -> None:
    budgets, waiting = Budgets(free=2, per_second=10), Deferred[int](draw=random.Random(1))
    begins(budgets, HOME, 0.0)
    for number in range(6):
        assert waiting.add(number, HOME) is None
    waiting.add(9, OTHER)

    def through(now: float) -> list[int]:
        taken = []
        for number, host in waiting.due(budgets, now):
            budgets.spend(host, now)
            taken.append(number)
        return taken

    assert through(0.0) == [9]
    first, second = through(0.15), through(0.35)
    assert [len(first), len(second), len(waiting)] == [1, 2, 3]
    assert sorted([*first, *second, *waiting.drain()]) == list(range(6))
    assert len(waiting) == 0


def test_none_goes_before_those_that_wait() -> None:
    waiting = Deferred[int]()
    waiting.add(1, HOME)
    assert waiting.holds(HOME) and not waiting.holds(OTHER)
    assert list(waiting.due(Budgets(), 0.0)) == [(1, HOME)] and not waiting.holds(HOME)


def test_the_address_with_most_makes_room() -> None:
    waiting = Deferred[int](most=3, draw=random.Random(1))
    assert [waiting.add(number, HOME) for number in range(3)] == [None] * 3
    assert waiting.add(3, OTHER) in (0, 1, 2)
    assert len(waiting) == 3


def test_a_flood_from_a_home_leaves_others_of_it_a_way_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fast as they are dropped, the flood's connections come again; an honest one waits its turn."""
    drawn: list[object] = []

    due = Deferred.due

    def noted(self: Deferred[object], budgets: Budgets, now: float) -> Iterator[tuple[object, str]]:
        for one in due(self, budgets, now):
            drawn.append(one)
            yield one

    monkeypatch.setattr(unknown_peers, "peer_host", lambda raw: HOME)
    monkeypatch.setattr(Deferred, "due", noted)
    monkeypatch.setattr(unknown_peers, "Budgets", lambda: Budgets(free=20, per_second=50))

    async def flood(address: str) -> None:
        while True:
            reader, writer = await asyncio.open_connection(*parse_address(address))
            try:
                writer.write(b"no TLS at all")
                await reader.read()
            except OSError:
                pass
            finally:
                writer.transport.abort()

    async def test() -> int:
        authority = TestAuthority(tmp_path)
        server, client = authority.holder("b", "worker"), authority.holder("a", "worker")
        patient = usual_but(dial_seconds=100.0, first_byte_seconds=100.0)
        listener = await listen(
            "127.0.0.1:0", server.server, Hello("b", "worker", "data"), Recorder().admit, patient
        )
        floods = [asyncio.create_task(flood(listener.address)) for _ in range(40)]
        await asyncio.sleep(0.5)
        own = Hello("a", "worker", "data")
        links = [
            await dial(listener.address, client.client, own, Peer("b", "worker"), Recorder(), patient)
            for _ in range(3)
        ]
        for one in floods:
            one.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        for link in links:
            await link.close("seen")
        await listener.close()
        return len(links)

    assert run(test()) == 3
    assert drawn, "some waited for the lot"


def test_connections_that_wait_are_closed_with_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_peers, "peer_host", lambda raw: HOME)
    monkeypatch.setattr(unknown_peers, "Budgets", lambda: Budgets(free=1, per_second=0.001))

    async def test() -> bytes:
        server = TestAuthority(tmp_path).holder("b", "worker")
        own = Hello("b", "worker", "data")
        listener = await listen("127.0.0.1:0", server.server, own, Recorder().admit, usual_but())
        with (
            socket.create_connection(parse_address(listener.address)) as first,
            socket.create_connection(parse_address(listener.address)) as second,
        ):
            first.sendall(b"x")
            await asyncio.sleep(0.1)
            await listener.close()
            second.settimeout(30)
            return await asyncio.to_thread(second.recv, 1)

    assert run(test()) == b""
