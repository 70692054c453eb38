"""The order of a graph's nodes, where it is free: uses of one parameter are brought together.

A worker runs every use of a parameter, so one that stands in the middle of the graph would tie that part to
the first. T5's decoder looks its symbols up in the encoder's table: nothing but inputs goes in, so it may as
well be done at the beginning.
"""

from __future__ import annotations

import msgspec

from farflung.opdag.analysis import static_values
from farflung.opdag.graph import Graph


def uses_together(graph: Graph) -> Graph:
    """The graph with each later use of a parameter behind the first, if it reads static values beside it.

    What such a use needs moves along. Nodes keep their numbers, and those that draw keep their order.
    """
    parameters = {entry.value for entry in graph.inputs_of("parameter")}
    users: dict[int, list[int]] = {}
    for at, node in enumerate(graph.nodes):
        for value in parameters.intersection(node.reads()):
            users.setdefault(value, []).append(at)
    mover = _Mover(graph)
    for at, node in enumerate(graph.nodes):
        mover.place(at)
        for value in parameters.intersection(node.reads()):
            for later in users[value]:
                mover.bring(later, value)
    return msgspec.structs.replace(graph, nodes=[graph.nodes[at] for at in mover.order])


class _Mover:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._static = static_values(graph)
        self._producers = graph.producers()
        self._placed: set[int] = set()
        self.order: list[int] = []

    def place(self, at: int) -> None:
        """Put the node at position `at` next, unless it has its place."""
        if at not in self._placed:
            self._placed.add(at)
            self.order.append(at)

    def bring(self, at: int, parameter: int) -> None:
        """Put a use of `parameter` next, with all that it needs, if that is static."""
        others = [value for value in self._graph.nodes[at].reads() if value != parameter]
        if at in self._placed or not all(value in self._static for value in others):
            return
        for needed in sorted(self._needed(others)):
            self.place(needed)
        self.place(at)

    def _needed(self, values: list[int]) -> set[int]:
        found: set[int] = set()
        waiting = [self._producers[value] for value in values if value in self._producers]
        while waiting:
            at = waiting.pop()
            if at not in found and at not in self._placed:
                found.add(at)
                reads = self._graph.nodes[at].reads()
                waiting.extend(self._producers[value] for value in reads if value in self._producers)
        return found
