"""Which nodes of a graph read raw data: model inputs, or what is computed of them without a parameter. Pure.

A label that is shifted, a token that becomes a mask or a pixel that dropout has touched still tells what it
was. So a value counts as raw until a parameter, or a value that is not raw, has gone into it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError
from farflung.opdag.analysis import static_values
from farflung.opdag.graph import Graph, Node
from farflung.text import and_more

DataKind = Literal["inputs", "targets"]
DATA_KINDS: tuple[DataKind, ...] = get_args(DataKind)

NAMED = 3
"""How many model inputs a message names at most."""


def inputs_of_kinds(graph: Graph, kinds: Collection[DataKind]) -> frozenset[int]:
    """The value ids of the model inputs of these kinds.

    `inputs` are those that a parameter's reader depends on, `targets` all others: only the loss and metrics
    read them.

    Raises
    ------
    PlanError
        Targets are asked for alone, but the loss reads none that the model does not read, too.
    """
    with_parameters = _inputs_of_layers(graph)
    every = {entry.value for entry in graph.inputs_of("input")}
    found: set[int] = set()
    if "inputs" in kinds:
        found |= every & with_parameters
    if "targets" in kinds:
        targets = every - with_parameters
        if not targets and "inputs" not in kinds:
            names = [repr(entry.name) for entry in graph.inputs_of("input")]
            raise PlanError(
                f"no input is a target alone: the model's layers read {and_more(names, NAMED)}, too: set"
                ' Job(keep_home=["inputs", "targets"])'
            )
        found |= targets
    return frozenset(found)


def raw_values(graph: Graph, kept: Collection[int]) -> frozenset[int]:
    """The model inputs `kept`, and all values that are computed of them without parameters or other values.

    Constants and buffers that no step changes do not hide what they are combined with.
    """
    given = {
        entry.value
        for entry in graph.inputs
        if entry.kind != "parameter" and entry.kind != "input" and entry.name not in graph.mutations
    }
    others = {entry.value for entry in graph.inputs_of("input")} - set(kept)
    raw, plain = set(kept), given | others
    for node in graph.nodes:
        reads = node.reads()
        if not all(value in raw or value in plain for value in reads):
            continue
        (raw if any(value in raw for value in reads) else plain).update(node.writes())
    return frozenset(raw)


def raw_readers(graph: Graph, kept: Collection[int]) -> NDArray[np.bool_]:
    """Whether each node, by position, binds its segment to those who may see the raw data: [nodes].

    Nodes that any segment can repeat are bound only by those that read their results.
    """
    raw, static = raw_values(graph, kept), static_values(graph)
    results = {graph.loss, *graph.metric_values(), *graph.mutations.values()}

    def is_bound(node: Node) -> bool:
        if not any(value in raw for value in node.reads()):
            return False
        writes = node.writes()
        return not static.issuperset(writes) or not results.isdisjoint(writes)

    return np.array([is_bound(node) for node in graph.nodes], dtype=bool)


def reads_raw(nodes: Iterable[Node], raw: Collection[int]) -> bool:
    """Whether any of these nodes reads raw data."""
    return any(value in raw for node in nodes for value in node.reads())


def words_of(kinds: Collection[DataKind]) -> str:
    """The kinds in words."""
    return " and ".join(kind for kind in DATA_KINDS if kind in kinds)


def _inputs_of_layers(graph: Graph) -> set[int]:
    """The model inputs on which something depends that also reads a parameter or a mutated buffer."""
    learned = {
        entry.value
        for entry in graph.inputs
        if entry.kind == "parameter" or (entry.kind == "buffer" and entry.name in graph.mutations)
    }
    needed: set[int] = set()
    for node in reversed(graph.nodes):
        reads = set(node.reads())
        if not reads.isdisjoint(learned) or not needed.isdisjoint(node.writes()):
            needed |= reads
    return {entry.value for entry in graph.inputs_of("input") if entry.value in needed}
