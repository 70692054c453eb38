"""Facts about a graph that cuts and backward passes need: who depends on what."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from farflung.opdag.cost import Types
from farflung.opdag.graph import FLOATING, Graph, Node
from farflung.opdag.opset import lookup
from farflung.opdag.segment import Segment


def differentiable_values(graph: Graph) -> set[int]:
    """Values whose gradient is needed: floating point and dependent on a trainable parameter."""
    return differentiable_from(graph.nodes, graph.values, (e.value for e in graph.inputs if e.trainable))


def differentiable_from(nodes: Iterable[Node], types: Types, wanted: Iterable[int]) -> set[int]:
    """`wanted`, and the values that `nodes` make of them and through which their gradients come."""
    found = set(wanted)
    for node in nodes:
        if node.op != "aten.detach.default" and any(value in found for value in node.reads()):
            found.update(v for v in node.writes() if types[v].dtype in FLOATING)
    return found


def given_gradients(node: Node) -> set[int]:
    """What a node reads and autograd gives a gradient, if only of zeros, where its results have one.

    Of other values the node takes no more than shape and type.
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


def live_nodes(graph: Graph) -> list[bool]:
    """For each node, whether the loss or a mutation depends on it."""
    needed = {graph.loss, *graph.mutations.values()}
    live = [False] * len(graph.nodes)
    for at in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[at]
        if any(value in needed for value in node.writes()):
            live[at] = True
            needed.update(node.reads())
    return live


def changed_by_training(document: Graph | Segment) -> set[str]:
    """Names of the parameters and of the buffers that a step replaces; other buffers stay what they were."""
    return {entry.name for entry in document.inputs if entry.kind == "parameter"} | set(document.mutations)
