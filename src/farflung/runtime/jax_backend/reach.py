"""Which values have a gradient at all: autograd leaves the others alone."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.opdag.analysis import given_gradients
from farflung.opdag.graph import FLOATING
from farflung.opdag.segment import Segment


def reached_from(segment: Segment, outputs: Iterable[int]) -> frozenset[int]:
    """The values that have a gradient when just these outputs have one."""
    reached = set(outputs)
    for node in reversed(segment.nodes):
        if any(value in reached for value in node.writes()):
            reached.update(v for v in given_gradients(node) if segment.values[v].dtype in FLOATING)
    return frozenset(reached)
