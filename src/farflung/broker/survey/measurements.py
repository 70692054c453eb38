"""Measurements of links and access lines, in memory (`Measurements`) and on disk (`MeasurementStore`).

They are stored so that a restarted broker need not measure again. They are observations, not decisions: a
lost one can be measured again, so writes happen in the background and a full disk does not stop the broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from farflung.broker.storage.contract import BrokerStore
from farflung.errors import StoreError

Pair = tuple[str, str]
Direction = Literal["up", "down"]
Source = Literal["probe", "traffic", "job"]
LinkState = Literal["measured", "not measured", "unreachable"]

ENOUGH_FAILURES = 2
"""Attempts in a row to connect, by probes or by members of a job, after which a link counts as unreachable if
all failed; one may fail by chance.
"""


class PairMeasurement(msgspec.Struct, frozen=True, tag="pair"):
    """The link from `sender` to `receiver`, as measured `at` seconds since 1970.

    A bandwidth of 0 means that no rate was measured; `problem` says why the newest probe failed. `failures`
    counts the probes in a row in which both ends answered but could not connect; attempts of a job in which
    the two could not link up count as such, and have the source "job". If one end dialled the other,
    `dialled` is the end that was dialled; `closed` are the ends that could not be dialled.
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
    def state(self) -> LinkState:
        """The state of the link: one failed probe does not make it unreachable."""
        if self.bandwidth_mbps > 0:
            return "measured"
        return "unreachable" if self.failures >= ENOUGH_FAILURES else "not measured"

    def after(self, before: PairMeasurement | None) -> PairMeasurement:
        """Combine this newest measurement with the one before.

        A measured rate is kept until so many probes have failed that the link counts as unreachable.
        """
        if before is None or self.bandwidth_mbps > 0:
            return self
        failures = 0 if self.path else before.failures + self.failures
        if before.bandwidth_mbps > 0 and failures < ENOUGH_FAILURES:
            return msgspec.structs.replace(before, failures=failures, problem=self.problem)
        return msgspec.structs.replace(self, failures=failures)


class AccessLineMeasurement(msgspec.Struct, frozen=True, tag="line"):
    """The rate of `worker`'s access line: what its links carried together, out (`up`) or in (`down`).

    `alone_mbps` is the sum of the rates of the same links measured one at a time.
    """

    worker: str
    direction: Direction
    mbps: float
    alone_mbps: float
    at: float

    @property
    def is_shared(self) -> bool:
        """Whether the links slow each other down by more than the measurement error."""
        return self.mbps < 0.9 * self.alone_mbps


Measurement = PairMeasurement | AccessLineMeasurement


def row(one: Measurement) -> tuple[str, str, bytes]:
    """A measurement as a row of the store: subject, object and bytes."""
    if isinstance(one, PairMeasurement):
        return one.sender, one.receiver, msgspec.msgpack.encode(one)
    return one.worker, f"/{one.direction}", msgspec.msgpack.encode(one)  # not a valid worker id


def read_row(body: bytes) -> Measurement | None:
    """Decode a stored measurement; None if another version wrote it."""
    try:
        return msgspec.msgpack.decode(body, type=Measurement)
    except (msgspec.DecodeError, ValueError):
        return None


