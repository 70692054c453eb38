"""Reorder a graph so that uses of one parameter are close.

A worker runs every use of a parameter, so a use in the middle of the graph would tie that part to the first.
There are two cases. A use may read nothing but inputs: T5's decoder looks up its tokens in the encoder's
table, which can be done at the beginning; so can a student look up its own in the table that is its head.
Or a module runs several times on different data, as the two towers of a pair, or a policy and its reference
model: then the passes run side by side, layer by layer, and a cut between two layers crosses all of them.

The order in which nodes read a value that has a gradient is kept, except for lookups of the first case,
because the sum of its gradients depends on it. So a reordered graph has the bits of eager execution.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.graph import BatchSize, Graph
from farflung.opdag.opset import lookup


def uses_together(graph: Graph) -> Graph:
    """Move later uses of a parameter directly after its first use, with the nodes that they need.

    A use moves if everything it needs that is not placed yet reads only static values, or only parameters
    whose first use is placed. Then what the same pass computes from it without another parameter moves, too.
    Nodes keep their numbers; random nodes keep their order.
    """
    order = _Order(graph).run()
    return msgspec.structs.replace(graph, nodes=[graph.nodes[at] for at in order])


class _Order:
    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._types = graph.values
        self._reads = [node.reads() for node in graph.nodes]
        self._static = static_values(graph)
        self._differentiable = differentiable_values(graph)
        self._parameters = {entry.value for entry in graph.inputs_of("parameter")}
        self._producers = graph.producers()
        self._readers: dict[int, list[int]] = {}
        for at, reads in enumerate(self._reads):
            for value in dict.fromkeys(reads):
                self._readers.setdefault(value, []).append(at)
        self._next_reader = dict.fromkeys(self._readers, 0)
        self._is_placed = [False] * len(graph.nodes)
        self._begun: set[int] = set()
        self._order: list[int] = []

    def run(self) -> list[int]:
        """Positions of the nodes in their new order."""
        tied = self._tied_lookups()
        for at in range(len(self._nodes)):
            if self._is_placed[at]:
                continue
            if at in tied or self._is_deep(at):
                for lookup_at in sorted(tied):
                    self._place_lookup(lookup_at)
                    self._gather(lookup_at)
                tied = set()
            if not self._is_placed[at]:
                self._place(at)
                self._gather(at)
        return self._order

    def _tied_lookups(self) -> set[int]:
        """The first lookups in tables that are used again otherwise, such as a teacher's and a student's.

        The worker of the first segment may also run the last one, so all such lookups belong to the first.
        """
        found = set()
        for parameter in self._parameters:
            readers = self._readers.get(parameter, [])
            is_lookup = [self._is_lookup(at, parameter) for at in readers]
            if any(is_lookup[:1]) and not all(is_lookup) and self._reads_batch(readers[0]):
                found.add(readers[0])
        return found

    def _reads_batch(self, at: int) -> bool:
        """Whether a node reads something of the size of a batch: DoRA puts a constant through its weights."""
        sizes = (size for value in self._reads[at] for size in self._types[value].shape)
        return any(isinstance(size, BatchSize) for size in sizes)

    def _is_deep(self, at: int) -> bool:
        """Whether a node reads a parameter and something that the model has made."""
        others = [value for value in self._reads[at] if value not in self._parameters]
        return len(others) < len(self._reads[at]) and not self._static.issuperset(others)

    def _is_lookup(self, at: int, parameter: int) -> bool:
        """Whether a use of a parameter otherwise reads only static values."""
        return self._static.issuperset(value for value in self._reads[at] if value != parameter)

    def _place(self, at: int) -> None:
        self._is_placed[at] = True
        self._begun.update(self._parameters.intersection(self._reads[at]))
        self._order.append(at)

    def _gather(self, placed: int) -> None:
        """Place what belongs after a node: further uses of its parameters, and what follows those."""
        waiting, ahead = [placed], set[int]()
        while waiting:
            at = waiting.pop(0)
            for value in self._parameters.intersection(self._reads[at]):
                self._bring_lookups(value)
                moved = self._bring_next_uses(value)
                ahead.update(moved)
                waiting += moved
            if at in ahead:
                followers = self._follow(at)
                ahead.update(followers)
                waiting += followers

    def _bring_lookups(self, parameter: int) -> None:
        """Place the uses of a parameter that otherwise read only static values."""
        for at in self._readers[parameter]:
            if self._is_lookup(at, parameter):
                self._place_lookup(at)

    def _place_lookup(self, at: int) -> None:
        """Place a lookup with the static nodes that it needs, unless it is placed already."""
        if not self._is_placed[at]:
            values = [value for value in self._reads[at] if value in self._static]
            for needed in sorted(self._needed(values) or ()):
                self._place(needed)
            self._place(at)

    def _bring_next_uses(self, parameter: int) -> list[int]:
        """Place the next uses of a parameter, as long as they can be; returns what was placed."""
        moved: list[int] = []
        while (at := self._next_use(parameter)) is not None:
            needed = self._needed((), at)
            if needed is None or not self._keeps_order(needed):
                break
            for one in sorted(needed):
                self._place(one)
                moved.append(one)
        return moved

    def _next_use(self, value: int) -> int | None:
        """The first node that reads a value and is not placed."""
        readers = self._readers[value]
        while self._next_reader[value] < len(readers) and self._is_placed[readers[self._next_reader[value]]]:
            self._next_reader[value] += 1
        return readers[self._next_reader[value]] if self._next_reader[value] < len(readers) else None

    def _follow(self, at: int) -> list[int]:
        """Place the readers of a node's results that need nothing else but static values."""
        moved: list[int] = []
        readers = {r for value in self._nodes[at].writes() for r in self._readers.get(value, ())}
        for reader in sorted(readers):
            if self._is_placed[reader] or not self._is_ready(reader):
                continue
            needed = self._needed((), reader)
            if needed is None or not self._keeps_order(needed):
                continue
            for one in sorted(needed):
                self._place(one)
            moved.append(reader)
        return moved

    def _is_ready(self, at: int) -> bool:
        """Whether every value that a node reads is made already, or is static."""
        return all(
            value in self._static or value not in self._producers or self._is_placed[self._producers[value]]
            for value in self._reads[at]
        )

    def _needed(self, values: Iterable[int], at: int | None = None) -> set[int] | None:
        """The nodes, not placed, that values need, and `at`.

        None if one of them draws random numbers, or is the first to read a parameter.
        """
        found: set[int] = set()
        waiting = [self._producers[value] for value in values if value in self._producers]
        waiting += [] if at is None else [at]
        while waiting:
            one = waiting.pop()
            if one in found or self._is_placed[one]:
                continue
            reads = self._reads[one]
            if not self._begun.issuperset(self._parameters.intersection(reads)):
                return None
            if lookup(self._nodes[one].op).draws(self._nodes[one]):
                return None
            found.add(one)
            waiting += [self._producers[value] for value in reads if value in self._producers]
        return found

    def _keeps_order(self, moved: set[int]) -> bool:
        """Whether each value with a gradient would be read in the same order as before."""
        values = {value for at in moved for value in self._reads[at] if value in self._differentiable}
        for value in values:
            last = max(at for at in self._readers[value] if at in moved)
            earlier = (at for at in self._readers[value] if at < last)
            if not all(self._is_placed[at] or at in moved for at in earlier):
                return False
        return True
