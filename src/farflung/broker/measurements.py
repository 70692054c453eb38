"""What was measured between workers, and how old that is: observations, which nothing is decided by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

Pair = tuple[str, str]
Direction = Literal["up", "down"]
Source = Literal["probe", "traffic"]


class PairMeasurement(msgspec.Struct, frozen=True, tag="pair"):
    """The way from `sender` to `receiver`, as found `at` seconds since 1970.

    A bandwidth of 0 says that none was found; `problem` is why. `dialled` is whom the other could dial, if
    the two are joined directly, and `closed` are those who could not be dialled.
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

    @property
    def pair(self) -> Pair:
        """Sender and receiver."""
        return self.sender, self.receiver


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
        """With `found` in place of what was known of the same pairs and lines."""
        pairs, lines = dict(self.pairs), dict(self.lines)
        for one in found:
            if isinstance(one, PairMeasurement):
                pairs[one.pair] = one
            else:
                lines[one.worker, one.direction] = one
        return Measurements(pairs, lines)

    def without(self, worker: str) -> Measurements:
        """What does not concern `worker`, which is somewhere else now."""
        return Measurements(
            {pair: found for pair, found in self.pairs.items() if worker not in pair},
            {key: found for key, found in self.lines.items() if key[0] != worker},
        )

    def among(self, workers: Iterable[str]) -> bool:
        """Whether any way between two of these workers was measured."""
        names = set(workers)
        return any(names.issuperset(pair) for pair in self.pairs)

    def line_mbps(self, worker: str, direction: Direction) -> float | None:
        """What all links of a worker share in one direction; None where none was seen to give way."""
        line = self.lines.get((worker, direction))
        return line.mbps if line is not None and line.is_shared else None
