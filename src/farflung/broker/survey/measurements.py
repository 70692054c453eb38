"""Measurements of links and access lines, in memory (`Measurements`) and on disk (`MeasurementStore`).

They are stored so that a restarted broker need not measure again. They are observations, not decisions: a
lost one can be measured again, so writes happen in the background and a full disk does not stop the broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

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
    the two could not link up count as such, with the source "job" unless a measured rate stands. If one end
    dialled the other, `dialled` is the end that was dialled; `closed` are the ends that could not be dialled.
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


class FailedLinks(NamedTuple):
    """How many attempts of jobs in a row two members could not link up, and the newest one's problem."""

    times: int
    problem: str
    at: float


@dataclass(frozen=True)
class Measurements:
    """The newest measurement of each pair and of each access line, and beside them what jobs found.

    `probed` is what probes and traffic say; `apart` are links that members of jobs could not make.
    """

    probed: Mapping[Pair, PairMeasurement] = field(default_factory=dict)
    lines: Mapping[tuple[str, Direction], AccessLineMeasurement] = field(default_factory=dict)
    apart: Mapping[Pair, FailedLinks] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> Mapping[Pair, PairMeasurement]:
        """What is to be believed of each link, by probes and jobs together."""
        found = {
            pair: _with_failed(pair, self.probed.get(pair), failed) for pair, failed in self.apart.items()
        }
        return {**self.probed, **found}

    def updated(self, measurements: Iterable[Measurement]) -> Measurements:
        """These measurements combined with newer ones. A link that came about ends what jobs found of it."""
        probed, lines, apart = dict(self.probed), dict(self.lines), dict(self.apart)
        for one in measurements:
            if not isinstance(one, PairMeasurement):
                lines[one.worker, one.direction] = one
                continue
            probed[one.pair] = one.after(probed.get(one.pair))
            if one.bandwidth_mbps > 0 or one.path:
                apart.pop(one.pair, None)
        return Measurements(probed, lines, apart)

    def current(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """What probes and traffic say now of the pairs and access lines in `measurements`."""
        return [
            self.probed[one.pair]
            if isinstance(one, PairMeasurement)
            else self.lines[one.worker, one.direction]
            for one in measurements
        ]

    def without(self, worker: str) -> Measurements:
        """All measurements that do not involve `worker`, for a worker that has moved."""
        return Measurements(
            {pair: measurements for pair, measurements in self.probed.items() if worker not in pair},
            {key: measurements for key, measurements in self.lines.items() if key[0] != worker},
            {pair: failed for pair, failed in self.apart.items() if worker not in pair},
        )

    def with_failed_link(self, worker: str, peer: str, problem: str, now: float) -> Measurements:
        """All measurements once two members of a job could not link up, though both are there."""
        apart = dict(self.apart)
        for pair in ((worker, peer), (peer, worker)):
            times = apart[pair].times if pair in apart else 0
            apart[pair] = FailedLinks(times + 1, problem, now)
        return replace(self, apart=apart)

    def without_failed_links(self, is_meant: Callable[[Pair], bool]) -> Measurements:
        """All measurements without what members of jobs found of these links: they may link up, or do."""
        left = {pair: failed for pair, failed in self.apart.items() if not is_meant(pair)}
        return self if len(left) == len(self.apart) else replace(self, apart=left)

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


def _with_failed(pair: Pair, probed: PairMeasurement | None, failed: FailedLinks) -> PairMeasurement:
    """A link that members of jobs could not make; a measured rate stands until enough have failed."""
    before = probed or PairMeasurement(*pair, 0.0, 0.0, failed.at)
    failures = before.failures + failed.times
    counted = msgspec.structs.replace(before, failures=failures, problem=failed.problem)
    if before.bandwidth_mbps > 0 and failures < ENOUGH_FAILURES:
        return counted
    return msgspec.structs.replace(
        counted, bandwidth_mbps=0.0, latency_ms=0.0, at=failed.at, source="job", path=""
    )


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
