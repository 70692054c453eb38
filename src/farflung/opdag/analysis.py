"""Analyse the dependencies of a graph, for cuts and backward passes.

`sides_of` separates the gradients that a segment sends from those that can wait. One side depends on received
values whose gradient is sent back; the other depends on parameters alone. Nodes that read both are *joins*.
The gradients that a segment sends need no gradient of the second side, and the second side needs only the
gradients of the joins' results.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from farflung.opdag.cost import Types
from farflung.opdag.graph import FLOATING, Graph, Node
from farflung.opdag.opset import lookup
from farflung.opdag.segment import Segment


def differentiable_values(graph: Graph) -> set[int]:
    """Values whose gradient is needed: floating point and dependent on a trainable parameter."""
    return differentiable_from(graph.nodes, graph.values, (e.value for e in graph.inputs if e.trainable))


def differentiable_from(nodes: Iterable[Node], types: Types, wanted: Iterable[int]) -> set[int]:
    """`wanted`, and the values that `nodes` compute from them and through which their gradients flow."""
    found = set(wanted)
    for node in nodes:
        if node.op != "aten.detach.default" and any(value in found for value in node.reads()):
            found.update(v for v in node.writes() if types[v].dtype in FLOATING)
    return found


def given_gradients(node: Node) -> set[int]:
    """The values read by a node that get a gradient, if only of zeros, when its results have one.

    Of other values the node uses only shape and type.
    """
    is_created = lookup(node.op).group == "creation" and node.op != "aten.bernoulli.p"
    if is_created or node.op == "aten.detach.default":
        return set()
    if node.op == "aten.expand_as.default":
        node = msgspec.structs.replace(node, arguments={"self": node.arguments["self"]})
    return set(node.reads())


def static_values(graph: Graph) -> set[int]:
    """Values that depend on no parameter, no mutated buffer and no random number.

    Masks, positions and rotary tables are such values: any segment can recompute them.
    """
    mutated = set(graph.mutations)
    found = {entry.value for entry in graph.inputs if entry.kind != "parameter" and entry.name not in mutated}
    for node in graph.nodes:
        if all(value in found for value in node.reads()) and not lookup(node.op).draws(node):
            found.update(node.writes())
    return found


def needed_for(
    value: int, nodes: Sequence[Node], producers: Mapping[int, int], given: Container[int] = ()
) -> tuple[set[int], set[int]]:
    """Positions of the nodes that compute a value, and the graph's inputs that they read.

    `producers` is that of the graph. The values `given` are there already, so nothing is needed for them.
    """
    positions: set[int] = set()
    inputs: set[int] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current in given:
            continue
        if (at := producers.get(current)) is None:
            inputs.add(current)
        elif at not in positions:
            positions.add(at)
            waiting.extend(nodes[at].reads())
    return positions, inputs


def live_nodes(graph: Graph) -> list[bool]:
    """For each node, whether the loss, a metric or a mutation depends on it."""
    needed = {graph.loss, *graph.metric_values(), *graph.mutations.values()}
    live = [False] * len(graph.nodes)
    for at in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[at]
        if any(value in needed for value in node.writes()):
            live[at] = True
            needed.update(node.reads())
    return live


def changed_by_training(document: Graph | Segment) -> set[str]:
    """Names of the parameters and buffers that a step changes."""
    return {entry.name for entry in document.inputs if entry.trainable} | set(document.mutations)


class Join(NamedTuple):
    """A node that reads both sides: it reads `weights` of one and `makes` values of the other."""

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
    # Further results of normalisations are statistics, which have no gradient.
    outputs = node.outputs[:1] if lookup(node.op).group == "normalisation" else node.outputs
    return tuple(value for value in outputs if value >= 0 and segment.values[value].dtype in FLOATING)
