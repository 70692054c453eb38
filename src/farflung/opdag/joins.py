"""Where parameters meet what a segment received: what tells gradients that are sent from those that wait.

On the one side is what depends on received values whose gradient travels back; on the other what depends on
parameters alone. Nodes that read both are *joins*. The gradients that a segment sends need no gradient of the
second side, and the second side needs of the backward pass only the gradients of what the joins made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from farflung.opdag.analysis import given_gradients
from farflung.opdag.graph import FLOATING, Node
from farflung.opdag.opset import lookup
from farflung.opdag.segment import Segment


class Join(NamedTuple):
    """A node that reads both sides: `weights` of the one, and `makes` values of the other."""

    node: Node
    weights: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True)
class Sides:
    """A segment's values that have gradients, by side, and the joins in the order in which they run."""

    received: frozenset[int]
    weights: frozenset[int]
    joins: tuple[Join, ...]


def sides_of(segment: Segment) -> Sides | None:
    """The two sides of a segment; None if it sends no gradients."""
    received = set(segment.receives) & set(segment.differentiable)
    if not received:
        return None
    weights = {entry.value for entry in segment.inputs if entry.trainable}
    joins = []
    for node in segment.nodes:
        makes = _differentiable(node, segment)
        reads = given_gradients(node)
        if not makes or not reads & (received | weights):
            continue
        if not reads & received:
            weights.update(makes)
            continue
        received.update(makes)
        if joined := tuple(sorted(reads & weights)):
            joins.append(Join(node, joined, makes))
    return Sides(frozenset(received), frozenset(weights), tuple(joins))


def _differentiable(node: Node, segment: Segment) -> tuple[int, ...]:
    """The results of a node that would have a gradient if something it reads has one."""
    # What normalisations make beside their result are statistics, which have none.
    outputs = node.outputs[:1] if lookup(node.op).group == "normalisation" else node.outputs
    return tuple(value for value in outputs if value >= 0 and segment.values[value].dtype in FLOATING)
