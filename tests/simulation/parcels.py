"""What travels over data links, reduced to what matters for recovery.

The state of a segment is the list of units that were applied to it, each with its scale: two states are equal
if and only if these lists are.
"""

from __future__ import annotations

from dataclasses import dataclass

from farflung.protocol.copies import StateVersion
from farflung.worker.events import Attempt

Chain = tuple[tuple[int, float], ...]
"""The units that made a state, in order, each with the scale that it was applied with."""


@dataclass(frozen=True)
class State:
    """To a worker: the state that it begins with."""

    attempt: Attempt
    chain: Chain


@dataclass(frozen=True)
class Input:
    """To the worker of the first segment: the inputs of a unit."""

    attempt: Attempt
    unit: int


@dataclass(frozen=True)
class Taken:
    """To the submitter: the inputs of a unit are used up."""

    attempt: Attempt
    unit: int


@dataclass(frozen=True)
class Values:
    """To a neighbour: everything that a unit sends it."""

    attempt: Attempt
    unit: int


@dataclass(frozen=True)
class Asked:
    """To a neighbour that runs past units again, too: it may send what it computes in this one."""

    attempt: Attempt
    unit: int


@dataclass(frozen=True)
class Given:
    """To the submitter: the state right after `unit` (a copy), or the last one if `unit` is None."""

    attempt: Attempt
    unit: int | None
    chain: Chain


@dataclass(frozen=True)
class Copy:
    """To a worker's disk: a share of a version, which has the parameters `names`."""

    attempt: Attempt
    version: StateVersion
    share: int
    chain: Chain
    names: frozenset[str]


Parcel = State | Input | Taken | Values | Asked | Given | Copy
