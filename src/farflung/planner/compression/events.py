"""What a controller of codecs is told, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WayMeasured:
    """What a way carried: bytes of payload a second while it was busy; None where too little crossed it."""

    source: str
    target: str
    bytes_per_second: float | None


@dataclass(frozen=True)
class WayWritten:
    """What a rung made of all that crossed a way in a step: bytes of payloads."""

    source: str
    target: str
    rung: str
    payload_bytes: int


@dataclass(frozen=True)
class UnitMeasured:
    """A unit is over. `computing` says what a microbatch took each worker to compute, of those that told;
    `written` is there of steps only.
    """

    unit: int
    ways: tuple[WayMeasured, ...] = ()
    computing: Mapping[str, float] = field(default_factory=dict)
    written: tuple[WayWritten, ...] = ()


@dataclass(frozen=True)
class CodecSampled:
    """What a codec did to a tensor of this job on a way: fp32 bytes over its own, and relative error."""

    source: str
    target: str
    codec: str
    gradient: bool
    ratio: float
    error: float


@dataclass(frozen=True)
class CodecsSampled:
    """What codecs did to tensors of a unit: of a large fleet some ten thousand samples at once."""

    unit: int
    samples: tuple[CodecSampled, ...]


@dataclass(frozen=True)
class Relax:
    """The guard wants a gentler rung: on a way, or (`source` is empty) where most is lost. `why` is for
    people.
    """

    unit: int
    why: str
    source: str = ""
    target: str = ""


Event = UnitMeasured | CodecsSampled | Relax


@dataclass(frozen=True)
class Switch:
    """From `unit` on the way is written by `rung`, which makes its bytes `ratio` times fewer."""

    unit: int
    source: str
    target: str
    rung: str
    ratio: float
    reason: str
