"""Where a model with tied parameters may be cut, so that one worker runs all uses of each parameter.

Either no cut separates the uses, or the worker of the first segment also runs the last one (a loop), as for a
tied embedding and head.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from farflung.planner.cutting.positions import Positions
from farflung.planner.memoize import once
from farflung.workload import Workload

HEADS = 3

ROOMY = 3 / 4
"""If possible, at least one loop to try leaves this fraction of the work to other workers than its first."""


def positions_within_ties(workload: Workload, head: int = 0) -> NDArray[np.bool_]:
    """Legal positions that do not separate uses of a parameter; uses before `head` do not count."""
    legal = workload.legal.copy()
    for uses in workload.ties:
        later = [at for at in uses if at >= head]
        if not later:
            continue
        if len(later) < len(uses):
            legal[later[0] + 1 : -1] = False
        else:
            legal[later[0] + 1 : later[-1] + 1] = False
    return legal


@once
def straight(workload: Workload, parts: int) -> Positions:
    """Positions that do not separate uses of a parameter."""
    return Positions.of(workload, parts, positions_within_ties(workload))


@once
def loops(workload: Workload, parts: int) -> list[tuple[Positions, int, int]]:
    """For each loop to try, its positions and the indices of its first and last possible cut.

    The first cuts are the `HEADS` positions that the fewest bytes cross. Moving blocks from the first segment
    of a loop to its last changes nothing for other workers, so trying few heads loses little. If all of them
    leave little work to others (because they come late, after an encoder, say), the cheapest one that leaves
    enough is added.
    """
    found = []
    for head in _heads_to_try(workload):
        legal = positions_within_ties(workload, head)
        legal[1:head] = False
        positions = Positions.of(workload, parts, legal)
        positions = replace(positions, at=np.union1d(positions.at, [head]))
        index = np.searchsorted(positions.at, [head, last_cut(workload, head)], side="right") - 1
        found.append((positions, int(index[0]), int(index[1])))
    return found


def _heads_to_try(workload: Workload) -> list[int]:
    def is_roomy(head: int) -> bool:
        between = workload.work[last_cut(workload, head)] - workload.work[head]
        return bool(between >= ROOMY * workload.work[-1])

    heads = _heads(workload)
    heads_to_try = heads[:HEADS]
    if any(is_roomy(head) for head in heads_to_try):
        return heads_to_try
    return heads_to_try + [head for head in heads if is_roomy(head)][:1]


def _heads(workload: Workload) -> list[int]:
    """Positions where the first segment of a loop may end, those that the fewest bytes cross first."""
    crossing = workload.crossing_forward + workload.crossing_backward

    def key(head: int) -> tuple[float, float]:
        return float(crossing[head]), float(workload.work[head] - workload.work[last_cut(workload, head)])

    return sorted((head for head in range(1, len(workload)) if _may_end(workload, head)), key=key)


def _may_end(workload: Workload, head: int) -> bool:
    is_split = any(uses[0] < head <= uses[-1] for uses in workload.ties)
    return is_split and last_cut(workload, head) > head and bool(positions_within_ties(workload, head)[head])


def last_cut(workload: Workload, head: int) -> int:
    """The last position for a cut if the first segment ends at `head`: the next use of its parameters."""
    later = [next(at for at in uses if at >= head) for uses in workload.ties if uses[0] < head <= uses[-1]]
    return min(later, default=len(workload))
