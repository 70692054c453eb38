"""What a cut must send to the next segment whatever the other cuts are: for lower bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.workload import Span, Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Certain:
    """At each position, [n + 1]: bytes forward and backward, and whether any value has a gradient."""

    forward: Floats
    backward: Floats
    joined: NDArray[np.bool_]


def certain_crossing(workload: Workload) -> Certain:
    """What goes from the segment before each position to the one after."""
    count = len(workload)
    forward, backward = np.zeros(count + 1), np.zeros(count + 1)
    joined = np.zeros(count + 1, dtype=bool)
    for span, sure in surely_crossed(workload, workload.spans):
        forward[sure] += span.bytes
        if span.gradient:
            backward[sure] += span.bytes
            joined[sure] = True
    return Certain(forward, backward, joined)


def surely_crossed(workload: Workload, spans: Sequence[Span]) -> Iterator[tuple[Span, NDArray[np.int64]]]:
    """Each of `spans` with the positions at which it goes from the segment before to the one after.

    A value that was made earlier may come from an earlier segment, past the one before the cut; one that is
    read later may go to a later segment. What counts is made within the shortest segment that can end at the
    position and read within the shortest that can begin there.
    """
    count = len(workload)
    legal = np.flatnonzero(workload.legal)
    owned = workload.owned
    starts = np.zeros(count + 1, dtype=np.int64)
    stops = np.full(count + 1, count, dtype=np.int64)
    for at in legal[1:-1].tolist():
        before, after = legal[owned[legal] < owned[at]], legal[owned[legal] > owned[at]]
        starts[at], stops[at] = before[-1] if len(before) else 0, after[0] if len(after) else count
    for span in spans:
        readers = np.array(span.readers)
        crossed = np.arange(span.made + 1, span.readers[-1] + 1)
        following = readers[np.searchsorted(readers, crossed)]
        yield span, crossed[(starts[crossed] <= span.made) & (following < stops[crossed])]
