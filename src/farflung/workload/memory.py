"""What a range of a workload's nodes needs in memory as a segment: `runtime.footprint`, of all ranges."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.workload.arrays import Floats, before
from farflung.workload.touched import Touched

if TYPE_CHECKING:
    from farflung.workload.workload import Workload

_MOST_KEPT = 1 << 22  # numbers that are remembered


class Needs(NamedTuple):
    """Bytes of the ranges from every start below one stop up to it: float64 [stop] each.

    `fixed` whatever the window is, `waiting` for each microbatch in flight that has run, `came` for what came
    in of each.
    """

    fixed: Floats
    waiting: Floats
    came: Floats


class Memory:
    """Of one workload."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._kept: dict[int, Needs] = {}
        self._state, self._made, self._came = _touched(workload)
        self._returned, self._summed = _pending(workload)
        live = workload.live
        tape, self._left = before(workload.tape_bytes), before(live.left)
        # While node i runs, of a range that begins at a node s: all that was put on the tape since, tape[i] -
        # tape[s], what is beside it, and what is left of the nodes after it.
        self._tape, on_tape, left = tape, tape[1:], self._left[1:]
        self._forward = on_tape + live.forward
        self._whole = on_tape + live.node, on_tape + live.returning
        self._split = on_tape - left + live.node, on_tape - left + live.returning

    def up_to(self, stop: int) -> Needs:
        """Of the ranges that end before the node `stop`."""
        needs = self._kept.get(stop)
        if needs is None:
            if len(self._kept) * len(self._workload) > _MOST_KEPT:
                self._kept.clear()
            needs = self._kept[stop] = self._up_to(stop)
        return needs

    def _up_to(self, stop: int) -> Needs:
        workload, row = self._workload, slice(0, stop)
        state, made, came = (each.up_to(stop) for each in (self._state, self._made, self._came))
        left = self._left[stop] - self._left[row]
        # A segment to which no gradient is asked of makes those of parameters on the way, when all has come.
        passing = self._returned.passing_up_to(stop)
        whole = workload.crossing_backward[row] == passing
        waiting = np.where(whole, made + workload.crossing_backward[stop], np.maximum(made, left))
        passing = passing + self._summed.passing_up_to(stop)
        back = np.where(
            whole, _back(self._whole, stop, passing), _back(self._split, stop, passing) + self._left[stop]
        )
        sent = np.maximum(made - (self._tape[stop] - self._tape[row]), 0.0)  # on the tape as it is sent
        running = np.maximum(_most_after(self._forward[row]), back) - self._tape[row] + sent
        ending = np.maximum(
            2 * _most_after(workload.trainable_bytes[row]), _sum_after(workload.state_bytes[row])
        )
        most = np.maximum(np.maximum(running, waiting), ending - came)
        return Needs(state + most - waiting, waiting, came)


def _back(peaks: tuple[Floats, Floats], stop: int, passing: Floats) -> Floats:
    node, returning = (_most_after(each[:stop]) for each in peaks)
    return np.asarray(np.maximum(node, returning - passing))


def _most_after(values: Floats) -> Floats:
    """The largest of each value and those after it."""
    return np.asarray(np.maximum.accumulate(values[::-1])[::-1])


def _sum_after(values: Floats) -> Floats:
    """The sum of each value and those after it."""
    return np.asarray(np.cumsum(values[::-1])[::-1])


def _touched(workload: Workload) -> tuple[Touched, Touched, Touched]:
    """State with optimizer; what is made on the way; what came in, for two windows."""
    state, made, came = [], [], []
    for repeat in workload.repeats:
        for last, at in pairwise(repeat.readers):
            state.append((last, at, repeat.state))
            made.append((last, at, repeat.tape))
    for span in workload.spans:
        ahead = span.bytes * (2 if span.gradient else 1)
        came += [(last, at, ahead) for last, at in pairwise((span.made, *span.readers))]
    fed = np.zeros(len(workload))
    for feed in workload.feeds:
        fed[feed.readers[0]] += 2 * feed.bytes
        came += [(last, at, 2 * feed.bytes) for last, at in pairwise(feed.readers)]
    tape: NDArray[np.float64] = workload.tape_bytes.copy()
    for at, reader, size in workload.unkept:  # on the tape of a range that makes it and does not read it last
        tape[at] += size
        tape[reader] -= size
        made.append((at, reader, size))
    return Touched(workload.fixed_bytes, state), Touched(tape, made), Touched(fed, came)


def _pending(workload: Workload) -> tuple[Touched, Touched]:
    """Gradients that wait between the nodes that add to them: of values, and of parameters."""
    values = [((span.made, *span.readers), float(span.bytes)) for span in workload.spans if span.gradient]
    parameters = [(readers, float(workload.parameter_bytes[readers[0]])) for readers in workload.ties]
    first, second = (
        Touched(np.zeros(len(workload)), [(a, b, size) for needs, size in each for a, b in pairwise(needs)])
        for each in (values, parameters)
    )
    return first, second
