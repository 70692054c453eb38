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
from farflung.planner.compression.auto import FREE, Choice, Levels, choose, seconds_to_loss
from farflung.planner.compression.belief import Belief
from farflung.planner.compression.circumstances import Circumstances, Sampled
from farflung.planner.compression.limits import Limits
from farflung.planner.compression.pace import pace_of
from farflung.planner.compression.reasons import megabits, reason
from farflung.planner.compression.rungs import CostedRung

DWELL = 5
"""Units for which a way keeps its rung, unless the guard says otherwise."""
MOST_DWELL = 160
"""A way that was given more bytes and soon fewer again waits twice as long, and so on, before it tries."""
STICKY_DWELL = 50
"""The same of a rung to which the model has begun to adapt."""
WORTH_IT = 0.97
"""A change must bring time to the same loss down to this share."""
WORTH_IT_STICKY = 0.9
"""One that takes or leaves a rung to which the model adapts, down to this."""

_LONG_AGO = -(10**9)
_MOST_SWELLING = 100.0
_TOLD = 3


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
class RungSampled:
    """What one of a rung's codecs did to tensors of this job on a way: bytes and relative error."""

    unit: int
    source: str
    target: str
    rung: str
    gradient: bool
    ratio: float
    error: float


@dataclass(frozen=True)
class Relax:
    """The guard wants a gentler rung: on a way, or (`source` is empty) where most is lost. `why` is for
    people.
    """

    unit: int
    why: str
    source: str = ""
    target: str = ""


Event = UnitMeasured | RungSampled | Relax


@dataclass(frozen=True)
class Switch:
    """From `unit` on the way is written by `rung`, which makes its bytes `ratio` times fewer."""

    unit: int
    source: str
    target: str
    rung: str
    ratio: float
    reason: str


