"""A base is sent to each holder once; who has it asks for nothing, and a copy counts only with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worker.loads import load
from tests.worker.test_recut import receiver, recut_load
from tests.worker.test_standby_copies import PIECE, Fleet, Wire

from farflung.errors import ProtocolError
from farflung.protocol.copies import AskBase, CopyLost, HeldCopy, Retain, StateVersion
from farflung.protocol.messages import Load, Message
from farflung.runtime.state import StateKey
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import SliceHeader
from farflung.worker.computing.outcomes import StateCopied
from farflung.worker.storing.copy_format import Piece
from farflung.worker.storing.copy_store import CopyStore
from farflung.worker.storing.copying import Copying

FIXED = {Piece(0, StateKey("embedding")): memoryview(bytes(5000))}


def play(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)


def bases_sent(fleet: Fleet) -> list[int]:
    """The unit with whose version each base went out of worker a."""
    return [
        header.unit for header in fleet.wires["a"].sent if header.slot == "base" and header.unit is not None
    ]


def test_a_holder_gets_the_base_with_its_first_version_only(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        await fleet.copy(0, FIXED)
        await fleet.copy(1)
        fleet.stands_by({"a": "d"}, "a", "d")
        await fleet.copy(2)
        await fleet.copy(3)
        fleet.stands_by({}, "a")
        await fleet.copy(4)
        assert bases_sent(fleet) == [0, 2]
        for name, units in (("a", range(5)), ("b", (0, 1, 4)), ("d", (2, 3))):
            held = await fleet.copying[name].held()
            assert [copy.version.unit for copy in held] == list(units)
            (base,) = {(copy.base, copy.base_bytes) for copy in held}
            assert base[1] > 5000 > max(copy.bytes for copy in held)
        told = [said for said in fleet.told["d"] if not said.trouble]
        assert {(said.base, said.base_bytes) for said in told} == {base}
        await fleet.close()

    play(scene())


def test_a_version_that_fails_does_not_cost_the_base_again(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        await fleet.copy(0, FIXED)
        for name in "ab":
            fleet.copying[name].retain(
                Retain("job-1", [], StateVersion(5, 0))
            )  # another member's copy failed
        await fleet.copy(1)
        assert bases_sent(fleet) == [0] and [
            copy.version.unit for copy in await fleet.copying["b"].held()
        ] == [1]
        for name in "ab":
            fleet.copying[name].end()
            fleet.copying[name].retain(Retain("job-1", []))  # the job is over
            assert await fleet.copying[name].held() == []
            assert not (tmp_path / name / "copies" / "job-1").exists()
        await fleet.close()

    play(scene())


def test_a_holder_whose_base_was_damaged_asks_for_it_again(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        await fleet.copy(0, FIXED)
        (base,) = (tmp_path / "b" / "copies" / "job-1").glob("base-*")
        base.write_bytes(bytes(len(base.read_bytes())))
        fleet.copying["b"]._files.store = CopyStore(tmp_path / "b", 10**6)  # as after a restart
        await fleet.copy(1)
        assert bases_sent(fleet) == [0, 1]
        await fleet.close()

    play(scene())


def test_an_owner_whose_own_base_is_gone_makes_no_copy_without_it_and_then_one_with_it(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        await fleet.copy(0, FIXED)
        (base,) = (tmp_path / "a" / "copies" / "job-1").glob("base-*")
        base.unlink()
        a = fleet.copying["a"]
        a.made(StateCopied(("job-1", 5), 1, {PIECE: memoryview(bytes(12))}, False, True))
        await fleet.hears("a", 1)
        (said,) = [said for said in fleet.told["a"] if said.unit == 1]
        assert "no longer on the disk" in said.trouble and a.lacks_base
        await fleet.copy(2, FIXED)
        assert fleet.having(2) == ["a", "b"] and not a.lacks_base
        a.forget_base()  # another share is loaded
        a.made(StateCopied(("job-1", 5), 3, {PIECE: memoryview(bytes(12))}, False, True))
        await fleet.hears("a", 3)
        assert fleet.having(3) == []
        await fleet.close()

    play(scene())


def test_a_base_goes_on_though_its_version_has_failed_and_the_next_one_waits_for_it(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        wire, asked = fleet.wires["b"], asyncio.Event()
        asks: list[AskBase] = []

        def ask(peer: str, message: AskBase) -> None:
            asks.append(message)
            asked.set()

        wire.ask_base = ask  # type: ignore[method-assign]
        a, b = fleet.copying["a"], fleet.copying["b"]
        a.made(StateCopied(("job-1", 5), 0, {PIECE: memoryview(bytes(12))}, False, True, FIXED))
        await asyncio.wait_for(asked.wait(), 10)
        for one in (a, b):  # another member's copy failed, while the base is on its way
            one.retain(Retain("job-1", [], StateVersion(5, 0)))
        a.made(StateCopied(("job-1", 5), 1, {PIECE: memoryview(bytes(12))}, False, True))
        coming = b.arrivals._arriving
        while len(coming) < 2 or any(one.lacks is None for one in coming.values()):
            await asyncio.to_thread(lambda: None)
        assert len(asks) == 1 and fleet.having(1) == ["a"]
        a.asked("b", asks[0])  # comes to a only now, when the file of that version is deleted
        await fleet.hears("b", 1)
        assert fleet.having(1) == ["a", "b"] and fleet.having(0) == ["a"]
        assert bases_sent(fleet) == [0]
        await fleet.close()

    play(scene())


def header(slot: str, sha256: bytes, total: int = 12) -> SliceHeader:
    return SliceHeader("job-1", 5, 0, "", 0, total, total, sha256, slot, 0)


def test_a_base_that_was_not_asked_for_takes_no_memory(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        b, asked = fleet.copying["b"], asyncio.Event()
        assert b.arrivals.opening("a", header("base", bytes(32))) is None  # of no copy that is on its way
        fleet.wires["b"].ask_base = lambda peer, message: asked.set()  # type: ignore[method-assign]
        fleet.copying["a"].made(
            StateCopied(("job-1", 5), 0, {PIECE: memoryview(bytes(12))}, False, True, FIXED)
        )
        await asyncio.wait_for(asked.wait(), 10)
        ((share, sha256), asked_for) = *b.arrivals._bases, *b.arrivals._bases.values()
        assert b.arrivals.opening("a", header("base", bytes(32), 10**15)) is None
        with pytest.raises(ProtocolError, match="does not fit"):
            b.arrivals.opening("a", header("base", sha256, asked_for.total - 1))
        assert share == 0 and not asked_for.taken
        assert fleet.having(0) == ["a"] and await b.held() == []
        b.lost("a")
        (said,) = fleet.told["b"]
        assert said.trouble == "the link was lost"
        await fleet.close()

    play(scene())


def test_a_base_is_sent_to_no_one_who_did_not_get_the_copy_nor_twice(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        await fleet.copy(0, FIXED)
        a = fleet.copying["a"]
        for peer in ("b", "d"):
            a.asked(peer, AskBase("job-1", 5, StateVersion(5, 0), 0))
            a.asked(peer, AskBase("job-1", 5, StateVersion(5, 9), 0))
            a.asked(peer, AskBase("job-1", 4, StateVersion(5, 0), 0))
        assert not [task for task in a._tasks if not task.done()] and bases_sent(fleet) == [0]
        await fleet.close()

    play(scene())


def test_a_base_can_be_asked_for_after_the_next_version_and_not_after_any_number(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        for unit in range(5):
            await fleet.copy(unit, FIXED)
        assert sorted(version.unit for _, version, _ in fleet.copying["a"]._sent) == [3, 4]
        await fleet.close()

    play(scene())


def pieces(*names: str) -> dict[Piece, memoryview]:
    sizes = {"weight": 12, "bias": 4}
    return {Piece(1, StateKey(name)): memoryview(b"x" * sizes[name]) for name in names}


class Gift:
    """Worker a has share 1 of the version with its base; b is to restore from it, and lacks both."""

    def __init__(self, folder: Path) -> None:
        self.load: Load = msgspec.structs.replace(
            recut_load(), sources={"b": {1: "a"}}, donors={}, holders={}
        )
        assert self.load.version is not None
        self.said: list[Any] = []
        self.lost = asyncio.Event()
        self.stores = {}
        for name in "ab":
            (folder / name).mkdir()
            self.stores[name] = CopyStore(folder / name, 10**6)
        base = self.stores["a"].write_base("job-1", 1, pieces("bias"))
        self.held = self.stores["a"].write("job-1", self.load.version, 1, pieces("weight"), base)
        self.wires = {name: Wire(name) for name in "ab"}
        wires: Any = self.wires
        self.copying = {
            name: Copying(name, self.stores[name], wires[name], self._say, Timeouts) for name in "ab"
        }
        for wire in self.wires.values():
            wire.peers = self.copying

    def _say(self, message: Message) -> None:
        self.said.append(message)
        self.lost.set()

    async def restore(self) -> bool:
        self.into = receiver()
        for name, peer in ("ab", "ba"):
            self.copying[name].begin(self.load)
            self.copying[name].linked(peer)
        task = asyncio.create_task(self.copying["b"].restore(self.load, self.into))
        lost = asyncio.create_task(self.lost.wait())
        done, _ = await asyncio.wait([task, lost], timeout=10, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        task.cancel()
        return task in done and task.result()

    async def close(self) -> None:
        for one in self.copying.values():
            await one.close()


def test_a_worker_that_takes_over_gets_the_base_too_unless_it_has_it(tmp_path: Path) -> None:
    async def scene() -> None:
        gift = Gift(tmp_path)
        assert await gift.restore() and gift.into.lacking == ""
        assert [header.slot for header in gift.wires["a"].sent] == ["copy", "base"]
        assert gift.stores["b"].held() == [gift.held]
        gift.stores["b"].delete(gift.held)
        assert await gift.restore()
        assert [header.slot for header in gift.wires["a"].sent] == ["copy", "base", "copy"]
        await gift.close()

    play(scene())


def test_a_donor_whose_base_is_damaged_says_that_its_copy_is_lost(tmp_path: Path) -> None:
    async def scene() -> None:
        gift = Gift(tmp_path)
        (path,) = (tmp_path / "a").rglob("base-*")
        path.write_bytes(bytes(len(path.read_bytes())))
        assert not await gift.restore()
        (lost,) = gift.said
        assert isinstance(lost, CopyLost) and lost.share == 1 and "damaged" in lost.reason
        assert not gift.wires["a"].sent
        await gift.close()

    play(scene())


def test_a_version_of_which_the_base_cannot_be_kept_is_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = Fleet(tmp_path)
        fleet.copying["b"]._files.store = CopyStore(tmp_path / "b", 1000)  # no room for its base
        a = fleet.copying["a"]
        a.made(StateCopied(("job-1", 5), 0, {PIECE: memoryview(bytes(12))}, False, True, FIXED))
        await fleet.hears("b", 0)
        (said,) = fleet.told["b"]
        assert "raise `farflung join --disk`" in said.trouble and await fleet.copying["b"].held() == []
        await fleet.close()

    play(scene())


def test_the_struct_of_a_copy_without_a_base_reads_as_before() -> None:
    old = {"job": "j", "version": {"attempt": 1, "unit": 2}, "share": 0, "sha256": b"\1" * 32, "bytes": 5}
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=HeldCopy)
    assert (found.base, found.base_bytes) == (b"", 0)
    assert load().holders == {}
