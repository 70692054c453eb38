"""Which values have a gradient at all, and not just one of zeros: autograd leaves the others alone."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.opdag.graph import FLOATING
from farflung.opdag.segment import Segment

# Their results do not depend on the numbers in their arguments, or pass no gradient on.
_STOPS = frozenset(
    f"aten.{name}"
    for name in (
        "detach.default", "zeros_like.default", "ones_like.default", "full_like.default", "new_zeros.default",
        "new_ones.default", "new_full.default", "rand_like.default", "randn_like.default", "bernoulli.p",
    )
)  # fmt: skip


def reached_from(segment: Segment, outputs: Iterable[int]) -> frozenset[int]:
    """The values that have a gradient when just these outputs have one."""
    reached = set(outputs)
    for node in reversed(segment.nodes):
        if node.op not in _STOPS and any(value in reached for value in node.writes()):
            reached.update(value for value in node.reads() if segment.values[value].dtype in FLOATING)
    return frozenset(reached)
