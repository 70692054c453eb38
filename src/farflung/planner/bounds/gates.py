"""Gates: operators that all other work of a model precedes or follows, in every plan.

An operator with work is a *gate* if every other operator with work is among its ancestors or descendants.
In a chain of layers, with or without residual connections, every matrix product is one. In every plan a
microbatch passes the gates one after the other, forward and then backward; the lower bounds use that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.workload import BACKWARD_FACTOR, Span, Workload

Floats = NDArray[np.float64]

LEAST = 1e-4  # of a model's work: less counts as no work (such as statistics of a norm)


@dataclass(frozen=True)
class Block:
    """The work after one gate, up to and including the next one.

    Parameters
    ----------
    start, stop
        Nodes: the gate before (-1 for none) and the gate that ends the block.
    work
        Operations, forward and backward, of one microbatch.
    longest
        Operations on the longest path through the block, which must follow one another.
    least
        Operations on every path through the block: those of the gate that ends it, if one does.
    workers
        The number of operators with work; at most this many workers can share the block.
    forward_bytes, backward_bytes
        The least bytes that cross, forward and backward, if a worker has work here and another one ran the
        gate before: the smallest value on any path from that gate into the block. 0 for the first block.
    """

    start: int
    stop: int
    work: float
    longest: float
    least: float
    workers: int
    forward_bytes: float
    backward_bytes: float


def blocks_of(workload: Workload) -> tuple[Block, ...]:
    """The blocks of a workload in order; work after the last gate belongs to the last block."""
    working = np.flatnonzero(workload.flops > LEAST * workload.flops.sum()).tolist()
    gates = _gates(workload, working)
    if not working:
        return ()
    ends = gates
    if not gates or gates[-1] != working[-1]:
        ends = [*gates, working[-1]]  # ends the last block without being a gate
    blocks, start = [], -1
    for stop in ends:
        inside = [at for at in working if start < at <= stop]
        work = float(workload.flops[inside].sum()) * (1 + BACKWARD_FACTOR)
        longest = longest_path(workload, start + 1, stop + 1)
        least = float(workload.flops[stop]) * (1 + BACKWARD_FACTOR) if stop in gates else 0.0
        crossing = _smallest(workload, start, stop, inside)
        blocks.append(Block(start, stop, work, longest, least, len(inside), *crossing))
        start = stop
    return tuple(blocks)


def longest_path(workload: Workload, start: int, stop: int) -> float:
    """Operations on the longest path through the nodes from `start` up to `stop`."""
    return float(longest_paths_to(workload, start, stop).max(initial=0.0))


def longest_paths_to(workload: Workload, start: int, stop: int) -> Floats:
    """For each node from `start` up to `stop`, the operations on the longest path that ends there."""
    own = workload.flops[start:stop] * (1 + BACKWARD_FACTOR)
    before = np.zeros(stop - start)
    for span in sorted(workload.spans, key=lambda span: span.made):
        if not start <= span.made < stop:
            continue
        reached = before[span.made - start] + own[span.made - start]
        for reader in span.readers:
            if reader < stop:
                before[reader - start] = max(before[reader - start], reached)
    return np.asarray(before + own)


def longest_paths_from(workload: Workload, start: int, stop: int) -> Floats:
    """For each node from `start` up to `stop`, the operations on the longest path that begins there."""
    own = workload.flops[start:stop] * (1 + BACKWARD_FACTOR)
    after = np.zeros(stop - start)
    for span in sorted(workload.spans, key=lambda span: -span.made):
        inside = [reader - start for reader in span.readers if reader < stop]
        if start <= span.made < stop and inside:
            after[span.made - start] = max(after[span.made - start], float((after + own)[inside].max()))
    return np.asarray(after + own)


def _gates(workload: Workload, working: list[int]) -> list[int]:
    number = {at: n for n, at in enumerate(working)}
    after = [0] * len(workload)  # bit sets of descendants with work
    readers: dict[int, list[int]] = {}
    for span in workload.spans:
        readers.setdefault(span.made, []).extend(span.readers)
    for at in range(len(workload) - 1, -1, -1):
        for reader in readers.get(at, ()):
            after[at] |= after[reader] | (1 << number[reader] if reader in number else 0)
    before = [0] * len(working)
    for at in working:
        descendants = after[at]
        while descendants:
            low = descendants & -descendants
            before[low.bit_length() - 1] += 1
            descendants ^= low
    return [at for n, at in enumerate(working) if after[at].bit_count() + before[n] == len(working) - 1]


def _smallest(workload: Workload, start: int, stop: int, inside: Sequence[int]) -> tuple[float, float]:
    """The bytes of the smallest value on any path from the node `start` to work `inside` its block, and of
    its gradient.

    Values made off those paths (a position embedding, for example) need not cross a cut between them.
    """
    if start < 0:
        return 0.0, 0.0
    spans = sorted((s for s in workload.spans if start <= s.made < stop), key=lambda span: span.made)
    after, before = {start}, set(inside)
    for span in spans:
        if span.made in after:
            after.update(span.readers)
    for span in reversed(spans):
        if before.intersection(span.readers):
            before.add(span.made)
    between = [s for s in spans if s.made in after and before.intersection(s.readers)]
    forward = min((s.bytes for s in between), default=0)
    backward = min((s.bytes if s.gradient else 0 for s in between), default=0)
    return float(forward), float(backward)


@dataclass(frozen=True)
class Certain:
    """What surely crosses at each position, [n + 1]: bytes each way, and whether there is a gradient."""

    forward: Floats
    backward: Floats
    has_gradient: NDArray[np.bool_]


def certain_crossing(workload: Workload) -> Certain:
    """What surely crosses from the segment before each position to the one after."""
    count = len(workload)
    forward, backward = np.zeros(count + 1), np.zeros(count + 1)
    has_gradient = np.zeros(count + 1, dtype=bool)
    for span, sure in surely_crossed(workload, workload.spans):
        forward[sure] += span.bytes
        if span.gradient:
            backward[sure] += span.bytes
            has_gradient[sure] = True
    return Certain(forward, backward, has_gradient)


def surely_crossed(workload: Workload, spans: Sequence[Span]) -> Iterator[tuple[Span, NDArray[np.int64]]]:
    """Each of `spans` with the positions at which it surely goes from the segment before to the one after.

    A value made earlier may come from an earlier segment than the one before the cut, and one read later may
    go to a later segment. Only values count that are made in the shortest segment that can end at the
    position and read in the shortest that can begin there.
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
