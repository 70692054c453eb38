"""How the controller reacts to events: it chooses rungs again as a run measures its links. Pure.

Measurements go in as events, changes come out as commands. There is no clock and no I/O, so the same history
of events gives the same decisions. The controller answers a change of rate within ten units: three to confirm
it (`rate_filter.py`), and at most five more for a link that changed just before. Nothing oscillates: rates
move only if samples agree, and choices only if that is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

from farflung.planner.codecs.auto import FREE, Levels, choose, seconds_to_loss
from farflung.planner.codecs.codec_context import CodecContext
from farflung.planner.codecs.controller import (
    DWELL,
    PROBE_NOISE,
    BeginProbe,
    CodecsSampled,
    Controller,
    EndProbe,
    Event,
    LinkMeasured,
    Relax,
    Switch,
    UnitMeasured,
)
from farflung.planner.codecs.limits import megabits, reason
from farflung.planner.codecs.pace import pace_of
from farflung.planner.codecs.rate_filter import RateFilter
from farflung.text import and_more

MOST_DWELL = 160
"""A link that gets more bytes and soon fewer again doubles its dwell time, up to this many units."""
STICKY_DWELL = 50
"""Units for which a link keeps a rung to which the model adapts."""
WORTH_IT = 0.97
"""A change must reduce the time to the same loss to this share."""
WORTH_IT_STICKY = 0.9
"""A change to or from a sticky rung must reduce it to this share."""


def decide(controller: Controller, unit: int, occasion: str) -> tuple[Controller, tuple[Switch, ...]]:
    """Choose rungs again; links that must not change yet are decided again after the next units."""
    context = controller.estimated()
    choice = choose(context, controller.rungs, controller.limits, controller.ceilings, controller.movable)
    wanted = list(choice.levels)
    waits = False
    for link, level in enumerate(choice.levels):
        since = unit + 1 - controller.changed_at[link]
        if level != controller.levels[link] and since < _dwell(context, controller, link, level):
            waits = True
            for other in context.pairs[link]:
                wanted[other] = controller.levels[other]
    updated = replace(controller, due="a change that had to wait is possible now" if waits else "")
    if not _is_worth_it(controller, context, tuple(wanted)):
        return updated, ()
    return switch_levels(updated, tuple(wanted), unit, occasion)


def _is_worth_it(controller: Controller, context: CodecContext, wanted: Levels) -> bool:
    if wanted == controller.levels:
        return False
    if controller.is_too_rough:
        return True
    old, new = ([controller.rungs[level] for level in levels] for levels in (controller.levels, wanted))
    gaps = context.loss_gap(old), context.loss_gap(new)
    if max(gaps) > controller.limits.max_loss_gap + 1e-12:
        return gaps[1] < gaps[0]  # regardless of time
    before = seconds_to_loss(pace_of(context, old).step_seconds, gaps[0])
    after = seconds_to_loss(pace_of(context, new).step_seconds, gaps[1])
    if any(a != b and (a.is_sticky or b.is_sticky) for a, b in zip(old, new, strict=True)):
        return after <= WORTH_IT_STICKY * before
    is_gentler = sum(wanted) < sum(controller.levels) and gaps[1] <= gaps[0]
    return after <= WORTH_IT * before or (is_gentler and after <= FREE * before)


def switch_levels(
    controller: Controller, levels: Levels, unit: int, occasion: str
) -> tuple[Controller, tuple[Switch, ...]]:
    """Use these rungs from the next unit on; returns a command for each link that changes."""
    context, changed, switches = controller.estimated(), list(controller.changed_at), []
    patience, got_gentler = list(controller.patience), list(controller.got_gentler)
    pace = pace_of(context, [controller.rungs[level] for level in levels])
    for link, (old, new) in enumerate(zip(controller.levels, levels, strict=True)):
        if old == new:
            continue
        is_lighter = _is_lighter(context, controller, link, new)
        if is_lighter and got_gentler[link] and unit + 1 - changed[link] <= 2 * patience[link]:
            patience[link] = min(MOST_DWELL, 2 * patience[link])
        got_gentler[link] = not is_lighter
        changed[link] = unit + 1
        rung = controller.rungs[new]
        why = f"{reason(context, controller.rungs, levels, link, pace)}; {occasion}"
        ends = context.links[link]
        ratio = context.ratio_of_all(link, rung)
        switches.append(Switch(unit + 1, ends.source, ends.target, rung.name, ratio, why))
    updated = replace(
        controller,
        levels=levels,
        changed_at=tuple(changed),
        patience=tuple(patience),
        got_gentler=tuple(got_gentler),
    )
    return updated, tuple(switches)


def _dwell(context: CodecContext, controller: Controller, link: int, level: int) -> int:
    """Units for which a link keeps its rung before it may change to that of `level`."""
    if controller.rung(link).is_sticky:
        return STICKY_DWELL
    return DWELL if _is_lighter(context, controller, link, level) else controller.patience[link]


def _is_lighter(context: CodecContext, controller: Controller, link: int, level: int) -> bool:
    """Whether the link would carry fewer bytes with the rung of `level` than now."""
    return context.wire_bytes(link, controller.rungs[level]) < context.wire_bytes(link, controller.rung(link))


def gentler(controller: Controller, link: int) -> int:
    """The next gentler rung that loses less on this link and writes no fewer bytes."""
    now, context = controller.rung(link), controller.context
    activations, gradients, _ = context.carried[link]
    for number in range(controller.levels[link] - 1, -1, -1):
        rung = controller.rungs[number]
        if rung.is_sticky or not controller.limits.allows(rung, controller.rungs):
            continue
        if _is_lighter(context, controller, link, number):
            continue
        if (activations.bytes and rung.activation != now.activation) or (
            gradients.bytes and rung.gradient != now.gradient
        ):
            return number
    return 0


def costliest(controller: Controller) -> int | None:
    """The link whose rung loses the most; among equals, the one with the roughest rung."""
    links = [link for link, level in enumerate(controller.levels) if level]
    return max(
        links, key=lambda link: (controller.rung(link).loss_gap, controller.levels[link]), default=None
    )


_MOST_SWELLING = 100.0
_MOST_NAMED = 3
_SAMPLED = "codecs were tried on this job's own tensors"


def on_event(controller: Controller, event: Event) -> tuple[Controller, tuple[Switch, ...]]:
    """The controller after an event, and the changes to make; events on unknown links change nothing."""
    return _on_event(event, controller)


@singledispatch
def _on_event(event: object, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    raise TypeError(f"not an event: {event!r}")


@_on_event.register
def _on_unit_measured(event: UnitMeasured, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    rates, moved = list(controller.rates), []
    for measured in event.links:
        link = controller.link(measured.source, measured.target)
        rate = measured.bytes_per_second
        if link is None or rate is None or not _is_rate(rate):
            continue
        before, rates[link] = rates[link], rates[link].update(rate)
        if rates[link].value != before.value:
            moved.append(_moved(measured, before, rates[link]))
    computing = dict(controller.computing)
    expected = controller.context.worker_seconds
    for worker, seconds in event.computing.items():
        if worker in computing and expected[worker] > 0 and _is_rate(seconds):
            before, computing[worker] = (
                computing[worker],
                computing[worker].update(seconds / expected[worker]),
            )
            if computing[worker].value != before.value:
                moved.append(
                    f"{worker} takes {computing[worker].value:.3g} times as long to compute as planned"
                )
    swelling, swollen = _swelling(controller, event)
    moved.extend(swollen)
    updated = replace(controller, rates=tuple(rates), computing=computing, swelling=swelling)
    if not moved and not updated.due:
        return updated, ()
    return decide(updated, event.unit, _occasion(moved) or updated.due)


@_on_event.register
def _on_codecs_sampled(event: CodecsSampled, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    sampled, due = dict(controller.context.sampled), controller.due
    names = [{rung.codec(gradient) for rung in controller.rungs[1:]} for gradient in (False, True)]
    for entry in event.samples:
        link, one = controller.link(entry.source, entry.target), entry.sample
        makes_sense = 1 <= one.ratio < math.inf and 0 <= one.error < math.inf
        if link is None or one.codec not in names[one.gradient] or not makes_sense:
            continue
        key = (link, one.codec, one.gradient)
        # The first samples of a codec in use ask for a decision; others count when one is made anyway.
        if controller.levels[link] and controller.rung(link).codec(one.gradient) == one.codec:
            due = due if key in sampled else _SAMPLED
        sampled[key] = one
    context = replace(controller.context, sampled=sampled)
    return replace(controller, context=context, due=due), ()


@_on_event.register
def _on_relax(event: Relax, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    link = controller.link(event.source, event.target) if event.source else costliest(controller)
    if link is None or not controller.levels[link]:
        return controller, ()
    ceilings, levels = list(controller.ceilings), list(controller.levels)
    for other in controller.context.pairs[link] if controller.rung(link).is_sticky else (link,):
        levels[other] = gentler(controller, other)
        ceilings[other] = min(ceilings[other], levels[other])
    updated = replace(controller, ceilings=tuple(ceilings))
    return switch_levels(updated, tuple(levels), event.unit, event.why)


@_on_event.register
def _on_begin_probe(event: BeginProbe, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    if controller.unprobed is not None or controller.noise <= PROBE_NOISE or controller.is_sticky:
        return controller, ()
    limits = replace(controller.limits, most_noise=PROBE_NOISE)
    updated = replace(controller, limits=limits, unprobed=(controller.levels, controller.limits))
    return _choose_all(updated, event.unit, event.why)


@_on_event.register
def _on_end_probe(event: EndProbe, controller: Controller) -> tuple[Controller, tuple[Switch, ...]]:
    if controller.unprobed is None:
        return controller, ()
    levels, limits = controller.unprobed
    if not event.stalled:
        # What the guard relaxed meanwhile stays relaxed.
        levels = tuple(min(each) for each in zip(levels, controller.ceilings, strict=True))
        return switch_levels(replace(controller, limits=limits, unprobed=None), levels, event.unit, event.why)
    used = max(controller.rungs[level].noise for level in levels)
    finer = max(rung.noise for rung in controller.rungs if rung.noise < used)
    updated = replace(controller, limits=replace(limits, most_noise=finer), unprobed=None)
    return _choose_all(updated, event.unit, event.why)


def _choose_all(controller: Controller, unit: int, occasion: str) -> tuple[Controller, tuple[Switch, ...]]:
    """Choose all rungs again at once, within limits that are new."""
    context = controller.estimated()
    choice = choose(context, controller.rungs, controller.limits, controller.ceilings, controller.movable)
    return switch_levels(controller, choice.levels, unit, occasion)


def _swelling(
    controller: Controller, event: UnitMeasured
) -> tuple[dict[tuple[int, str], RateFilter], list[str]]:
    """The estimates of the bytes that rungs write after a step, and messages on those that changed."""
    context, found, moved = controller.context, dict(controller.swelling), []
    for written in event.written:
        link = controller.link(written.source, written.target)
        rung = next((one for one in controller.rungs[1:] if one.name == written.rung), None)
        if link is None or rung is None or not context.microbatches[link]:
            continue
        each = written.payload_bytes / context.microbatches[link]
        swelling = context.swelling_of(link, rung, each)
        if swelling is None or not 1 / _MOST_SWELLING <= swelling <= _MOST_SWELLING:
            continue
        key = (link, rung.name)
        before = found.get(key, RateFilter(1.0))
        found[key] = before.update(swelling)
        if found[key].value != before.value:
            ratio = context.carried[link].fp32_bytes / each
            moved.append(f"{context.links[link].name} becomes {ratio:.3g} times smaller with {rung.name}")
    return found, moved


def _occasion(moved: Sequence[str]) -> str:
    """A message that lists the first of the changes; empty if there are none."""
    return and_more(moved, _MOST_NAMED, "; ", "; and ")


def _is_rate(measured: float) -> bool:
    return 0 < measured < math.inf


def _moved(measured: LinkMeasured, before: RateFilter, after: RateFilter) -> str:
    name = f"{measured.source} -> {measured.target}"
    return f"{name} carries {megabits(after.value)}, not {megabits(before.value)}"
