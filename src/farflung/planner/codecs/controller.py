"""Estimates of a run's links, the codec pair of each, and the events that change them. Pure.

`decisions.py` has the reactions to events, and the rules for when a link may change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from farflung.planner.codecs.auto import Choice, Levels, choose
from farflung.planner.codecs.codec_context import CodecContext, LinkSample
from farflung.planner.codecs.ladder import CostedRung, number_of
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.rate_filter import RateFilter
from farflung.plans import CodecFindings, LinkCodec


@dataclass(frozen=True)
class LinkMeasured:
    """A link's payload rate while it was busy; None if it carried too little to tell."""

    source: str
    target: str
    bytes_per_second: float | None


@dataclass(frozen=True)
class LinkWritten:
    """The payload bytes that a rung wrote on a link in a step."""

    source: str
    target: str
    rung: str
    payload_bytes: int


@dataclass(frozen=True)
class UnitMeasured:
    """A unit has ended. `computing` holds seconds per microbatch of the workers that reported them;
    evaluation passes have no `written`.
    """

    unit: int
    links: tuple[LinkMeasured, ...] = ()
    computing: Mapping[str, float] = field(default_factory=dict)
    written: tuple[LinkWritten, ...] = ()


@dataclass(frozen=True)
class CodecsSampled:
    """Samples of what codecs did to tensors of a unit; a large fleet sends some ten thousand at once."""

    unit: int
    samples: tuple[LinkSample, ...]


@dataclass(frozen=True)
class Relax:
    """The guard asks for a gentler rung: on a link, or, if `source` is empty, where the most is lost. `why`
    is a message for the user.
    """

    unit: int
    why: str
    source: str = ""
    target: str = ""


@dataclass(frozen=True)
class BeginProbe:
    """The guard asks all links to write finely for a while; `why` is a message for the user."""

    unit: int
    why: str


@dataclass(frozen=True)
class EndProbe:
    """The probe is over. If the run was `stalled`, codecs as rough as before are not used any more."""

    unit: int
    why: str
    stalled: bool


Event = UnitMeasured | CodecsSampled | Relax | BeginProbe | EndProbe


@dataclass(frozen=True)
class Switch:
    """From `unit` on, the link uses `rung`, which makes its bytes `ratio` times fewer."""

    unit: int
    source: str
    target: str
    rung: str
    ratio: float
    reason: str


PROBE_NOISE = 0.01
"""Largest relative error of codecs in a probe: that of int8, whose loss does not grow with boundaries."""
DWELL = 5
"""Units for which a link keeps its rung, unless the guard asks for another."""
_LONG_AGO = -(10**9)
_FOUND = "the run needed gentler codecs before"
_PROBED = "a probe was cut short"


