"""Pipelines of a plan, which train one model on different microbatches, and the sums of their gradients."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

Number = Annotated[int, Meta(ge=0, le=2**53)]
SegmentNumber = Annotated[int, Meta(ge=0, le=100_000)]


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The next `segments` of a plan, which hold the whole model and run `microbatches` of each step.

    One that was dropped, as its workers were lost, runs none: its segments keep their numbers, and have no
    workers and no edges. Its `window` is that of its segments; 0: the plan's.
    """

    segments: Annotated[int, Meta(ge=1, le=100_000)]
    microbatches: Annotated[int, Meta(ge=0, le=1_000_000)]
    window: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Sum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the gradients of one parameter, of which every pipeline has its own, are added.

    `value` is the parameter's id in the graph. `groups` are the segments that hold it, one of each pipeline.
    Those of a group are near each other: their gradients are added first, in this order, at the group's
    segment in `heads`. What the groups found is added in their order at `owner`, which is one of the heads.
    The sum goes back the same way. So the bits of a sum depend on `groups` alone.
    """

    value: Number
    bytes: Number
    groups: Annotated[list[list[SegmentNumber]], Meta(min_length=1, max_length=1_000)]
    heads: Annotated[list[SegmentNumber], Meta(min_length=1, max_length=1_000)]
    owner: SegmentNumber

    def __post_init__(self) -> None:
        holders = self.holders()
        if len(set(holders)) < max(2, len(holders)):
            raise ValueError("a sum must have two segments or more, each once")
        heads_fit = len(self.heads) == len(self.groups) and all(
            head in group for head, group in zip(self.heads, self.groups, strict=True)
        )
        if not heads_fit or self.owner not in self.heads:
            raise ValueError(
                "each group of a sum must have a head of its own, and its owner must be one of them"
            )

    def holders(self) -> list[int]:
        """The segments that hold the parameter."""
        return [segment for group in self.groups for segment in group]

    def messages_to(self, segment: int) -> int:
        """How many gradients and sums the segment receives for one sum."""
        group = next(group for group in self.groups if segment in group)
        parts = len(group) - 1 if segment in self.heads else 0
        return parts + (len(self.heads) - 1 if segment == self.owner else 1)

    def head_of(self, segment: int) -> int:
        """The segment that this one gives its gradient to: its group's head, or the owner if it is a head."""
        for head, group in zip(self.heads, self.groups, strict=True):
            if segment in group:
                return self.owner if segment == head else head
        raise ValueError(f"segment {segment} holds no part of this sum")

    def crosses(self, source: int, target: int) -> bool:
        """Whether what `source` sends to `target` leaves its group; that alone is coded.

        It is what a head found, on its way to the owner, or the owner's sum on its way to the heads. The
        owner counts as one of them: it goes on with what others read (`runtime.sums`).
        """
        return len(self.heads) > 1 and source in self.heads and target in self.heads


@lru_cache(maxsize=16)
def dealt(microbatches: int, shares: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The numbers of the microbatches of each pipeline: in turn, as often as its share of them says.

    Each pipeline has run about as large a part of its own at any time, so the feeder, which reads them in
    order, keeps all of them busy. A step has as many microbatches as the shares add up to; an evaluation may
    have any number.
    """
    whole = sum(shares)
    found: list[list[int]] = [[] for _ in shares]
    for number in range(microbatches):
        behind = [(number + 1) * share - whole * len(mine) for share, mine in zip(shares, found, strict=True)]
        found[behind.index(max(behind))].append(number)
    return tuple(map(tuple, found))
