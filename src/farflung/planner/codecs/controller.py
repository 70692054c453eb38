"""Estimates of a run's links, the codec pair of each, and the events that change them. Pure.

What events make of it, and when a link may change: `decisions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from farflung.planner.codecs.auto import Choice, Levels, choose
from farflung.planner.codecs.codec_context import Circumstances, LinkSample
from farflung.planner.codecs.ladder import CostedRung
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.rate_filter import Belief
from farflung.plans import LinkCodec


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
class CodecsSampled:
    """What codecs did to tensors of a unit: of a large fleet some ten thousand samples at once."""

    unit: int
    samples: tuple[LinkSample, ...]


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


DWELL = 5
"""Units for which a way keeps its rung, unless the guard says otherwise."""
_LONG_AGO = -(10**9)


@dataclass(frozen=True)
class Controller:
    """What it believes and what it has decided; `levels` are numbers of rungs, one for each way.

    `swelling` is by how much more than expected a rung, by its name, has written on a way. `due` says why
    there is to be a decision after the next unit, whatever that shows.
    """

    circumstances: Circumstances
    rungs: tuple[CostedRung, ...]
    limits: Limits
    levels: Levels
    ceilings: Levels
    rates: tuple[Belief, ...]
    changed_at: tuple[int, ...]
    patience: tuple[int, ...]
    given_more: tuple[bool, ...]
    computing: Mapping[str, Belief] = field(default_factory=dict)
    swelling: Mapping[tuple[int, str], Belief] = field(default_factory=dict)
    movable: frozenset[int] = frozenset()
    due: str = ""

    @staticmethod
    def begun(
        circumstances: Circumstances,
        rungs: Sequence[CostedRung],
        limits: Limits,
        movable: frozenset[int] = frozenset(),
    ) -> tuple[Controller, Choice]:
        """A controller before the first unit, and its first choice, made of what the plan expects."""
        choice = choose(circumstances, rungs, limits, movable=movable)
        return Controller.with_levels(circumstances, rungs, limits, choice.levels, movable), choice

    @staticmethod
    def with_levels(
        circumstances: Circumstances,
        rungs: Sequence[CostedRung],
        limits: Limits,
        levels: Levels,
        movable: frozenset[int] = frozenset(),
    ) -> Controller:
        """A controller before the first unit of a plan that was made with these rungs."""
        count = len(circumstances.ways)
        return Controller(
            circumstances=circumstances,
            rungs=tuple(rungs),
            limits=limits,
            levels=levels,
            ceilings=(len(rungs) - 1,) * count,
            rates=tuple(Belief(way.bytes_per_second) for way in circumstances.ways),
            changed_at=(_LONG_AGO,) * count,
            patience=(DWELL,) * count,
            given_more=(False,) * count,
            computing={
                stage.worker: Belief(1.0) for pipeline in circumstances.pipelines for stage in pipeline.stages
            },
            movable=movable,
        )

    def way(self, source: str, target: str) -> int | None:
        """The number of a way."""
        return self.circumstances.numbers.get((source, target))

    def rung(self, way: int) -> CostedRung:
        """What a way is written by."""
        return self.rungs[self.levels[way]]

    def codecs(self) -> tuple[LinkCodec, ...]:
        """How all ways are written that are not dense."""
        scene = self.believed()
        return tuple(
            LinkCodec(ends.source, ends.target, rung.name, scene.ratio_of_all(way, rung))
            for way, ends in enumerate(scene.ways)
            if (rung := self.rung(way)) != self.rungs[0]
        )

    def believed(self) -> Circumstances:
        """The circumstances as measured so far."""
        rates = [belief.value for belief in self.rates]
        speeds = {worker: belief.value for worker, belief in self.computing.items()}
        swelling = {key: belief.value for key, belief in self.swelling.items() if belief.is_measured}
        return replace(self.circumstances.with_rates(rates).with_speeds(speeds), swelling=swelling)
