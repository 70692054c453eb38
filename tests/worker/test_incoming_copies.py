"""Copies that come in faster than the disk takes them, or on a full disk, are given up, and that is said."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.worker.loads import load

from farflung.protocol.copies import Copied
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import SliceHeader
from farflung.worker.storing import arrivals
from farflung.worker.storing.copy_store import SHARE_OF_DISK, CopyStore
from farflung.worker.storing.copying import Copying

SLICE, COUNT = 100, 10


def header(number: int) -> SliceHeader:
    """A slice of the copy that worker a sends to b."""
    return SliceHeader("job-1", 5, 0, "", number * SLICE, SLICE, COUNT * SLICE, bytes(32), "copy", 2)


def receiving(folder: Path, limit: int, told: list[Any]) -> Copying:
    """Worker b, which holds the copies of a."""
    found = Copying("b", CopyStore(folder, limit), object(), told.append, Timeouts)  # type: ignore[arg-type]
    found.begin(msgspec.structs.replace(load(), holders={"a": "b", "b": "c"}))
    return found


def test_a_copy_that_comes_faster_than_the_disk_takes_it_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MOST_UNWRITTEN_BYTES", 3 * SLICE)
    told: list[Any] = []

    async def scene() -> None:
        one, released = receiving(tmp_path, 10**6, told), threading.Event()
        one._files.submit(released.wait)  # a slow disk
        taken = [one.arrivals.opening("a", header(number)) for number in range(COUNT)]
        assert [slice is not None for slice in taken] == [True] * 3 + [False] * 7
        released.set()
        await one.close()

    asyncio.run(scene())
    (said,) = told
    assert isinstance(said, Copied) and "slower than the line" in said.trouble


def test_memory_is_free_again_once_a_slice_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MOST_UNWRITTEN_BYTES", 3 * SLICE)
    told: list[Any] = []

    async def scene() -> None:
        one = receiving(tmp_path, 10**6, told)
        for number in range(COUNT - 1):
            memory = one.arrivals.opening("a", header(number))
            assert memory is not None
            one.arrivals.complete("a", header(number), memory)
            await one._files.run(lambda: None)
        await one.close()

    asyncio.run(scene())
    assert not told


def test_a_full_disk_is_reported_before_the_last_slice(tmp_path: Path) -> None:
    told: list[Any] = []

    async def scene() -> None:
        one, released = receiving(tmp_path, SLICE, told), threading.Event()
        one._files.submit(released.wait)
        memory = one.arrivals.opening("a", header(0))
        assert memory is not None
        released.set()
        await one._files.run(lambda: None)  # no room for it: that is known only now
        one.arrivals.complete("a", header(0), memory)
        later = [one.arrivals.opening("a", header(number)) for number in range(1, COUNT)]
        assert later == [None] * (COUNT - 1)
        await one.close()

    asyncio.run(scene())
    (said,) = told
    assert isinstance(said, Copied) and said.trouble


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        (b'{"__metadata__":{"base":' + b"[" * 50_000 + b"]" * 50_000 + b"}}", "its header is damaged"),
        (b'{"3/x/":{"data_offsets":[0,1e999]}}', ""),  # what a holder does not look at is the owner's loss
    ],
    ids=["deep", "huge"],
)
def test_the_broker_hears_of_a_copy_whose_header_no_worker_writes(
    tmp_path: Path, text: bytes, trouble: str
) -> None:
    data = len(text).to_bytes(8, "little") + text
    sent = SliceHeader("job-1", 5, 0, "", 0, len(data), len(data), hashlib.sha256(data).digest(), "copy", 2)
    told: list[Any] = []

    async def scene() -> None:
        one = receiving(tmp_path, 10**6, told)
        memory = one.arrivals.opening("a", sent)
        assert memory is not None
        memory[:] = data
        one.arrivals.complete("a", sent, memory)
        await asyncio.gather(*one._tasks, return_exceptions=True)
        await one.close()

    asyncio.run(scene())
    (said,) = told
    assert isinstance(said, Copied) and said.trouble == trouble


def test_what_copies_may_take_is_measured_on_the_thread_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk of a network may not answer for minutes, and the worker's heartbeats must not wait for that."""
    asked: list[str] = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(threading.current_thread().name)
        return SimpleNamespace(free=10**6)

    monkeypatch.setattr(shutil, "disk_usage", usage)

    async def scene() -> None:
        one = Copying("b", CopyStore(tmp_path, None), object(), lambda message: None, Timeouts)  # type: ignore[arg-type]
        assert await one.measure_disk() == 10**6 // SHARE_OF_DISK
        assert await Copying("b", None, object(), lambda message: None, Timeouts).measure_disk() == 0  # type: ignore[arg-type]
        await one.close()

    asyncio.run(scene())
    assert asked and all(name.startswith("farflung-copies") for name in asked)
