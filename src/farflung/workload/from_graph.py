"""From an OP-DAG to its workload: shapes and formulas only, nothing runs."""

from __future__ import annotations

import numpy as np

from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.cost import flops
from farflung.opdag.cuts import legal_positions
from farflung.opdag.graph import Graph
from farflung.workload.workload import Feed, Span, Workload


def workload_of(graph: Graph, microbatches: int, microbatch_size: int, name: str = "") -> Workload:
    """The costs of `graph` in microbatches of `microbatch_size` samples."""
    static = static_values(graph)
    is_static = [all(v in static for v in node.writes()) for node in graph.nodes]
    sizes = [value_type.bytes(microbatch_size) for value_type in graph.values]
    work = [
        0 if still else flops(node, graph.values, microbatch_size)
        for node, still in zip(graph.nodes, is_static, strict=True)
    ]
    made = [
        sum(sizes[v] for v in node.writes() if not still)
        for node, still in zip(graph.nodes, is_static, strict=True)
    ]
    readers = _readers(graph, is_static)
    first = {value: found[0] for value, found in readers.items() if found}
    held = [entry for entry in graph.inputs if entry.kind != "input" and entry.value in first]
    parameters = [entry for entry in held if entry.kind == "parameter"]
    count = len(graph.nodes)

    def at_first_reader(values: list[int], weights: list[int]) -> np.ndarray:
        found = np.zeros(count)
        np.add.at(found, [first[value] for value in values], weights)
        return found

    ids = [entry.value for entry in parameters]
    trained = [entry.value for entry in parameters if entry.trainable]
    return Workload(
        name=name,
        microbatches=microbatches,
        microbatch_size=microbatch_size,
        flops=np.array(work, dtype=np.float64),
        legal=legal_positions(graph),
        parameters=at_first_reader(ids, [1] * len(ids)).astype(np.int64),
        parameter_bytes=at_first_reader(ids, [sizes[v] for v in ids]),
        trainable_bytes=at_first_reader(trained, [sizes[v] for v in trained]),
        state_bytes=at_first_reader([e.value for e in held], [sizes[e.value] for e in held]),
        tape_bytes=np.array(made, dtype=np.float64),
        largest_bytes=np.array(_largest(graph, sizes), dtype=np.float64),
        spans=_spans(graph, static, readers, sizes),
        feeds=tuple(
            Feed(entry.value, tuple(readers[entry.value]), sizes[entry.value])
            for entry in graph.inputs_of("input")
            if readers.get(entry.value)
        ),
        ties=tuple(tuple(readers[entry.value]) for entry in parameters if len(readers[entry.value]) > 1),
    )


def _readers(graph: Graph, is_static: list[bool]) -> dict[int, list[int]]:
    """Value -> positions of the nodes that read it, ascending; a static node's readers read its inputs."""
    found: dict[int, set[int]] = {}
    for at in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[at]
        through = {at}
        if is_static[at]:
            through = {reader for value in node.writes() for reader in found.get(value, ())}
        for value in node.reads():
            found.setdefault(value, set()).update(through)
    return {value: sorted(positions) for value, positions in found.items()}


def _largest(graph: Graph, sizes: list[int]) -> list[int]:
    state = {entry.value for entry in graph.inputs if entry.kind != "input"}
    touched = [{*node.reads(), *node.writes()} - state for node in graph.nodes]
    return [max((sizes[value] for value in values), default=0) for values in touched]


def _spans(
    graph: Graph, static: set[int], readers: dict[int, list[int]], sizes: list[int]
) -> tuple[Span, ...]:
    gradients = differentiable_values(graph)
    return tuple(
        Span(value, made, tuple(readers[value]), sizes[value], value in gradients)
        for value, made in graph.producers().items()
        if value not in static and readers.get(value)
    )
