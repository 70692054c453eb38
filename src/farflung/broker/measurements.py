"""What was measured between workers, and how old that is: observations, which nothing is decided by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

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
