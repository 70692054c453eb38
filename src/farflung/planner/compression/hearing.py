"""What a controller makes of an event: rungs are decided anew as a run shows what its links are like. Pure.

What was measured goes in (events), what is to change comes out (commands); no clock, no I/O, so a history of
events gives the same decisions again. A change of rate is answered within ten units: three to believe it
(`belief.py`), at most five more for a way that has changed just before. Nothing oscillates, for rates move
only when samples agree, and a choice only when it is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

from farflung.planner.compression.belief import Belief
from farflung.planner.compression.circumstances import Sampled
from farflung.planner.compression.controller import Controller
from farflung.planner.compression.events import (
    CodecsSampled,
    Event,
    Relax,
    Switch,
    UnitMeasured,
    WayMeasured,
)
from farflung.planner.compression.reasons import megabits
from farflung.planner.compression.switching import costliest, decided, gentler, switched
from farflung.text import and_more

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
