"""Cut a graph into segments: where it may be cut, and what each segment runs, owns, receives and sends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.opdag.analysis import differentiable_values, live_nodes, needed_for, static_values
from farflung.opdag.buckets import part_of
from farflung.opdag.graph import Graph, Input, Node
from farflung.opdag.opset import needed_version
from farflung.opdag.segment import Segment


class Partition:
    """Segments of `graph`, cut before the node positions `cuts` (ascending).

    A value that depends on no parameter and no random number is recomputed in each segment that reads it,
    unless the model inputs that this needs are larger than the value itself; then it is sent. A buffer's new
    value is computed by the segment that owns the buffer.
    """

    def __init__(self, graph: Graph, cuts: Sequence[int], batch: int) -> None:
        self._graph = graph
        self._batch = batch
        self._static = static_values(graph)
        self._producers = graph.producers()
        self._inputs = {entry.value: entry for entry in graph.inputs}
        self._count = len(cuts) + 1
        self._nodes: list[set[int]] = [set() for _ in range(self._count)]
        self._receives: list[dict[int, int]] = [{} for _ in range(self._count)]  # value -> its segment
        self._maker: dict[int, int] = {}
        self._place_nodes(cuts)
        self._place_results(cuts)
        for number in range(self._count):
            self._connect(number)
        self._sources = {v: source for receives in self._receives for v, source in receives.items()}

    def segments(self) -> list[Segment]:
        """The segments, in topological order."""
        owners: dict[str, int] = {}
        return [self._segment(number, owners) for number in range(self._count)]

    def sources(self) -> dict[int, int]:
        """Value id -> the segment that sends it, for every value that crosses the cut."""
        return self._sources

    def _place_nodes(self, cuts: Sequence[int]) -> None:
        for at, node in enumerate(self._graph.nodes):
            if all(value in self._static for value in node.writes()):
                continue
            number = bisect_right(cuts, at)
            self._nodes[number].add(at)
            for value in node.writes():
                self._maker[value] = number

    def _place_results(self, cuts: Sequence[int]) -> None:
        """Assign a static loss, metric or new buffer value, which no node reads, to a segment."""
        graph = self._graph
        for value in (graph.loss, *graph.metric_values(), *graph.mutations.values()):
            if value in self._static and value not in self._inputs:
                self._recompute(value, bisect_right(cuts, self._producers[value]))

    def _connect(self, number: int) -> None:
        nodes = self._graph.nodes
        reads = {value for at in self._nodes[number] for value in nodes[at].reads()}
        for value in sorted(reads):
            if value in self._inputs:
                continue
            if value in self._static:
                self._place_static(value, number)
            elif self._maker[value] != number:
                self._receives[number][value] = self._maker[value]

    def _place_static(self, value: int, number: int) -> None:
        """Recompute `value` in the segment, or send it from a segment that already computes it."""
        if self._producers[value] in self._nodes[number] or value in self._receives[number]:
            return
        inputs = self._closure(value, number)[1]
        fed = {
            v for at in self._nodes[number] for v in self._graph.nodes[at].reads() if self._is_model_input(v)
        }
        feeding = sum(self._size(v) for v in inputs - fed if self._is_model_input(v))
        if value in self._maker and self._size(value) < feeding:
            self._receives[number][value] = self._maker[value]
        else:
            self._recompute(value, number)

    def _recompute(self, value: int, number: int) -> None:
        positions = self._closure(value, number)[0]
        self._nodes[number] |= positions
        for at in positions:
            for made in self._graph.nodes[at].writes():
                self._maker.setdefault(made, number)
                self._receives[number].pop(made, None)  # another result of the same node

    def _closure(self, value: int, number: int) -> tuple[set[int], set[int]]:
        """What a segment needs for a static value; what it receives anyway is not recomputed."""
        return needed_for(value, self._graph.nodes, self._producers, self._receives[number])

    def _is_model_input(self, value: int) -> bool:
        return value in self._inputs and self._inputs[value].kind == "input"

    def _size(self, value: int) -> int:
        return self._graph.values[value].bytes(self._batch)

    def _segment(self, number: int, owners: dict[str, int]) -> Segment:
        graph = self._graph
        nodes = [graph.nodes[at] for at in sorted(self._nodes[number])]
        mutations = {n: v for n, v in graph.mutations.items() if self._maker[v] == number}
        inputs = self._inputs_held(nodes, mutations)
        owned = [
            entry.name
            for entry in inputs
            if (entry.kind == "parameter" and owners.setdefault(entry.name, number) == number)
            or entry.kind == "buffer"
        ]
        made = {value for node in nodes for value in node.writes()}
        receives = set(self._receives[number])
        sends = {value for value, source in self._sources.items() if source == number}
        known = made | receives | {entry.value for entry in inputs}
        return Segment(
            version=graph.version,
            opset=needed_version(node.op for node in nodes),
            number=number,
            values={value: graph.values[value] for value in sorted(known)},
            inputs=inputs,
            owned=owned,
            receives=sorted(receives),
            nodes=nodes,
            sends=sorted(sends),
            differentiable=sorted((receives | sends) & differentiable_values(graph)),
            loss=graph.loss if graph.loss in made else None,
            mutations=mutations,
            constants={e.name: graph.constants[e.name] for e in inputs if e.kind == "constant"},
            metrics=sorted({v for v in graph.metric_values() if self._maker[v] == number}),
            buckets=[part_of(bucket, known, nodes, inputs) for bucket in graph.buckets],
        )

    def _inputs_held(self, nodes: Sequence[Node], mutations: Mapping[str, int]) -> list[Input]:
        read = {value for node in nodes for value in node.reads()}
        return [
            entry
            for entry in self._graph.inputs
            if entry.value in read or (entry.kind == "buffer" and entry.name in mutations)
        ]


def legal_positions(graph: Graph) -> NDArray[np.bool_]:
    """Whether the graph may be cut at each position, [nodes + 1].

    A cut must not separate the uses of a mutated buffer: its new value belongs to one segment. Nor may it
    separate what only metrics need, at the end of the graph, from the node before it. With buckets, the first
    segment reads a model input.
    """
    legal = np.ones(len(graph.nodes) + 1, dtype=bool)
    producers = graph.producers()
    buffers = {entry.name: entry.value for entry in graph.inputs_of("buffer")}
    for name, value in graph.mutations.items():
        uses = [at for at, node in enumerate(graph.nodes) if buffers[name] in node.reads()]
        uses.append(producers.get(value, uses[0] if uses else 0))
        legal[min(uses) + 1 : max(uses) + 1] = False
    if graph.metrics:
        trained = live_nodes(msgspec.structs.replace(graph, metrics={}))
        last = max((at for at, live in enumerate(trained) if live), default=0)
        legal[last + 1 : len(graph.nodes)] = False
    if graph.buckets:
        legal[1 : _first_fed(graph) + 1] = False
    return legal


def _first_fed(graph: Graph) -> int:
    """The position of the first node that depends on the microbatch and is not recomputed in each segment.

    The segment that has it learns from the feeder which bucket is due.
    """
    static = static_values(graph)
    fed = {entry.value for entry in graph.inputs_of("input")}
    for at, node in enumerate(graph.nodes):
        if fed.intersection(node.reads()):
            if not static.issuperset(node.writes()):
                return at
            fed.update(node.writes())
    return 0
