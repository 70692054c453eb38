"""The user's limits for codecs, the rungs that they leave to each link, and notes about them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from farflung.errors import CodecError
from farflung.planner.codecs.codec_context import CodecContext
from farflung.planner.codecs.ladder import CostedRung, number_of
from farflung.planner.codecs.pace import Pace
from farflung.plans.wishes import MAX_LOSS_GAP
from farflung.text import format_rate, format_seconds

MOST_BOUNDARIES = 3
"""Stage boundaries over which every rung was measured (`codec/losses.json`)."""
MOST_NOISE = 1.25
"""Largest sum of the squares of the relative errors that gradients meet at more boundaries, if the job has
warm-up and clipping.

Errors of different boundaries are independent, so their squares add up. The most that was measured are 15
boundaries of axes100-dithered, 0.29 each: a GPT of 16 layers and a ResNet of 16 blocks learned over them as
without, on five seeds (docs/measurements/convergence.md, "Over many boundaries"). Not measured: more
boundaries, wide models, long runs.
"""
MOST_UNSTEADY_ERROR = 0.1
"""Largest error at each of more boundaries, if the job lacks warm-up or clipping: over seven a GPT learned
with 0.09 at each as it does without codecs, and stopped with 0.17 (docs/measurements/race.md)."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Limits:
    """Limits for the choice of codecs.

    Attributes
    ----------
    max_loss_gap
        Largest relative loss gap of the exported model on held-out data, over all links together.
    most_ratio
        Largest ratio of any codec.
    roughest
        The rung of the ladder that may write the fewest bytes; "" for no such limit.
    most_noise
        Largest relative error of any codec, as declared. The guard lowers it if a run stalls.
    is_steady
        Whether the job has warm-up and global clipping, with which models bear more noise.
    """

    max_loss_gap: float = MAX_LOSS_GAP
    most_ratio: float = math.inf
    roughest: str = ""
    most_noise: float = math.inf
    is_steady: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.max_loss_gap <= 1:
            raise CodecError(
                f"max_loss_gap must be between 0 and 1 (0.01 is one percent), found {self.max_loss_gap:g}"
            )
        if not self.most_ratio >= 1:
            raise CodecError(f"the most ratio must be at least 1, found {self.most_ratio:g}")

    def allows(self, rung: CostedRung, rungs: Sequence[CostedRung]) -> bool:
        """Whether a rung of the ladder is within these limits by itself."""
        if self.roughest and rung.ratio > rungs[number_of(self.roughest, rungs)].ratio:
            return False
        ratio = max(rung.activation.ratio, rung.gradient.ratio)
        return ratio <= self.most_ratio and rung.noise <= self.most_noise

    def words(self) -> str:
        """The limits as messages write them."""
        found = [f"{100 * self.max_loss_gap:.3g} % loss"]
        if self.most_ratio < math.inf:
            found.append(f"a ratio of {self.most_ratio:g}")
        if self.roughest:
            found.append(f"codec pair {self.roughest}")
        if self.most_noise < math.inf:
            found.append(f"an error of {100 * self.most_noise:.2g} %")
        return ", ".join(found)


def levels(
    context: CodecContext,
    rungs: Sequence[CostedRung],
    limits: Limits,
    ceilings: Sequence[int],
    movable: Collection[int],
) -> list[tuple[int, ...]]:
    """For each link, the numbers of the rungs that it may use, ascending; always with number 0.

    `ceilings` holds the roughest rung of each link. Links in `movable` may move to other workers and get no
    sticky rung. Rungs whose codecs take longer than sending dense are left out, and so are rungs too rough
    for long chains.
    """
    found = []
    for link in range(len(context.links)):
        pair = context.pairs[link]
        sticky = not any(other in movable for other in pair)
        ceiling = min(ceilings[other] for other in pair) if sticky else ceilings[link]
        usable = [
            number
            for number, rung in enumerate(rungs)
            if number
            and number <= (ceiling if rung.is_sticky else ceilings[link])
            and limits.allows(rung, rungs)
            and (sticky or not rung.is_sticky)
            and is_tried(context, link, rung, limits.is_steady)
            and _pays(context, link, rung, rungs[0])
        ]
        found.append((0, *usable))
    return found


