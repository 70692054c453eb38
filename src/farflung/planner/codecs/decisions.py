"""What a controller makes of an event: rungs are decided anew as a run shows what its links are like. Pure.

What was measured goes in (events), what is to change comes out (commands); no clock, no I/O, so a history of
events gives the same decisions again. A change of rate is answered within ten units: three to
believe it (`rate_filter.py`), at most five more for a link that has changed just before. Nothing oscillates:
rates move only when samples agree, and a choice only when it is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

from farflung.planner.codecs.auto import FREE, Levels, choose, seconds_to_loss
from farflung.planner.codecs.codec_context import Circumstances
from farflung.planner.codecs.controller import (
    DWELL,
    CodecsSampled,
    Controller,
    Event,
    Relax,
    Switch,
    UnitMeasured,
    WayMeasured,
)
from farflung.planner.codecs.limits import megabits, reason
from farflung.planner.codecs.pace import pace_of
from farflung.planner.codecs.rate_filter import Belief
from farflung.text import and_more

MOST_DWELL = 160
"""A way that was given more bytes and soon fewer again waits twice as long, and so on, before it tries."""
STICKY_DWELL = 50
"""The same of a rung to which the model has begun to adapt."""
WORTH_IT = 0.97
"""A change must bring time to the same loss down to this share."""
WORTH_IT_STICKY = 0.9
"""One that takes or leaves a rung to which the model adapts, down to this."""


def decided(controller: Controller, unit: int, occasion: str) -> tuple[Controller, tuple[Switch, ...]]:
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
    told = replace(controller, due="what was waiting may change now" if waits else "")
    if not _is_worth_it(controller, scene, tuple(wanted)):
        return told, ()
    return switched(told, tuple(wanted), unit, occasion)


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


def switched(
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


def gentler(controller: Controller, way: int) -> int:
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


def costliest(controller: Controller) -> int | None:
    """The way whose rung loses most; of equals the one with the roughest."""
    ways = [way for way, level in enumerate(controller.levels) if level]
    return max(ways, key=lambda way: (controller.rung(way).loss_gap, controller.levels[way]), default=None)


_MOST_SWELLING = 100.0
_TOLD = 3
_SAMPLED = "codecs were tried on this job's own tensors"


def heard(controller: Controller, event: Event) -> tuple[Controller, tuple[Switch, ...]]:
    """The controller after an event, and what is to change; what names no way of it changes nothing."""
    return _heard(event, controller)


@singledispatch
def _heard(event: object, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    raise TypeError(f"not an event: {event!r}")


@_heard.register
def _on_unit_measured(event: UnitMeasured, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
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
def _on_codecs_sampled(event: CodecsSampled, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    sampled, due = dict(controller.circumstances.sampled), controller.due
    names = [{rung.codec(gradient) for rung in controller.rungs[1:]} for gradient in (False, True)]
    for link in event.samples:
        way, one = controller.way(link.source, link.target), link.sample
        makes_sense = 1 <= one.ratio < math.inf and 0 <= one.error < math.inf
        if way is None or one.codec not in names[one.gradient] or not makes_sense:
            continue
        key = (way, one.codec, one.gradient)
        # The first of what is in use count at the next unit; others when something else asks for a decision.
        if controller.levels[way] and controller.rung(way).codec(one.gradient) == one.codec:
            due = due if key in sampled else _SAMPLED
        sampled[key] = one
    circumstances = replace(controller.circumstances, sampled=sampled)
    return replace(controller, circumstances=circumstances, due=due), ()


@_heard.register
def _on_relax(event: Relax, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
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
    return and_more(moved, _TOLD, "; ", "; and ")


def _is_rate(measured: float) -> bool:
    return 0 < measured < math.inf


def _moved(measured: WayMeasured, before: Belief, after: Belief) -> str:
    name = f"{measured.source} -> {measured.target}"
    return f"{name} carries {megabits(after.value)}, not {megabits(before.value)}"
