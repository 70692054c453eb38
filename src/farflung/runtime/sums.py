"""Add up the gradients that the pipelines of a plan have found, in the order of the plan's sums. Pure.

A gradient goes to its group's head, the head's sum to the owner, and the owner's sum back to all
(`plans.Sum`). Floating-point addition depends on its order, so a sum is added once all of it is here.

If a codec writes what goes from site to site, the owner sends its sum to itself, too, and goes on with what
comes back, which has been written and read as for the others. So all have the same bits.

Replicas compare *bit sums* of what they have summed. Sums of squares may agree although a low bit differs,
because they are rounded. A sum of the array's words as integers can't: one flipped bit changes it by a power
of two. It reads 8 GB/s on a core where the sum of squares reads 0.75 (NumPy, 100 MB of float32).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from farflung.plans import Sum
from farflung.runtime.backend import Array

if TYPE_CHECKING:
    import numpy as np  # which a job without replicas may not need

BITS = 32


class SumMessage(NamedTuple, Generic[Array]):
    """A gradient of the parameter `value` on its way up to be added, or the whole sum on its way down.

    Without `payload` there is no gradient: no microbatch of those that it comes from has used the parameter.
    """

    source: int
    target: int
    value: int
    is_whole: bool
    payload: Array | None


@dataclass
class _Progress(Generic[Array]):
    """What one segment has of one sum."""

    sum: Sum
    segment: int
    own: Array | None = None
    has_begun: bool = False
    members: dict[int, Array | None] = field(default_factory=dict)
    groups: dict[int, Array | None] = field(default_factory=dict)
    is_sent: bool = False

    @property
    def group(self) -> Sequence[int]:
        return next(group for group in self.sum.groups if self.segment in group)

    @property
    def is_head(self) -> bool:
        return self.segment in self.sum.heads

    def free(self) -> None:
        """Forget what was added."""
        self.own = None
        self.members, self.groups = {}, {}

    def in_group(self) -> tuple[Array | None] | None:
        """The sum of the segment's group, once all of it is here."""
        others = [segment for segment in self.group if segment != self.segment]
        if not self.has_begun or not self.members.keys() >= set(others):
            return None
        return (_added(self.own if s == self.segment else self.members[s] for s in self.group),)

    def in_all(self) -> tuple[Array | None] | None:
        """The sum of all groups, once all of it is at the owner."""
        mine = self.in_group()
        others = [head for head in self.sum.heads if head != self.segment]
        if mine is None or not self.groups.keys() >= set(others):
            return None
        return (_added(mine[0] if head == self.segment else self.groups[head] for head in self.sum.heads),)


class UnitSums(Generic[Array]):
    """The sums of one training step in which some segments of one worker take part.

    Parameters
    ----------
    sums
        Those of the plan.
    segments
        The worker's segments.
    is_coded
        Whether a codec writes what leaves a group.
    """

    def __init__(self, sums: Iterable[Sum], segments: Iterable[int], is_coded: bool = False) -> None:
        mine = set(segments)
        self._is_coded = is_coded
        self._progress: dict[tuple[int, int], _Progress[Array]] = {
            (segment, one.value): _Progress(one, segment)
            for one in sums
            for segment in one.holders()
            if segment in mine
        }
        self._known_count = 0
        self._totals: dict[tuple[int, int], Array | None] = {}

    @property
    def is_done(self) -> bool:
        """Whether every sum is known."""
        return self._known_count == len(self._progress)

    def take_totals(self) -> dict[tuple[int, int], Array | None]:
        """The sums that are known since the last call, by segment and value id; None without a gradient."""
        totals, self._totals = self._totals, {}
        return totals

    def begin(self, gradients: Mapping[tuple[int, int], Array]) -> list[SumMessage[Array]]:
        """Take the segments' own gradients, by segment and value id; returns what is to be sent now."""
        found: list[SumMessage[Array]] = []
        for key, progress in self._progress.items():
            progress.own, progress.has_begun = gradients.get(key), True
            found += self._advance(key, progress)
        return found

    def receive(self, message: SumMessage[Array]) -> list[SumMessage[Array]]:
        """Take a message for one of the segments, also before `begin`; returns what is to be sent now."""
        key = (message.target, message.value)
        progress = self._progress[key]
        if message.is_whole:
            return self._known(key, progress, message.payload)
        arrived = progress.members if message.source in progress.group else progress.groups
        arrived[message.source] = message.payload
        return self._advance(key, progress)

    def _advance(self, key: tuple[int, int], progress: _Progress[Array]) -> list[SumMessage[Array]]:
        """Send what is complete: up to the head or the owner, or the owner's sum down."""
        if progress.is_sent:
            return []
        segment, value = key
        whole = progress.in_all() if segment == progress.sum.owner else None
        if whole is not None:
            progress.is_sent = True
            if not self._is_returned(progress.sum):
                return self._known(key, progress, whole[0])
            progress.free()
            others = [head for head in progress.sum.heads if head != segment]
            return [SumMessage(segment, head, value, True, whole[0]) for head in (*others, segment)]
        part = progress.in_group() if progress.is_head else (progress.own,)
        if segment == progress.sum.owner or part is None or not progress.has_begun:
            return []
        progress.is_sent = True
        return [SumMessage(segment, progress.sum.head_of(segment), value, False, part[0])]

    def _known(
        self, key: tuple[int, int], progress: _Progress[Array], total: Array | None
    ) -> list[SumMessage[Array]]:
        """Keep a sum, and pass it on to the heads of other groups and to the members of the own one."""
        self._totals[key] = total
        self._known_count += 1
        progress.free()
        segment, value = key
        down = [s for s in progress.group if s != segment] if progress.is_head else []
        if segment == progress.sum.owner and not self._is_returned(progress.sum):
            down += [head for head in progress.sum.heads if head != segment]
        return [SumMessage(segment, target, value, True, total) for target in down]

    def _is_returned(self, one: Sum) -> bool:
        """Whether the owner sends the sum to itself, with what it sends to the other heads."""
        return self._is_coded and one.crosses(one.owner, one.owner)


def _added(arrays: Iterable[Array | None]) -> Array | None:
    """The sum of those that are there, in this order, as a new array where there are several."""
    total: Array | None = None
    for array in arrays:
        if array is not None:
            total = array if total is None else total + array
    return total


def bit_sum(array: np.ndarray[Any, Any]) -> int:
    """The sum of an array's elements, each taken as an unsigned integer of its bits, modulo 2**32.

    It does not depend on the array's order in memory. Elements have 1, 2, 4 or 8 bytes; of 8 bytes both
    halves count.
    """
    size = array.dtype.itemsize
    total = int(array.view(f"u{size}").sum(dtype="u8" if size == 8 else "u4"))
    return (total + (total >> BITS)) % 2**BITS