def is_tried(context: CodecContext, link: int, rung: CostedRung, is_steady: bool) -> bool:
    """Whether gradients were shown to survive this rung at as many boundaries as they cross on this link."""
    count, error = context.boundaries[link], rung.gradient.usual_error
    if not context.carried[link].gradients.bytes or count <= MOST_BOUNDARIES:
        return True
    return count * error**2 <= MOST_NOISE + _ROUNDING if is_steady else error <= MOST_UNSTEADY_ERROR


def _pays(context: CodecContext, link: int, rung: CostedRung, dense: CostedRung) -> bool:
    """Whether encoding and decoding each take less time than sending dense."""
    return max(context.coding_seconds(link, rung)) < context.message_seconds(link, dense)


MOST_NOTES = 8
_HIDDEN = 1.05
"""A message counts as hidden if it takes at most this many times as long as the bottleneck."""


def reason(
    context: CodecContext, rungs: Sequence[CostedRung], chosen: Sequence[int], link: int, pace: Pace
) -> str:
    """A message that compares the link's time for a microbatch with the bottleneck's."""
    rung = rungs[chosen[link]]
    seconds = context.message_seconds(link, rung)
    before = context.message_seconds(link, rungs[0])
    takes = f"at {megabits(context.rate(link))} a microbatch takes {format_seconds(seconds)}"
    behind = f"{format_seconds(pace.bottleneck_seconds)} of {pace.bottleneck}"
    if seconds <= _HIDDEN * pace.bottleneck_seconds:
        hides = f"hides behind {behind}"
        if not chosen[link]:
            return f"{takes}: {hides}"
        return f"{takes} instead of {format_seconds(before)}: {hides}"
    return f"{takes} instead of {format_seconds(before)}, compared with {behind}"


def notes(
    context: CodecContext, rungs: Sequence[CostedRung], limits: Limits, chosen: Sequence[int]
) -> tuple[str, ...]:
    """Notes on links that take longer than computing a microbatch, the slowest first, with a remedy."""
    worker, computing = context.computing
    slow = [
        (context.message_seconds(link, rungs[number]), link)
        for link, number in enumerate(chosen)
        if context.message_seconds(link, rungs[number]) > _HIDDEN * computing
    ]
    slow.sort(reverse=True)
    found = [
        f"link {context.links[link].name} stays slow: {format_seconds(seconds)} a microbatch with "
        f"{rungs[chosen[link]].name}, where {worker} computes {format_seconds(computing)}; "
        + _cure(context, rungs, limits, chosen, link, computing)
        for seconds, link in slow[:MOST_NOTES]
    ]
    if len(slow) > MOST_NOTES:
        found.append(f"{len(slow) - MOST_NOTES} more links stay slow")
    return tuple(found)


def _cure(
    context: CodecContext,
    rungs: Sequence[CostedRung],
    limits: Limits,
    chosen: Sequence[int],
    link: int,
    computing: float,
) -> str:
    for number, rung in enumerate(rungs):
        if number > chosen[link] and context.message_seconds(link, rung) <= _HIDDEN * computing:
            why = _why_not(context, rungs, limits, chosen, link, number)
            return f"{rung.name} ({rung.ratio:.3g}x) would hide that, {why}"
    return "no codec pair on the ladder hides that"


def _why_not(
    context: CodecContext,
    rungs: Sequence[CostedRung],
    limits: Limits,
    chosen: Sequence[int],
    link: int,
    number: int,
) -> str:
    rung = rungs[number]
    links = context.pairs[link] if rung.is_sticky else (link,)
    wanted = [rungs[number if at in links else level] for at, level in enumerate(chosen)]
    gap = context.loss_gap(wanted)
    if not limits.allows(rung, rungs):
        return f"but exceeds the limit of {limits.words()}"
    if not is_tried(context, link, rung, limits.is_steady):
        where = f"gradients that cross {context.boundaries[link]} boundaries"
        return f"but is too rough for {where}" + (
            "" if limits.is_steady else " without warm-up and global clipping"
        )
    if gap > limits.max_loss_gap:
        return (
            f"but together with the other links costs {100 * gap:.2g} % loss: the limit is {limits.words()}"
        )
    return "but costs more steps than it saves time, or must not be used yet"


def megabits(bytes_per_second: float) -> str:
    """A rate as messages write it."""
    return format_rate(bytes_per_second * 8 / 1e6)
