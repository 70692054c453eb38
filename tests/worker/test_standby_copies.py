"""Copies go to standbys before the load's holders, and a standby takes those of its owners alone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worker.loads import load

from farflung.errors import ProtocolError
from farflung.protocol.copies import AskBase, Copied
from farflung.runtime.state import StateKey
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import SliceHeader
from farflung.worker.computing.outcomes import StateCopied
from farflung.worker.storing.copy_format import Piece
from farflung.worker.storing.copy_store import CopyStore
from farflung.worker.storing.copying import Copying

HOLDERS = {"a": "b", "b": "c", "c": "a"}
PIECE = Piece(0, StateKey("weight"))


class Wire:
    """Slices go straight to the copying of the peer, which raises what it thinks of them."""

    def __init__(self, worker: str) -> None:
        self.worker, self.peers = worker, dict[str, Copying]()
        self.sent: list[SliceHeader] = []

    async def send_slice(self, peer: str, header: SliceHeader, buffer: memoryview) -> None:
        memory = self.peers[peer].arrivals.opening(self.worker, header)
        assert memory is not None
        memory[:] = buffer
        self.peers[peer].arrivals.complete(self.worker, header, memory)
        self.sent.append(header)

    def ask_base(self, peer: str, message: AskBase) -> None:
        self.peers[peer].asked(self.worker, message)


class Fleet:
    """Members a and b, and d, which stands by; `told` is what each says to the broker."""

    def __init__(self, folder: Path) -> None:
        self.told: dict[str, list[Copied]] = {name: [] for name in "abd"}
        self.said = asyncio.Event()
        self.wires = {name: Wire(name) for name in "abd"}
        self.copying = {name: self._copying(folder / name, name) for name in "abd"}
        for wire in self.wires.values():
            wire.peers = self.copying
        for name in "ab":
            self.copying[name].begin(msgspec.structs.replace(load(), holders=HOLDERS))
        self.copying["d"].begin(msgspec.structs.replace(load(), programs=[], addresses={}))
        for name, one in self.copying.items():
            for peer in set("abd") - {name}:
                one.linked(peer)

    def _copying(self, folder: Path, name: str) -> Copying:
        wire: Any = self.wires[name]

        def say(message: Any) -> None:
            self.told[name].append(message)
            self.said.set()

        folder.mkdir()
        return Copying(name, CopyStore(folder, 10**6), wire, say, Timeouts)

    async def copy(self, unit: int, base: dict[Piece, memoryview] | None = None) -> None:
        """Worker a copies its share after a unit, and the copy arrives."""
        if base is None and self.copying["a"].lacks_base:
            base = {}
        copied = StateCopied(("job-1", 5), unit, {PIECE: memoryview(bytes(12))}, False, True, base)
        self.copying["a"].made(copied)
        await self.hears("bd", unit)

    async def hears(self, names: str, unit: int) -> None:
        """Wait until one of these workers has said something of the copy of a unit."""
        async with asyncio.timeout(10):
            while not any(said.unit == unit for name in names for said in self.told[name]):
                self.said.clear()
                await self.said.wait()

    def stands_by(self, standbys: dict[str, str], *those: str) -> None:
        for name in those:
            self.copying[name].change_standbys(standbys)

    def having(self, unit: int) -> list[str]:
        """The workers that have said that they have a copy of a unit."""
        return [
            name for name, all in self.told.items() for one in all if one.unit == unit and not one.trouble
        ]

    async def close(self) -> None:
        for one in self.copying.values():
            await one.close()


def test_a_copy_goes_to_the_standby_and_to_the_holder_again_once_that_is_gone(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        await fleet.copy(0)
        fleet.stands_by({"a": "d"}, "a", "d")
        await fleet.copy(1)
        fleet.stands_by({}, "a")
        await fleet.copy(2)
        assert [fleet.having(unit) for unit in range(3)] == [["a", "b"], ["a", "d"], ["a", "b"]]
        (held,) = await fleet.copying["d"].held()
        assert (held.version.unit, held.share) == (1, 0)
        await fleet.close()

    asyncio.run(scene())


def test_a_standby_takes_a_copy_that_left_before_it_was_let_go(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        fleet.stands_by({"a": "d"}, "a", "d")
        fleet.stands_by({"b": "d"}, "d")  # a has not heard of it yet
        await fleet.copy(0)
        assert fleet.having(0) == ["a", "d"]
        await fleet.close()

    asyncio.run(scene())


def test_a_standby_refuses_the_copies_of_others(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        fleet.stands_by({"b": "d"}, "d")
        header = SliceHeader("job-1", 5, 0, "", 0, 12, 12, bytes(32), "copy", 0)
        with pytest.raises(ProtocolError, match="which the plan does not expect"):
            fleet.copying["d"].arrivals.opening("a", header)
        await fleet.close()

    asyncio.run(scene())


def test_a_standby_whose_attempt_ended_takes_nothing_more_of_it(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        fleet.stands_by({"a": "d"}, "d")
        fleet.copying["d"].end()
        header = SliceHeader("job-1", 5, 0, "", 0, 12, 12, bytes(32), "copy", 0)
        assert fleet.copying["d"].arrivals.opening("a", header) is None
        await fleet.close()

    asyncio.run(scene())


def test_a_copy_takes_memory_until_it_is_on_disk_even_if_its_attempt_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        a, begun, released = fleet.copying["a"], threading.Event(), threading.Event()
        store = a._files.disk()
        write = store.write

        def write_slowly(*arguments: Any) -> Any:
            begun.set()
            released.wait(10)
            return write(*arguments)

        store.write = write_slowly  # type: ignore[method-assign]
        await asyncio.to_thread(a.wait_until_written)  # there is none yet
        a.made(StateCopied(("job-1", 5), 0, {PIECE: memoryview(bytes(12))}, False, True, {}))
        assert await asyncio.to_thread(begun.wait, 10)
        a.end()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not a._tasks and not a._written.is_set()
        released.set()
        await asyncio.to_thread(a.wait_until_written)
        a.begin(msgspec.structs.replace(load(), holders=HOLDERS))
        a.linked("b")
        await fleet.copy(1)
        assert fleet.having(1) == ["a", "b"] and a._written.is_set()
        await fleet.close()

    asyncio.run(scene())
