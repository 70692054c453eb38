"""What segments take of their worker's memory, alone and together. Planner and worker both ask here.

A worker runs one task at a time: of all its segments only one is ever at its peak, while the microbatches of
the others rest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from farflung.workload.arrays import Floats

Number = TypeVar("Number", float, Floats)
"""Bytes of one segment, or of n of them: float64 [n]."""

Others = TypeVar("Others", float, Floats)

UPDATED_AT_ONCE = 2**20
"""Bytes: of a larger parameter an update changes one piece after the other."""


@dataclass(frozen=True)
class Footprint(Generic[Number]):
    """Bytes with a given window.

    Parameters
    ----------
    state
        Parameters, buffers, gradients and the optimizer's moments, and what codecs remember.
    resting
        Of all microbatches in flight, while no task of the segment runs.
    working
        What a task of the segment takes beside.
    updating, copied
        After the last microbatch: an update, or a copy of the state to hand out, less the gradients, which
        are gone by then.
    coding
        What writing or reading one tensor of a link takes, whatever else happens at the time.
    """

    state: Number
    resting: Number
    working: Number
    updating: Number
    copied: Number
    coding: Number | float = 0.0

    @property
    def bytes(self) -> Number:
        """The most at any time."""
        ending = np.maximum(self.updating, self.copied)
        most: Number = self.state + np.maximum(self.resting + self.working, ending) + self.coding
        return most

    def with_codecs(self, kept: Number, coding: Number) -> Footprint[Number]:
        """The same where codecs keep that much for the whole run, and need the other at a time."""
        return replace(self, state=self.state + kept, coding=coding)

    def beside(self: Footprint[float], other: Footprint[Others]) -> Footprint[Others]:
        """This segment and another (or each of others) on one worker."""
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
