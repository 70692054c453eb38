"""When a way changes its rung: not too soon after the last time, and only if it is worth it. Pure."""

from __future__ import annotations

from dataclasses import replace

from farflung.planner.compression.auto import FREE, Levels, choose, seconds_to_loss
from farflung.planner.compression.circumstances import Circumstances
from farflung.planner.compression.controller import DWELL, Controller
from farflung.planner.compression.events import Switch
from farflung.planner.compression.pace import pace_of
from farflung.planner.compression.reasons import reason

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
