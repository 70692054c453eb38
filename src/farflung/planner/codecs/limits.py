"""How far a user lets codecs go, which codec pairs that leaves to each link, and the notes that say so."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from farflung.errors import CodecError
from farflung.planner.codecs.codec_context import Circumstances
from farflung.planner.codecs.ladder import CostedRung, number_of
from farflung.planner.codecs.pace import Pace
from farflung.plans.wishes import MAX_LOSS_GAP
from farflung.text import format_rate, format_seconds

MOST_BOUNDARIES = 3
"""Of the chains on which losses of rungs were measured (`codec/losses.json`)."""
MOST_NOISE = 0.1
"""Relative error of gradients that cross more of them: over seven boundaries a GPT learned with 0.09 at each
as it does without, and with 0.17 it stopped (docs/measurements/race.md, "With codecs")."""


@dataclass(frozen=True)
class Limits:
    """What nothing may exceed.

    Attributes
    ----------
    max_loss_gap
        Relative, of the exported model on held-out data, all links together.
    most_ratio
        Of the bytes of a tensor over its bytes on the wire, for any codec.
    roughest
        The rung of the ladder that may write fewest bytes; "" for no such limit.
    """

    max_loss_gap: float = MAX_LOSS_GAP
    most_ratio: float = math.inf
    roughest: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.max_loss_gap <= 1:
            raise CodecError(
                f"max_loss_gap must be between 0 and 1 (0.01 is one percent), found {self.max_loss_gap:g}"
            )
        if not self.most_ratio >= 1:
            raise CodecError(f"the most ratio must be at least 1, found {self.most_ratio:g}")

    def allows(self, rung: CostedRung, rungs: Sequence[CostedRung]) -> bool:
        """Whether a rung of the ladder is not too rough on its own."""
        if self.roughest and rung.ratio > rungs[number_of(self.roughest, rungs)].ratio:
            return False
        return max(rung.activation.ratio, rung.gradient.ratio) <= self.most_ratio

    def words(self) -> str:
        """What limits there are."""
        found = [f"{100 * self.max_loss_gap:.3g} % loss"]
        if self.most_ratio < math.inf:
            found.append(f"a ratio of {self.most_ratio:g}")
        if self.roughest:
            found.append(f"rung {self.roughest}")
        return ", ".join(found)


def levels(
    circumstances: Circumstances,
    rungs: Sequence[CostedRung],
    limits: Limits,
    ceilings: Sequence[int],
    movable: Collection[int],
) -> list[tuple[int, ...]]:
    """For each way the numbers of the rungs that it may take, ascending; number 0 always.

    `ceilings` are the roughest that each way may take, `movable` ways that the planner may move: no rung
    there to which the model adapts. A rung whose codecs are slower than the dense way is of no use, and none
    is taken that long chains were not seen to learn with.
    """
    found = []
    for way in range(len(circumstances.ways)):
        pair = circumstances.pairs[way]
        sticky = not any(other in movable for other in pair)
        ceiling = min(ceilings[other] for other in pair) if sticky else ceilings[way]
        usable = [
            number
            for number, rung in enumerate(rungs)
            if number
            and number <= (ceiling if rung.is_sticky else ceilings[way])
            and limits.allows(rung, rungs)
            and (sticky or not rung.is_sticky)
            and is_tried(circumstances, way, rung)
            and _pays(circumstances, way, rung, rungs[0])
        ]
        found.append((0, *usable))
    return found


def is_tried(circumstances: Circumstances, way: int, rung: CostedRung) -> bool:
    """Whether gradients that are written so may cross as many boundaries as they do on a way."""
    return (
        not circumstances.carried[way].gradients.bytes
        or circumstances.boundaries[way] <= MOST_BOUNDARIES
        or rung.gradient.usual_error <= MOST_NOISE
    )


def _pays(circumstances: Circumstances, way: int, rung: CostedRung, dense: CostedRung) -> bool:
    """Whether neither writing nor reading takes longer than the way would take without a codec."""
    return max(circumstances.coding_seconds(way, rung)) < circumstances.message_seconds(way, dense)


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
