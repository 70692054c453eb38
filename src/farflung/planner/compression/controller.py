"""Which rung each way has from which unit on, decided anew as a run shows what its links are like. Pure.

A controller takes what was measured (events) and answers with what is to change (commands); no clock, no I/O,
so a history of events gives the same decisions again. It reacts to a change of rate within ten units: three
to believe it (`belief.py`), at most five more for a way that has changed just before. It does not oscillate,
for rates move only when samples agree, and a choice only when it is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch

from farflung.plan import LinkCodec
from farflung.planner.compression.auto import Choice, Levels, choose
from farflung.planner.compression.belief import Belief
from farflung.planner.compression.circumstances import Circumstances, Sampled
from farflung.planner.compression.events import (
    CodecsSampled,
    Event,
    Relax,
    Switch,
    UnitMeasured,
    WayMeasured,
)
from farflung.planner.compression.limits import Limits
from farflung.planner.compression.reasons import megabits
from farflung.planner.compression.rungs import CostedRung
from farflung.planner.compression.switching import DWELL, costliest, decided, gentler, switched

_LONG_AGO = -(10**9)
_MOST_SWELLING = 100.0
_TOLD = 3
_SAMPLED = "codecs were tried on this job's own tensors"


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

    def heard(self, event: Event) -> tuple[Controller, tuple[Switch, ...]]:
        """The controller after an event, and what is to change; what names no way of it changes nothing."""
        return _heard(event, self)

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


@singledispatch
def _heard(event: object, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    raise TypeError(f"not an event: {event!r}")


@_heard.register
def _(event: UnitMeasured, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    rates, moved = list(controller.rates), []
    for measured in event.ways:
        way = controller.way(measured.source, measured.target)
        rate = measured.bytes_per_second
        if way is None or rate is None or not _is_rate(rate):
            continue
        before, rates[way] = rates[way], rates[way].heard(rate)
        if rates[way].value != before.value:
            moved.append(_moved(measured, before, rates[way]))
    computing = dict(controller.computing)
    expected = controller.circumstances.worker_seconds
    for worker, seconds in event.computing.items():
        if worker in computing and expected[worker] > 0 and _is_rate(seconds):
            before, computing[worker] = computing[worker], computing[worker].heard(seconds / expected[worker])
            if computing[worker].value != before.value:
                moved.append(f"{worker} computes {computing[worker].value:.3g} times as long as planned")
    swelling, swollen = _swelling(controller, event)
    moved.extend(swollen)
    told = replace(controller, rates=tuple(rates), computing=computing, swelling=swelling)
    if not moved and not told.due:
        return told, ()
    return decided(told, event.unit, _occasion(moved) or told.due)


@_heard.register
def _(event: CodecsSampled, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    sampled, due = dict(controller.circumstances.sampled), controller.due
    names = [{rung.codec(gradient) for rung in controller.rungs[1:]} for gradient in (False, True)]
    for one in event.samples:
        way = controller.way(one.source, one.target)
        makes_sense = 1 <= one.ratio < math.inf and 0 <= one.error < math.inf
        if way is None or one.codec not in names[one.gradient] or not makes_sense:
            continue
        key = (way, one.codec, one.gradient)
        # The first of what is in use count at the next unit; others when something else asks for a decision.
        if controller.levels[way] and controller.rung(way).codec(one.gradient) == one.codec:
            due = due if key in sampled else _SAMPLED
        sampled[key] = Sampled(one.ratio, one.error)
    circumstances = replace(controller.circumstances, sampled=sampled)
    return replace(controller, circumstances=circumstances, due=due), ()


@_heard.register
def _(event: Relax, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    way = controller.way(event.source, event.target) if event.source else costliest(controller)
    if way is None or not controller.levels[way]:
        return controller, ()
    ceilings, levels = list(controller.ceilings), list(controller.levels)
    for other in controller.circumstances.pairs[way] if controller.rung(way).is_sticky else (way,):
        levels[other] = gentler(controller, other)
        ceilings[other] = min(ceilings[other], levels[other])
    told = replace(controller, ceilings=tuple(ceilings))
    return switched(told, tuple(levels), event.unit, event.why)


def _swelling(controller: Controller, event: UnitMeasured) -> tuple[dict[tuple[int, str], Belief], list[str]]:
    """What is believed of the bytes that rungs write, after a step; and in words what changed by it."""
    scene, found, moved = controller.circumstances, dict(controller.swelling), []
    for written in event.written:
        way = controller.way(written.source, written.target)
        rung = next((one for one in controller.rungs[1:] if one.name == written.rung), None)
        if way is None or rung is None or not scene.microbatches[way]:
            continue
        each = written.payload_bytes / scene.microbatches[way]
        swelling = scene.swelling_of(way, rung, each)
        if swelling is None or not 1 / _MOST_SWELLING <= swelling <= _MOST_SWELLING:
            continue
        key = (way, rung.name)
        before = found.get(key, Belief(1.0))
        found[key] = before.heard(swelling)
        if found[key].value != before.value:
            ratio = scene.carried[way].fp32_bytes / each
            moved.append(f"{scene.ways[way].name} is {ratio:.3g} times smaller by {rung.name}")
    return found, moved


def _occasion(moved: Sequence[str]) -> str:
    """What has changed, in words; of many things the first ones, of nothing none."""
    more = f"; and {len(moved) - _TOLD} more" if len(moved) > _TOLD else ""
    return "; ".join(moved[:_TOLD]) + more


def _is_rate(measured: float) -> bool:
    return 0 < measured < math.inf


def _moved(measured: WayMeasured, before: Belief, after: Belief) -> str:
    name = f"{measured.source} -> {measured.target}"
    return f"{name} carries {megabits(after.value)}, not {megabits(before.value)}"
