"""Parameters with several uses: where a model may be cut so that one worker runs them all.

Either no cut parts them, or the worker of the first segment runs the last one too (a loop), as for a tied
embedding and head.
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
"""Of all work, what at least one loop that is tried leaves to others than its first worker, if one does."""


def kept_together(workload: Workload, head: int = 0) -> NDArray[np.bool_]:
    """Legal positions that part no two uses of a parameter, where uses before `head` do not count."""
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
    """Positions that part no two uses of a parameter."""
    return Positions.of(workload, parts, kept_together(workload))


@once
def loops(workload: Workload, parts: int) -> list[tuple[Positions, int, int]]:
    """For each loop worth trying its positions, and the indices of its first and last possible cut.

    The first cuts are the `HEADS` that the fewest bytes cross. Blocks that go from the first segment of a
    loop to its last one change nothing for the others, so little is lost by trying few. Where all of
    these leave little to share (they come late, behind an encoder, say), the cheapest that does not is added.
    """
    found = []
    for head in _tried(workload):
        legal = kept_together(workload, head)
        legal[1:head] = False
        positions = Positions.of(workload, parts, legal)
        positions = replace(positions, at=np.union1d(positions.at, [head]))
        index = np.searchsorted(positions.at, [head, _last_cut(workload, head)], side="right") - 1
        found.append((positions, int(index[0]), int(index[1])))
    return found


def _tried(workload: Workload) -> list[int]:
    def is_roomy(head: int) -> bool:
        between = workload.work[_last_cut(workload, head)] - workload.work[head]
        return bool(between >= ROOMY * workload.work[-1])

    heads = _heads(workload)
    tried = heads[:HEADS]
    if any(is_roomy(head) for head in tried):
        return tried
    return tried + [head for head in heads if is_roomy(head)][:1]


def _heads(workload: Workload) -> list[int]:
    """Where the first segment of a loop may end, those that the fewest bytes cross first."""
    crossing = workload.crossing_forward + workload.crossing_backward

    def key(head: int) -> tuple[float, float]:
        return float(crossing[head]), float(workload.work[head] - workload.work[_last_cut(workload, head)])

    return sorted((head for head in range(1, len(workload)) if _may_end(workload, head)), key=key)


def _may_end(workload: Workload, head: int) -> bool:
    parted = any(uses[0] < head <= uses[-1] for uses in workload.ties)
    return parted and _last_cut(workload, head) > head and bool(kept_together(workload, head)[head])


def _last_cut(workload: Workload, head: int) -> int:
    """The last position for a cut if the first segment ends at `head`: the next use of what it uses."""
    later = [next(at for at in uses if at >= head) for uses in workload.ties if uses[0] < head <= uses[-1]]
    return min(later, default=len(workload))
