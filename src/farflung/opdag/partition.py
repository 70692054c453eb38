"""A graph and its cut positions to segments: what each one runs, holds, receives and sends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.graph import Graph, Input, Node
from farflung.opdag.segment import Segment


class Partition:
    """Segments of `graph`, cut before the node positions `cuts` (ascending).

    A value that depends on no parameter and no random number is recomputed in each segment that reads it,
    unless the model inputs that this needs are larger than the value itself; then it is shipped.
    """

    def __init__(self, graph: Graph, cuts: Sequence[int], batch: int) -> None:
        self._graph = graph
        self._batch = batch
        self._static = static_values(graph)
        self._producers = graph.producers()
        self._inputs = {entry.value: entry for entry in graph.inputs}
        self._count = len(cuts) + 1
        self._nodes: list[set[int]] = [set() for _ in range(self._count)]
        self._receives: list[set[int]] = [set() for _ in range(self._count)]
        self._sends: list[set[int]] = [set() for _ in range(self._count)]
        self._maker: dict[int, int] = {}
        self._place_nodes(cuts)
        for number in range(self._count):
            self._connect(number)

    def segments(self) -> list[Segment]:
        """The segments, in topological order."""
        owners: dict[str, int] = {}
        return [self._segment(number, owners) for number in range(self._count)]

    def sources(self) -> dict[int, int]:
        """Value id -> the segment that sends it, for every value that crosses the cut."""
        return {v: number for number, sends in enumerate(self._sends) for v in sends}

    def _place_nodes(self, cuts: Sequence[int]) -> None:
        for at, node in enumerate(self._graph.nodes):
            if all(value in self._static for value in node.writes()):
                continue
            number = bisect_right(cuts, at)
            self._nodes[number].add(at)
            for value in node.writes():
                self._maker[value] = number

    def _connect(self, number: int) -> None:
        nodes = self._graph.nodes
        reads = {value for at in self._nodes[number] for value in nodes[at].reads()}
        for value in sorted(reads):
            if value in self._inputs:
                continue
            if value in self._static:
                self._place_static(value, number)
            elif self._maker[value] != number:
                self._ship(value, self._maker[value], number)

    def _place_static(self, value: int, number: int) -> None:
        """Recompute `value` in the segment, or ship it from where it is already made."""
        positions, inputs = self._closure(value)
        fed = {
            v for at in self._nodes[number] for v in self._graph.nodes[at].reads() if self._is_model_input(v)
        }
        feeding = sum(self._size(v) for v in inputs - fed if self._is_model_input(v))
        if value in self._maker and self._maker[value] != number and self._size(value) < feeding:
            self._ship(value, self._maker[value], number)
            return
        self._nodes[number] |= positions
        for at in positions:
            for made in self._graph.nodes[at].writes():
                self._maker.setdefault(made, number)

    def _closure(self, value: int) -> tuple[set[int], set[int]]:
        """Positions of the nodes that make a static value, and the inputs that they read."""
        positions: set[int] = set()
        inputs: set[int] = set()
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if current in self._inputs:
                inputs.add(current)
            elif self._producers[current] not in positions:
                positions.add(self._producers[current])
                waiting.extend(self._graph.nodes[self._producers[current]].reads())
        return positions, inputs

    def _ship(self, value: int, source: int, target: int) -> None:
        self._sends[source].add(value)
        self._receives[target].add(value)

    def _is_model_input(self, value: int) -> bool:
        return value in self._inputs and self._inputs[value].kind == "input"

    def _size(self, value: int) -> int:
        return self._graph.values[value].bytes(self._batch)

    def _segment(self, number: int, owners: dict[str, int]) -> Segment:
        graph = self._graph
        nodes = [graph.nodes[at] for at in sorted(self._nodes[number])]
        inputs = self._inputs_read(nodes)
        owned = [
            entry.name
            for entry in inputs
            if (entry.kind == "parameter" and owners.setdefault(entry.name, number) == number)
            or entry.kind == "buffer"
        ]
        made = {value for node in nodes for value in node.writes()}
        buffers = {entry.name for entry in inputs if entry.kind == "buffer"}
        mutations = {n: v for n, v in graph.mutations.items() if n in buffers and v in made}
        crossing = self._receives[number] | self._sends[number]
        known = made | self._receives[number] | {entry.value for entry in inputs}
        return Segment(
            version=graph.version,
            opset=graph.opset,
            number=number,
            values={value: graph.values[value] for value in sorted(known)},
            inputs=inputs,
            owned=owned,
            receives=sorted(self._receives[number]),
            nodes=nodes,
            sends=sorted(self._sends[number]),
            differentiable=sorted(crossing & differentiable_values(graph)),
            loss=graph.loss if graph.loss in made else None,
            mutations=mutations,
            constants={e.name: graph.constants[e.name] for e in inputs if e.kind == "constant"},
        )

    def _inputs_read(self, nodes: Sequence[Node]) -> list[Input]:
        read = {value for node in nodes for value in node.reads()}
        return [entry for entry in self._graph.inputs if entry.value in read]