@dataclass(frozen=True)
class Measurements:
    """The newest measurement of each pair and of each access line."""

    pairs: Mapping[Pair, PairMeasurement] = field(default_factory=dict)
    lines: Mapping[tuple[str, Direction], AccessLineMeasurement] = field(default_factory=dict)

    def updated(self, measurements: Iterable[Measurement]) -> Measurements:
        """These measurements combined with newer ones."""
        pairs, lines = dict(self.pairs), dict(self.lines)
        for one in measurements:
            if isinstance(one, PairMeasurement):
                pairs[one.pair] = one.after(pairs.get(one.pair))
            else:
                lines[one.worker, one.direction] = one
        return Measurements(pairs, lines)

    def current(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """The current measurements of the pairs and access lines in `measurements`."""
        return [
            self.pairs[one.pair]
            if isinstance(one, PairMeasurement)
            else self.lines[one.worker, one.direction]
            for one in measurements
        ]

    def without(self, worker: str) -> Measurements:
        """All measurements that do not involve `worker`, for a worker that has moved."""
        return Measurements(
            {pair: measurements for pair, measurements in self.pairs.items() if worker not in pair},
            {key: measurements for key, measurements in self.lines.items() if key[0] != worker},
        )

    def with_failed_link(self, worker: str, peer: str, problem: str, now: float) -> Measurements:
        """All measurements once two members of a job could not link up, though both are there."""
        return self.updated(
            PairMeasurement(*pair, 0.0, 0.0, now, "job", problem=problem, failures=1)
            for pair in ((worker, peer), (peer, worker))
        )

    def without_failed_links(self, is_meant: Callable[[Pair], bool]) -> Measurements:
        """All measurements without what members of jobs found of these links: they may link up, or do."""
        found = {
            pair
            for pair, link in self.pairs.items()
            if (link.source == "job" or (link.failures and link.bandwidth_mbps > 0)) and is_meant(pair)
        }
        if not found:
            return self
        pairs = {
            pair: msgspec.structs.replace(link, failures=0, problem="") if pair in found else link
            for pair, link in self.pairs.items()
            if pair not in found or link.source != "job"
        }
        return Measurements(pairs, self.lines)

    def among(self, workers: Iterable[str]) -> bool:
        """Whether any link between two of these workers was measured or is unreachable."""
        names = set(workers)
        return any(
            names.issuperset(pair) and measurements.state != "not measured"
            for pair, measurements in self.pairs.items()
        )

    def line_mbps(self, worker: str, direction: Direction) -> float | None:
        """The rate that all links of a worker share in one direction; None if no sharing was measured."""
        line = self.lines.get((worker, direction))
        return line.mbps if line is not None and line.is_shared else None


_log = logging.getLogger("farflung.broker")

MAXIMUM_AGE_SECONDS = 30 * 24 * 3600.0
"""Older measurements are ignored after a restart."""


class MeasurementStore:
    """Writes measurements to a store; `spawn` runs the writing in the background."""

    def __init__(self, store: BrokerStore, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._store = store
        self._spawn = spawn
        self._unwritten: dict[tuple[str, str], bytes] = {}
        self._forgotten: set[str] = set()
        self._is_writing = False

    def read(self) -> list[Measurement]:
        """Stored measurements, without old ones and those of other versions."""
        stored = [
            measurements
            for measurements in map(read_row, self._store.measurements())
            if measurements is not None
        ]
        return [
            measurements for measurements in stored if time.time() - measurements.at < MAXIMUM_AGE_SECONDS
        ]

    def note(self, measurements: Iterable[Measurement]) -> None:
        """Add measurements to the next write."""
        for one in measurements:
            subject, object_, body = row(one)
            self._unwritten[subject, object_] = body

    def forget(self, worker: str) -> None:
        """Delete all measurements of a worker at the next write."""
        self._unwritten = {key: body for key, body in self._unwritten.items() if worker not in key}
        self._forgotten.add(worker)

    def write(self) -> None:
        """Start to write pending changes, unless a write is running."""
        if not self._is_writing and (self._unwritten or self._forgotten):
            self._is_writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        forgotten, self._forgotten = self._forgotten, set()
        unwritten, self._unwritten = self._unwritten, {}
        rows = [(subject, object_, body) for (subject, object_), body in unwritten.items()]
        try:
            for worker in forgotten:
                await asyncio.to_thread(self._store.forget_measurements, worker)
            if rows:
                await asyncio.to_thread(self._store.write_measurements, rows)
        except StoreError as error:
            _log.warning("measurements could not be stored: %s", error)
        finally:
            self._is_writing = False
