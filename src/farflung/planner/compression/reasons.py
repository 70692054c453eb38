"""Why a way has its rung, and what those need that stay slow: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.planner.compression.circumstances import Circumstances
from farflung.planner.compression.limits import MOST_BOUNDARIES, Limits, is_tried
from farflung.planner.compression.pace import Pace
from farflung.planner.compression.rungs import CostedRung
from farflung.text import format_rate, format_seconds

MOST_NOTES = 8
_HIDDEN = 1.05
"""A message that takes so much longer than the bottleneck is hidden all the same."""


def reason(
    circumstances: Circumstances, rungs: Sequence[CostedRung], chosen: Sequence[int], way: int, pace: Pace
) -> str:
    """What the way carries for a microbatch with its rung, beside what the busiest resource does."""
    rung = rungs[chosen[way]]
    seconds = circumstances.message_seconds(way, rung)
    before = circumstances.message_seconds(way, rungs[0])
    takes = f"at {megabits(circumstances.rate(way))} a microbatch takes {format_seconds(seconds)}"
    behind = f"{format_seconds(pace.bottleneck_seconds)} of {pace.bottleneck}"
    if seconds <= _HIDDEN * pace.bottleneck_seconds:
        hides = f"hides behind {behind}"
        if not chosen[way]:
            return f"{takes}: {hides}"
        return f"{takes} in place of {format_seconds(before)}: {hides}"
    return f"{takes} in place of {format_seconds(before)}, beside {behind}"


def notes(
    circumstances: Circumstances, rungs: Sequence[CostedRung], limits: Limits, chosen: Sequence[int]
) -> tuple[str, ...]:
    """Ways whose messages take longer than to compute a microbatch, the slowest first, and their cure."""
    worker, computing = circumstances.computing
    slow = [
        (circumstances.message_seconds(way, rungs[number]), way)
        for way, number in enumerate(chosen)
        if circumstances.message_seconds(way, rungs[number]) > _HIDDEN * computing
    ]
    slow.sort(reverse=True)
    found = [
        f"link {circumstances.ways[way].name} stays slow: {format_seconds(seconds)} a microbatch with "
        f"{rungs[chosen[way]].name}, where {worker} computes {format_seconds(computing)}; "
        + _cure(circumstances, rungs, limits, chosen, way, computing)
        for seconds, way in slow[:MOST_NOTES]
    ]
    if len(slow) > MOST_NOTES:
        found.append(f"{len(slow) - MOST_NOTES} more links stay slow")
    return tuple(found)


def _cure(
    circumstances: Circumstances,
    rungs: Sequence[CostedRung],
    limits: Limits,
    chosen: Sequence[int],
    way: int,
    computing: float,
) -> str:
    for number, rung in enumerate(rungs):
        if number > chosen[way] and circumstances.message_seconds(way, rung) <= _HIDDEN * computing:
            why = _why_not(circumstances, rungs, limits, chosen, way, number)
            return f"to hide that it would need {rung.name} ({rung.ratio:.3g}x), {why}"
    return "no rung of the ladder hides that"


def _why_not(
    circumstances: Circumstances,
    rungs: Sequence[CostedRung],
    limits: Limits,
    chosen: Sequence[int],
    way: int,
    number: int,
) -> str:
    rung = rungs[number]
    ways = circumstances.pairs[way] if rung.is_sticky else (way,)
    wanted = [rungs[number if at in ways else level] for at, level in enumerate(chosen)]
    gap = circumstances.loss_gap(wanted)
    if not limits.allows(rung, rungs):
        return f"which the limit of {limits.words()} rules out"
    if not is_tried(circumstances, way, rung):
        return f"which is too rough for gradients that cross more than {MOST_BOUNDARIES} boundaries"
    if gap > limits.max_loss_gap:
        return f"which with the other links costs {100 * gap:.2g} % loss: the limit is {limits.words()}"
    return "which costs more steps than it saves time, or is held back"


def megabits(bytes_per_second: float) -> str:
    """Of payload, for people."""
    return format_rate(bytes_per_second * 8 / 1e6)
