"""The memory of segments: alone, together, and for all ranges of nodes; for both planner and worker.

A worker runs one task at a time: only one of its segments is at its peak, while the others only store their
microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from farflung.workload.arrays import Floats, Gap, Gaps, Touched, before

if TYPE_CHECKING:
    from farflung.workload.workload import Workload

Number = TypeVar("Number", float, Floats)
"""Bytes of one segment, or of n of them: float64 [n]."""

Others = TypeVar("Others", float, Floats)

UPDATED_AT_ONCE = 2**20
"""Larger parameters are updated in pieces of this many bytes."""


@dataclass(frozen=True)
class Footprint(Generic[Number]):
    """Bytes with a given window.

    Parameters
    ----------
    state
        Parameters, buffers, gradients, the optimizer's moments, and the state of codecs.
    resting
        All microbatches in flight while no task of the segment runs.
    working
        Additional memory of a running task.
    updating, copied
        After the last microbatch: an update, or a copy of the state to send, minus the gradients, which are
        freed by then.
    coding
        Encoding or decoding one tensor of a link, at any time.
    """

    state: Number
    resting: Number
    working: Number
    updating: Number
    copied: Number
    coding: Number | float = 0.0

    @property
    def bytes(self) -> Number:
        """The peak at any time."""
        ending = np.maximum(self.updating, self.copied)
        most: Number = self.state + np.maximum(self.resting + self.working, ending) + self.coding
        return most

    def with_codecs(self, kept: Number, coding: Number) -> Footprint[Number]:
        """The same footprint with codecs that need `kept` for the whole run and `coding` at a time."""
        return replace(self, state=self.state + kept, coding=coding)

    def beside(self: Footprint[float], other: Footprint[Others]) -> Footprint[Others]:
        """The footprint of this segment and another one (or each of others) on one worker."""
        return Footprint(
            state=self.state + other.state,
            resting=self.resting + other.resting,
            working=np.maximum(self.working, other.working),
            updating=np.maximum(self.updating, other.updating),
            copied=self.copied + other.copied,
            coding=np.maximum(self.coding, other.coding),
        )


NOTHING: Footprint[float] = Footprint(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Needs(Generic[Number]):
    """Bytes that a window, and whether the segment recomputes, make a footprint of.

    Parameters
    ----------
    state, updating, copied
        As in `Footprint`.
    came
        What came in for one microbatch.
    shipped
        What may come in, too, of what is counted as if it were recomputed here.
    running, again, waiting
        Of the microbatch that runs, of one that is recomputed, and of any other in the window, beside what
        came in.
    returned
        Gradients that came back for a microbatch; `waiting` counts them too.
    left
        Of a microbatch that was recomputed, until its gradients of parameters are added up; not less than
        `returned`.
    """

    state: Number
    came: Number
    shipped: Number
    running: Number
    again: Number
    waiting: Number
    returned: Number
    left: Number
    updating: Number
    copied: Number

    def footprint(self, window: int, recompute: bool) -> Footprint[Number]:
        """With `window` microbatches in flight; with `recompute` only one of them has a tape, or its rest."""
        if recompute:
            came = self.came + self.shipped
            resting = self.left + window * came + (window - 1) * self.returned
            working = np.maximum(self.again - self.left - self.shipped, 0)
        else:
            resting = window * (self.came + self.waiting)
            working = self.running - self.waiting
        return Footprint(self.state, resting, working, self.updating, self.copied)

    def at(self: Needs[Floats], index: int) -> Needs[float]:
        """Of one of the segments."""
        return Needs(*(float(getattr(self, each.name)[index]) for each in fields(self)))

    def take(self: Needs[Floats], indices: NDArray[np.int64]) -> Needs[Floats]:
        """Of some of the segments."""
        return Needs(*(getattr(self, each.name)[indices] for each in fields(self)))


_MOST_KEPT = 1 << 22  # ranges that are remembered, in at most 120 MB


class Memory:
    """Of one workload."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._kept: dict[int, Needs[Floats]] = {}
        self._state, self._copied, self._made, self._came = _touched(workload)
        self._passing, self._over = _gradients(workload)
        self._shipped = Touched(np.zeros(len(workload)), workload.shipped)
        live = workload.live
        self._forward_gaps, self._backward_gaps = Gaps(live.forward_gaps), Gaps(live.backward_gaps)
        self._unkept = Gaps(Gap(*each) for each in workload.unkept)
        tape, self._left = before(workload.tape_bytes - live.recomputed), before(live.left)
        # While node i runs, of a range that begins at a node s: all that was put on the tape since, tape[i] -
        # tape[s], what is beside it, and what is left of the nodes after it.
        self._tape, on_tape, left = tape, tape[1:], self._left[1:]
        self._forward = on_tape + live.forward
        self._whole = on_tape + live.returning
        self._split = self._whole - left

    def up_to(self, stop: int) -> Needs[Floats]:
        """Of the ranges from every start below `stop` that end before the node there: [stop] each."""
        needs = self._kept.get(stop)
        if needs is None:
            if len(self._kept) * len(self._workload) > _MOST_KEPT:
                self._kept.clear()
            needs = self._kept[stop] = self._up_to(stop)
        return needs

    def _up_to(self, stop: int) -> Needs[Floats]:
        workload, row = self._workload, slice(0, stop)
        state, made, came = (each.up_to(stop) for each in (self._state, self._made, self._came))
        returned = workload.crossing_backward[stop] - self._over.passing_up_to(stop)
        # A segment to which no gradient is asked of makes those of parameters on the way, when all has come.
        whole = workload.crossing_backward[row] == self._passing.passing_up_to(stop)
        # Gradients that wait for nodes after these are others', or came back. What is sent stays as if kept.
        crossing = self._unkept.up_to(stop)
        change = crossing - self._backward_gaps.up_to(stop)
        of_whole, of_split = (_most_after(each[row] + change) for each in (self._whole, self._split))
        back = np.where(whole, of_whole, of_split + self._left[stop])
        ahead = _most_after(self._forward[row] + crossing - self._forward_gaps.up_to(stop))
        earlier = np.concatenate([[0.0], crossing[:-1]])
        sent = crossing[-1] - earlier
        repeated = np.maximum(made - (self._tape[stop] - self._tape[row]) - sent, 0.0)
        left = np.maximum(returned, self._left[stop] - self._left[row] + repeated)
        waiting = np.where(whole, made + returned, np.maximum(made + returned, left))
        if stop == len(workload):  # here the loss is, which waits for no gradient
            waiting = np.where(whole, waiting, left)
        beside = repeated - self._tape[row] - earlier
        ahead = np.maximum(ahead + beside, _most_after(workload.live.recomputing[row]))
        running = np.maximum(np.maximum(ahead, back + returned + beside), waiting)
        return Needs(
            state=state,
            came=came,
            shipped=self._shipped.up_to(stop),
            running=running,
            again=np.maximum(running, ahead + returned),  # beside the gradients that came back
            waiting=waiting,
            returned=returned,
            left=np.where(whole, returned, left),
            updating=_most_after(workload.update_bytes[row]),
            copied=self._copied.up_to(stop),
        )


def _most_after(values: Floats) -> Floats:
    """The largest of each value and those after it."""
    return np.asarray(np.maximum.accumulate(values[::-1])[::-1])


def _touched(workload: Workload) -> tuple[Touched, Touched, Touched, Touched]:
    """State with optimizer; a copy of what training changes, less gradients (at most all buffers); what is
    made here; what came in, for two windows.
    """
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
    copied = workload.state_bytes - workload.parameter_bytes
    held = Touched(workload.fixed_bytes, state), Touched(copied, state)
    return *held, Touched(tape, made), Touched(fed, came)


def _gradients(workload: Workload) -> tuple[Touched, Touched]:
    """Of values: where no node needs one, and from where it is made to its last reader."""
    spans = [span for span in workload.spans if span.gradient]
    between = [(a, b, span.bytes) for span in spans for a, b in pairwise((span.made, *span.readers))]
    over = [(span.made, span.readers[-1], span.bytes) for span in spans]
    nothing = np.zeros(len(workload))
    return Touched(nothing, between), Touched(nothing, over)
