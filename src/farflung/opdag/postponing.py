"""Run late what makes large values without a gradient from small ones, such as a teacher's head.

A frozen teacher runs before its student, and its scores are read at the end, by the loss. Computed where the
teacher ends they would cross every cut after it, and a head that is also the teacher's embedding would tie
all that comes before it together. Computed where they are read, the hidden state crosses instead. No gradient
flows there, so no sum changes its order.
"""

from __future__ import annotations

import msgspec

from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.graph import Graph
from farflung.opdag.opset import lookup


def postpone_growth(graph: Graph) -> Graph:
    """Move chains of nodes without gradients that begin by growing to where their result is first read.

    A chain begins with a node whose results are larger than what it reads, parameters apart, and goes on with
    the only reader of a result as long as that reads nothing else. It moves only past nodes that have
    gradients. Nodes keep their numbers; random nodes stay.
    """
    chains = _Chains(graph)
    targets: dict[int, int] = {}
    for at in range(len(graph.nodes)):
        if at not in targets and chains.grows(at):
            chain = chains.beginning_with(at)
            target = chains.first_reader(chain[-1])
            if chains.passes_gradients(at, target):
                targets.update(dict.fromkeys(chain, target))
    order = sorted(range(len(graph.nodes)), key=lambda at: (targets.get(at, at), at not in targets, at))
    return msgspec.structs.replace(graph, nodes=[graph.nodes[at] for at in order])


class _Chains:
    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._static = static_values(graph)
        self._gradients = differentiable_values(graph)
        self._given = {entry.value for entry in graph.inputs}
        self._results = {graph.loss, *graph.metric_values(), *graph.mutations.values()}
        self._bytes = [value_type.bytes(2) for value_type in graph.values]
        self._readers: dict[int, list[int]] = {}
        for at, node in enumerate(graph.nodes):
            for value in dict.fromkeys(node.reads()):
                self._readers.setdefault(value, []).append(at)

    def grows(self, at: int) -> bool:
        """Whether a chain can begin with a node."""
        made = self._read_by(at)
        return self._may_move(at) and bool(made) and self._made_bytes(at) > sum(map(self._size, made))

    def beginning_with(self, at: int) -> list[int]:
        """The nodes of the longest chain."""
        chain = [at]
        while True:
            readers = self._all_readers(chain[-1])
            if len(readers) != 1 or not self._may_move(readers[0]):
                return chain
            if self._read_by(readers[0]) - {*self._nodes[chain[-1]].writes()}:
                return chain
            if 2 * self._made_bytes(readers[0]) < self._made_bytes(chain[-1]):
                return chain
            chain.append(readers[0])

    def first_reader(self, at: int) -> int:
        """The first node that reads a result of a node."""
        return self._all_readers(at)[0]

    def passes_gradients(self, at: int, target: int) -> bool:
        """Whether a node between two positions makes a value with a gradient."""
        between = self._nodes[at + 1 : target]
        return any(value in self._gradients for node in between for value in node.writes())

    def _may_move(self, at: int) -> bool:
        node, made = self._nodes[at], self._nodes[at].writes()
        return (
            bool(made)
            and self._results.isdisjoint(made)
            and self._gradients.isdisjoint(made)
            and not self._static.issuperset(made)
            and not lookup(node.op).draws(node)
        )

    def _all_readers(self, at: int) -> list[int]:
        return sorted({r for value in self._nodes[at].writes() for r in self._readers.get(value, ())})

    def _read_by(self, at: int) -> set[int]:
        """What a node reads of other nodes that is not static."""
        return {v for v in self._nodes[at].reads() if v not in self._given and v not in self._static}

    def _made_bytes(self, at: int) -> int:
        return sum(map(self._size, self._nodes[at].writes()))

    def _size(self, value: int) -> int:
        return self._bytes[value]