@dataclass(frozen=True)
class Controller:
    """Estimates and decisions of a run; `levels` holds the number of each link's rung.

    `swelling` holds, by link and rung, the ratio of written to expected bytes. A `due` that is not empty asks
    for a decision after the next unit, and says why. While all links write finely for the guard, `unprobed`
    is what the links had and what their limits were.
    """

    context: CodecContext
    rungs: tuple[CostedRung, ...]
    limits: Limits
    levels: Levels
    ceilings: Levels
    rates: tuple[RateFilter, ...]
    changed_at: tuple[int, ...]
    patience: tuple[int, ...]
    got_gentler: tuple[bool, ...]
    computing: Mapping[str, RateFilter] = field(default_factory=dict)
    swelling: Mapping[tuple[int, str], RateFilter] = field(default_factory=dict)
    movable: frozenset[int] = frozenset()
    due: str = ""
    unprobed: tuple[Levels, Limits] | None = None

    @staticmethod
    def start(
        context: CodecContext,
        rungs: Sequence[CostedRung],
        limits: Limits,
        movable: frozenset[int] = frozenset(),
    ) -> tuple[Controller, Choice]:
        """A controller before the first unit, with a choice based on what the plan expects."""
        choice = choose(context, rungs, limits, movable=movable)
        return Controller.with_levels(context, rungs, limits, choice.levels, movable), choice

    @staticmethod
    def with_levels(
        context: CodecContext,
        rungs: Sequence[CostedRung],
        limits: Limits,
        levels: Levels,
        movable: frozenset[int] = frozenset(),
    ) -> Controller:
        """A controller before the first unit of a plan that already has these rungs."""
        count = len(context.links)
        return Controller(
            context=context,
            rungs=tuple(rungs),
            limits=limits,
            levels=levels,
            ceilings=(len(rungs) - 1,) * count,
            rates=tuple(RateFilter(link.bytes_per_second) for link in context.links),
            changed_at=(_LONG_AGO,) * count,
            patience=(DWELL,) * count,
            got_gentler=(False,) * count,
            computing={
                stage.worker: RateFilter(1.0) for pipeline in context.pipelines for stage in pipeline.stages
            },
            movable=movable,
        )

    def with_findings(self, findings: CodecFindings) -> Controller:
        """The controller within what the run has found before; codecs beyond that are changed soon.

        Raises
        ------
        CodecError
            A codec pair is not on the ladder.
        """
        limits, ceilings = self.limits, list(self.ceilings)
        if findings.most_noise is not None:
            limits = replace(limits, most_noise=min(limits.most_noise, findings.most_noise))
        for one in findings.relaxed:
            if (link := self.link(one.source, one.target)) is not None:
                ceilings[link] = number_of(one.codec, self.rungs)
        updated = replace(self, limits=limits, ceilings=tuple(ceilings))
        due = _FOUND if updated.is_too_rough else _PROBED if findings.probes else ""
        return replace(updated, due=due)

    def findings(self) -> CodecFindings:
        """What later attempts must know."""
        limits = self.limits if self.unprobed is None else self.unprobed[1]
        relaxed = [
            LinkCodec(ends.source, ends.target, self.rungs[ceiling].name, 1.0)
            for ends, ceiling in zip(self.context.links, self.ceilings, strict=True)
            if ceiling < len(self.rungs) - 1
        ]
        most_noise = limits.most_noise if limits.most_noise < math.inf else None
        return CodecFindings(most_noise, relaxed, self.unprobed is not None)

    def link(self, source: str, target: str) -> int | None:
        """The number of a link; None if the plan does not use it."""
        return self.context.numbers.get((source, target))

    def rung(self, link: int) -> CostedRung:
        """The rung that a link uses."""
        return self.rungs[self.levels[link]]

    @property
    def noise(self) -> float:
        """The largest error that codecs of any link declare."""
        return max((self.rungs[level].noise for level in self.levels), default=0.0)

    @property
    def is_too_rough(self) -> bool:
        """Whether a link uses a rung beyond what a stall or the guard has left it."""
        return self.noise > self.limits.most_noise or any(
            level > ceiling for level, ceiling in zip(self.levels, self.ceilings, strict=True)
        )

    @property
    def is_sticky(self) -> bool:
        """Whether a link uses a rung to which the model adapts, so that it loses more without it."""
        return any(self.rungs[level].is_sticky for level in self.levels)

    def codecs(self) -> tuple[LinkCodec, ...]:
        """The codec pairs of all links that are not dense."""
        context = self.estimated()
        return tuple(
            LinkCodec(ends.source, ends.target, rung.name, context.ratio_of_all(link, rung))
            for link, ends in enumerate(context.links)
            if (rung := self.rung(link)) != self.rungs[0]
        )

    def estimated(self) -> CodecContext:
        """The codec context with the rates, speeds and swellings measured so far."""
        rates = [belief.value for belief in self.rates]
        speeds = {worker: belief.value for worker, belief in self.computing.items()}
        swelling = {key: belief.value for key, belief in self.swelling.items() if belief.is_measured}
        return replace(self.context.with_rates(rates).with_speeds(speeds), swelling=swelling)
