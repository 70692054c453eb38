"""State beside values on one home line, in virtual time: it finds the line's rate, and values hardly wait."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.transport.link import sender as sender_module
from farflung.transport.link.governor import STATE_SHARE, Governor
from farflung.transport.link.outbox import Batch
from farflung.transport.link.sender import Sender
from farflung.transport.timeouts import CHUNK_SECONDS, CREDIT_SECONDS
from farflung.transport.wire.headers import SliceHeader, ValueHeader

LINE = 1e6  # bytes per second: 8 Mbit/s
LATENCY = 0.05
SLICE = 2**20


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while something runs, and jumps to the next timer otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        loop: Any = self
        if not loop._ready and loop._scheduled:
            self.now = max(self.now, loop._scheduled[0]._when)
        loop.__class__.__base__._run_once(self)


class Line:
    """A home's line, which carries the bytes of all its connections one after another."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop, self.free_at = loop, 0.0


class Connection:
    """One connection over a line; the receiver confirms what has arrived as late as it may."""

    def __init__(self, line: Line) -> None:
        self._line, self._unsent_seconds, self._gone_at = line, 0.0, 0.0
        self.sender: Sender

    @property
    def is_writing(self) -> bool:
        return self._gone_at - self._line.loop.now > self._unsent_seconds + 1e-9

    def write(self, urgent: list[bytes], batch: Batch, unsent_bytes: int) -> None:
        loop, size = self._line.loop, sum(map(len, urgent)) + batch.size
        self._unsent_seconds = unsent_bytes / LINE
        self._line.free_at = self._gone_at = max(self._line.free_at, loop.now) + size / LINE
        loop.call_at(self._gone_at, batch.left)
        loop.call_at(max(loop.now, self._gone_at - self._unsent_seconds), self.sender.on_drained, self)
        confirmed = self._gone_at + 2 * LATENCY + CREDIT_SECONDS
        if batch.data_bytes:
            loop.call_at(confirmed, self.sender.credit, batch.data_bytes)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    found = VirtualLoop()
    monkeypatch.setattr(sender_module, "time", SimpleNamespace(monotonic=found.time))
    yield found
    found.close()


def connected(line: Line, governor: Governor) -> Sender:
    connection: Any = Connection(line)
    controller: Any = SimpleNamespace(is_fixed=True, wanted=1)
    made = connection.sender = Sender(connection, controller, lambda: None)
    made.govern(governor, lambda: 2 * LATENCY)
    return made


def share(
    loop: VirtualLoop, value_bytes: int, pause: float, seconds: float, known_rate: float | None
) -> tuple[float, float]:
    """The part of what values leave of a line that state took, and by how much values were late, in the mean.

    A value of `value_bytes` is due each `pause` seconds on one connection, and state always on another, whose
    known rate is `known_rate` in the beginning.
    """

    async def run() -> tuple[float, float]:
        line, governor = Line(loop), Governor(loop.time)
        near, far = connected(line, governor), connected(line, governor)
        far.send_rate.bytes_per_second = known_rate
        late: list[float] = []

        def more_state() -> None:
            header = SliceHeader("job", 1, 0, "", 0, SLICE, SLICE, bytes(32), "copy", 3)
            far.post(header, memoryview(bytes(SLICE)), more_state, None, None, 0)

        more_state()
        for number in range(int(seconds / pause)):
            posted = loop.now
            header = ValueHeader("job", 1, 0, number, 0, 1, 7, False, 0, value_bytes)

            def left(posted: float = posted) -> None:
                late.append(loop.now - posted - value_bytes / LINE)

            near.post(header, memoryview(bytes(value_bytes)), left, None, None, 0)
            await asyncio.sleep(pause)
        spare = 1 - value_bytes / pause / LINE
        taken = far.state_bytes_sent / loop.now / LINE
        near.stop()
        far.stop()
        return taken / spare, statistics.fmean(late)

    return loop.run_until_complete(run())


@pytest.mark.parametrize("known_rate", [None, 2e4, 1e5, 5e5, LINE])
def test_state_alone_fills_a_line_whatever_rate_is_known_at_first(
    loop: VirtualLoop, known_rate: float | None
) -> None:
    taken, _ = share(loop, 1, 10.0, 60.0, known_rate)
    assert taken > 0.9


@pytest.mark.cases(1)
@pytest.mark.parametrize("known_rate", [2e4, 1e5, LINE])
@pytest.mark.parametrize(("value_bytes", "pause"), [(30_000, 0.18), (30_000, 0.3), (3_000, 0.05)])
def test_values_hardly_wait_for_state_which_always_gets_a_part(
    loop: VirtualLoop, value_bytes: int, pause: float, known_rate: float
) -> None:
    taken, late = share(loop, value_bytes, pause, 60.0, known_rate)
    assert taken > (0.8 * STATE_SHARE if pause < 2 * LATENCY else 0.15)
    assert late < 1.5 * CHUNK_SECONDS
