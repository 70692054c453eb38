"""How far a user lets codecs go, and which rungs that leaves to each way."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from farflung.errors import CodecError
from farflung.planner.compression.circumstances import Circumstances
from farflung.planner.compression.rungs import CostedRung, number_of
from farflung.plans.wishes import MAX_LOSS_GAP

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
