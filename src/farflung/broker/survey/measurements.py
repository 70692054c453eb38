"""What was measured between workers, and how old that is: observations, which nothing is decided by.

Measurements on disk, so that a broker that starts again need not have them taken again.

They are observations: what is lost with a broker's last second can be measured anew, so nobody waits for the
disk, and a full one is no reason to stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from farflung.broker.storage.store import Store
from farflung.errors import StoreError

Pair = tuple[str, str]
Direction = Literal["up", "down"]
Source = Literal["probe", "traffic"]
WayState = Literal["measured", "not measured", "unreachable"]

ENOUGH_FAILURES = 2
"""So many probes in a row without a link show that no way leads there: machines may be too busy for one."""


class PairMeasurement(msgspec.Struct, frozen=True, tag="pair"):
    """The way from `sender` to `receiver`, as found `at` seconds since 1970.

    A bandwidth of 0 says that nothing was measured; `problem` is why the newest probe came to nothing.
    `failures` counts the probes in a row in which both ends answered and no link came about. `dialled` is
    whom the other could dial, if the two are joined directly, and `closed` are those who could not be.
    """

    sender: str
    receiver: str
    bandwidth_mbps: float
    latency_ms: float
    at: float
    source: Source = "probe"
    path: str = ""
    is_settled: bool = True
    problem: str = ""
    dialled: str = ""
    closed: tuple[str, ...] = ()
    failures: int = 0

    @property
    def pair(self) -> Pair:
        """Sender and receiver."""
        return self.sender, self.receiver

    @property
    def is_fresh(self) -> bool:
        """Whether the newest probe found a rate."""
        return self.bandwidth_mbps > 0 and not self.problem

    @property
    def state(self) -> WayState:
        """What is known: one probe that failed does not show that no way leads there."""
        if self.bandwidth_mbps > 0:
            return "measured"
        return "unreachable" if self.failures >= ENOUGH_FAILURES else "not measured"

    def after(self, before: PairMeasurement | None) -> PairMeasurement:
        """What is known of the way by this, the newest, and by what was known before.

        A rate stays known until as many probes have failed as show that no way is left.
        """
        if before is None or self.bandwidth_mbps > 0:
            return self
        failures = 0 if self.path else before.failures + self.failures
        if before.bandwidth_mbps > 0 and failures < ENOUGH_FAILURES:
            return msgspec.structs.replace(before, failures=failures, problem=self.problem)
        return msgspec.structs.replace(self, failures=failures)


class LineMeasurement(msgspec.Struct, frozen=True, tag="line"):
    """What `worker`'s links carried out (`up`) or in (`down`) when all of them were busy.

    `alone_mbps` is the sum of what the same links carry one at a time.
    """

    worker: str
    direction: Direction
    mbps: float
    alone_mbps: float
    at: float

    @property
    def is_shared(self) -> bool:
        """Whether the links get in each other's way, by more than a measurement errs."""
        return self.mbps < 0.9 * self.alone_mbps


Measurement = PairMeasurement | LineMeasurement


def row(one: Measurement) -> tuple[str, str, bytes]:
    """A measurement as the store keeps it: what of, and its bytes."""
    if isinstance(one, PairMeasurement):
        return one.sender, one.receiver, msgspec.msgpack.encode(one)
    return one.worker, f"/{one.direction}", msgspec.msgpack.encode(one)  # no worker is called that


def read_row(body: bytes) -> Measurement | None:
    """Read one back; None if another version wrote it: it can be measured again."""
    try:
        return msgspec.msgpack.decode(body, type=Measurement)
    except (msgspec.DecodeError, ValueError):
        return None


@dataclass(frozen=True)
class Measurements:
    """The newest of every pair and of every line."""

    pairs: Mapping[Pair, PairMeasurement] = field(default_factory=dict)
    lines: Mapping[tuple[str, Direction], LineMeasurement] = field(default_factory=dict)

    def updated(self, found: Iterable[Measurement]) -> Measurements:
        """With what `found` adds to what was known of the same pairs and lines."""
        pairs, lines = dict(self.pairs), dict(self.lines)
        for one in found:
            if isinstance(one, PairMeasurement):
                pairs[one.pair] = one.after(pairs.get(one.pair))
            else:
                lines[one.worker, one.direction] = one
        return Measurements(pairs, lines)

    def of(self, found: Iterable[Measurement]) -> list[Measurement]:
        """What is known of the same pairs and lines as `found` tells of."""
        return [
            self.pairs[one.pair]
            if isinstance(one, PairMeasurement)
            else self.lines[one.worker, one.direction]
            for one in found
        ]

    def without(self, worker: str) -> Measurements:
        """What does not concern `worker`, which is somewhere else now."""
        return Measurements(
            {pair: found for pair, found in self.pairs.items() if worker not in pair},
            {key: found for key, found in self.lines.items() if key[0] != worker},
        )

    def among(self, workers: Iterable[str]) -> bool:
        """Whether anything is known of any way between two of these workers."""
        names = set(workers)
        return any(
            names.issuperset(pair) and found.state != "not measured" for pair, found in self.pairs.items()
        )

    def line_mbps(self, worker: str, direction: Direction) -> float | None:
        """What all links of a worker share in one direction; None where none was seen to give way."""
        line = self.lines.get((worker, direction))
        return line.mbps if line is not None and line.is_shared else None


_log = logging.getLogger("farflung.broker")

KEPT_SECONDS = 30 * 24 * 3600.0
"""Older ones are not believed after a restart."""


class MeasurementStore:
    """Measurements in a store; `spawn` runs what writes them, in the background."""

    def __init__(self, store: Store, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._store = store
        self._spawn = spawn
        self._unwritten: dict[tuple[str, str], bytes] = {}
        self._forgotten: set[str] = set()
        self._is_writing = False

    def read(self) -> list[Measurement]:
        """What was kept; what another version has written is left out."""
        kept = [found for found in map(read_row, self._store.measurements()) if found is not None]
        return [found for found in kept if time.time() - found.at < KEPT_SECONDS]

    def note(self, found: Iterable[Measurement]) -> None:
        """Write these with the next ones."""
        for one in found:
            subject, thing, body = row(one)
            self._unwritten[subject, thing] = body

    def forget(self, worker: str) -> None:
        """Drop all that concerns a worker."""
        self._unwritten = {key: body for key, body in self._unwritten.items() if worker not in key}
        self._forgotten.add(worker)

    def write(self) -> None:
        """Begin to write what was noted, unless that is under way."""
        if not self._is_writing and (self._unwritten or self._forgotten):
            self._is_writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        forgotten, self._forgotten = self._forgotten, set()
        unwritten, self._unwritten = self._unwritten, {}
        rows = [(subject, thing, body) for (subject, thing), body in unwritten.items()]
        try:
            for worker in forgotten:
                await asyncio.to_thread(self._store.forget_measurements, worker)
            if rows:
                await asyncio.to_thread(self._store.write_measurements, rows)
        except StoreError as error:
            _log.warning("measurements could not be kept: %s", error)
        finally:
            self._is_writing = False