@dataclass(frozen=True)
class Controller:
    """What it believes and what it has decided; `levels` are numbers of rungs, one for each way.

    `swelling` is by how much more than expected a rung, by its name, has written on a way.
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
    is_due: bool = False

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
        for number, way in enumerate(self.circumstances.ways):
            if (way.source, way.target) == (source, target):
                return number
        return None

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
    if not moved and not told.is_due:
        return told, ()
    return _decided(told, event.unit, _occasion(moved))


@_heard.register
def _(event: RungSampled, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    way = controller.way(event.source, event.target)
    known_rung = event.rung in (rung.name for rung in controller.rungs)
    makes_sense = 1 <= event.ratio < math.inf and 0 <= event.error < math.inf
    if way is None or not (known_rung and makes_sense):
        return controller, ()
    known = controller.circumstances.sampled
    key = (way, event.rung, event.gradient)
    sampled = {**known, key: Sampled(event.ratio, event.error)}
    told = replace(controller, circumstances=replace(controller.circumstances, sampled=sampled))
    # The first samples count at the next unit; later ones when something else asks for a decision.
    return (replace(told, is_due=True), ()) if key not in known else (told, ())


@_heard.register
def _(event: Relax, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    way = controller.way(event.source, event.target) if event.source else _costliest(controller)
    if way is None or not controller.levels[way]:
        return controller, ()
    ceilings, levels = list(controller.ceilings), list(controller.levels)
    for other in controller.circumstances.pairs[way] if controller.rung(way).is_sticky else (way,):
        gentler = _gentler(controller, other)
        ceilings[other] = min(ceilings[other], gentler)
        levels[other] = gentler
    told = replace(controller, ceilings=tuple(ceilings))
    return _switched(told, tuple(levels), event.unit, event.why)


def _decided(controller: Controller, unit: int, occasion: str) -> tuple[Controller, tuple[Switch, ...]]:
    """Choose anew; what may not change yet waits, and is decided again at the units that follow."""
    scene = controller.believed()
    choice = choose(scene, controller.rungs, controller.limits, controller.ceilings, controller.movable)
    wanted = list(choice.levels)
    waits = False
    for way, level in enumerate(choice.levels):
        since = unit + 1 - controller.changed_at[way]
        if level != controller.levels[way] and since < _dwell(scene, controller, way, level):
            waits = True
            for other in scene.pairs[way]:
                wanted[other] = controller.levels[other]
    told = replace(controller, is_due=waits)
    if not _is_worth_it(controller, scene, tuple(wanted)):
        return told, ()
    return _switched(told, tuple(wanted), unit, occasion)


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
    """What has changed, in words; of many things the first ones."""
    more = f"; and {len(moved) - _TOLD} more" if len(moved) > _TOLD else ""
    return "; ".join(moved[:_TOLD]) + more or "what was waiting may change now"


def _is_rate(measured: float) -> bool:
    return 0 < measured < math.inf


def _is_worth_it(controller: Controller, scene: Circumstances, wanted: Levels) -> bool:
    if wanted == controller.levels:
        return False
    old, new = ([controller.rungs[level] for level in levels] for levels in (controller.levels, wanted))
    gaps = scene.loss_gap(old), scene.loss_gap(new)
    if max(gaps) > controller.limits.max_loss_gap + 1e-12:
        return gaps[1] < gaps[0]  # whatever it costs in time
    before = seconds_to_loss(pace_of(scene, old).step_seconds, gaps[0])
    after = seconds_to_loss(pace_of(scene, new).step_seconds, gaps[1])
    if any(a != b and (a.is_sticky or b.is_sticky) for a, b in zip(old, new, strict=True)):
        return after <= WORTH_IT_STICKY * before
    is_gentler = sum(wanted) < sum(controller.levels) and gaps[1] <= gaps[0]
    return after <= WORTH_IT * before or (is_gentler and after <= FREE * before)


def _switched(
    controller: Controller, levels: Levels, unit: int, occasion: str
) -> tuple[Controller, tuple[Switch, ...]]:
    """With these rungs from the next unit on, and a command for each way that changes."""
    scene, changed, switches = controller.believed(), list(controller.changed_at), []
    patience, given_more = list(controller.patience), list(controller.given_more)
    pace = pace_of(scene, [controller.rungs[level] for level in levels])
    for way, (old, new) in enumerate(zip(controller.levels, levels, strict=True)):
        if old == new:
            continue
        is_lighter = _is_lighter(scene, controller, way, new)
        if is_lighter and given_more[way] and unit + 1 - changed[way] <= 2 * patience[way]:
            patience[way] = min(MOST_DWELL, 2 * patience[way])
        given_more[way] = not is_lighter
        changed[way] = unit + 1
        rung = controller.rungs[new]
        why = f"{reason(scene, controller.rungs, levels, way, pace)}; {occasion}"
        ends = scene.ways[way]
        ratio = scene.ratio_of_all(way, rung)
        switches.append(Switch(unit + 1, ends.source, ends.target, rung.name, ratio, why))
    told = replace(
        controller,
        levels=levels,
        changed_at=tuple(changed),
        patience=tuple(patience),
        given_more=tuple(given_more),
    )
    return told, tuple(switches)


def _dwell(scene: Circumstances, controller: Controller, way: int, level: int) -> int:
    """Units for which a way keeps its rung before it takes that of `level`."""
    if controller.rung(way).is_sticky:
        return STICKY_DWELL
    return DWELL if _is_lighter(scene, controller, way, level) else controller.patience[way]


def _is_lighter(scene: Circumstances, controller: Controller, way: int, level: int) -> bool:
    """Whether the way would carry fewer bytes by the rung of `level` than it does."""
    return scene.wire_bytes(way, controller.rungs[level]) < scene.wire_bytes(way, controller.rung(way))


def _gentler(controller: Controller, way: int) -> int:
    """The next gentler rung of a way that really writes it gentler: by its loss, and by no fewer bytes."""
    now, scene = controller.rung(way), controller.circumstances
    activations, gradients, _ = scene.carried[way]
    for number in range(controller.levels[way] - 1, -1, -1):
        rung = controller.rungs[number]
        if rung.is_sticky or _is_lighter(scene, controller, way, number):
            continue
        if (activations.bytes and rung.activation != now.activation) or (
            gradients.bytes and rung.gradient != now.gradient
        ):
            return number
    return 0


def _costliest(controller: Controller) -> int | None:
    """The way whose rung loses most; of equals the one with the roughest."""
    ways = [way for way, level in enumerate(controller.levels) if level]
    return max(ways, key=lambda way: (controller.rung(way).loss_gap, controller.levels[way]), default=None)


def _moved(measured: WayMeasured, before: Belief, after: Belief) -> str:
    name = f"{measured.source} -> {measured.target}"
    return f"{name} carries {megabits(after.value)}, not {megabits(before.value)}"
