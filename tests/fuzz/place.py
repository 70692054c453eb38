"""Where an endpoint is attacked: the victim's process, its certificates, and a healthy peer all the while."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
from tests.fuzz.victim import HEALTHY, MOST_BYTES, Holding
from tests.support.certificates import TestAuthority

from farflung.transport.endpoint import Hello, Link, Peer, dial
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader, SliceHeader

REPOSITORY = Path(__file__).parents[2]
WAIT_SECONDS = 60.0


class Place:
    """A victim that is up. `address` is where it listens."""

    def __init__(self, folder: Path, authority: TestAuthority) -> None:
        self.authority = authority
        self.address = ""
        self._folder = folder
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start the victim."""
        with (self._folder / "victim.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.fuzz.victim", *map(str, self.authority.files("b", "worker")),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, cwd=REPOSITORY,
            )  # fmt: skip
        self.address = (await self._said()).address

    async def holding(self) -> Holding:
        """What the victim holds now; AssertionError if it is dead."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return await self._said()

    async def stop(self) -> int:
        """End the victim; gives back its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(WAIT_SECONDS):
            return await self._process.wait()

    @property
    def log(self) -> str:
        """What the victim has logged."""
        return (self._folder / "victim.log").read_text(errors="replace")

    async def _said(self) -> Holding:
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            line = await self._process.stdout.readline()
        assert line, f"the victim has died:\n{self.log[-4000:]}"
        return msgspec.json.decode(line, type=Holding)


class Healthy:
    """A well-behaved peer: sends messages, and checks that they come back as they were."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.slowest_seconds = 0.0
        self.reason: str | None = None
        self._expected: dict[str, bytes] = {}
        self._back = asyncio.Event()

    async def exchange(self, link: Link, random: Random) -> None:
        """One message there and back."""
        payload = random.randbytes(random.choice([1, 1000, 20_000, MOST_BYTES]))
        header = SliceHeader(
            "job", 1, 0, str(self.exchanges), 0, len(payload), len(payload), hashlib.sha256(payload).digest()
        )
        self._expected[header.name] = payload
        self._back.clear()
        began = time.monotonic()
        link.post(header, memoryview(payload))
        async with asyncio.timeout(WAIT_SECONDS):
            await self._back.wait()
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)

    def control(self, link: Link, message: bytes) -> None:
        raise AssertionError("the victim says nothing to its healthy peer")

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        return memoryview(bytearray(header.bytes))

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        assert isinstance(header, SliceHeader)
        if self._expected.pop(header.name) == buffer:
            self.exchanges += 1
            self._back.set()

    def closed(self, link: Link, reason: str) -> None:
        self.reason = reason


@asynccontextmanager
async def healthy_peer(place: Place) -> AsyncIterator[Healthy]:
    """A peer that exchanges verified messages with the victim as long as the context is open."""
    heard, hello = Healthy(), Hello(HEALTHY, "worker", "data")
    context = place.authority.holder(HEALTHY, "worker").client
    link = await dial(place.address, context, hello, Peer("b", "worker"), heard, Timeouts())

    async def work() -> None:
        random = Random(0)
        while True:
            await heard.exchange(link, random)
            await asyncio.sleep(0.02)

    working = asyncio.create_task(work())
    try:
        yield heard
        assert not working.done() and heard.reason is None, f"the healthy link was harmed: {heard.reason}"
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await link.close("done")


@asynccontextmanager
async def attacked_place(folder: Path) -> AsyncIterator[Place]:
    """A victim in its own process; at the end it must still live, and end as it should."""
    place = Place(folder, TestAuthority(folder))
    await place.start()
    try:
        yield place
    finally:
        status = await place.stop()
    assert status == 0, place.log[-4000:]
    assert "Traceback" not in place.log, place.log[-4000:]
