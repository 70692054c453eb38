"""Check the tokens, labels and other indices in a microbatch before any worker gets them.

A worker that finds one out of range cannot go on, and the state of a job on it alone is lost. Here nothing is
lost: the run ends before the step that needs the item, and the message can name that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from farflung.errors import JobError
from farflung.opdag.analysis import needed_for, static_values
from farflung.opdag.graph import FLOATING, Graph, Input, Node
from farflung.opdag.segment import Segment
from farflung.runtime.indices import IndexRange, index_ranges, out_of_range
from farflung.text import and_more

if TYPE_CHECKING:
    from torch import Tensor

_Compute = Callable[[Mapping[str, "Tensor"]], dict[int, "Tensor"]]


class IndexCheck:
    """The indices of `graph` that follow from a microbatch of `batch` samples alone.

    They are model inputs, or computed from such by operations on whole numbers (`labels[:, 1:]`).
    """

    def __init__(self, graph: Graph, batch: int) -> None:
        needed = _Needed(graph)
        self._ranges = [one for one in index_ranges(graph, batch) if needed.takes(one.value)]
        self._compute = _computing(graph, needed, [*{one.value: None for one in self._ranges}], batch)

    def require(self, tensors: Mapping[str, Tensor], items: Sequence[str]) -> None:
        """Check model inputs by name, whose samples are `items`, such as "data[7]".

        Raises
        ------
        JobError
            An index is out of range; the message names its item.
        """
        if not (found := self._trouble(tensors)):
            return
        is_by_sample = all(tensor.shape[:1] == (len(items),) for tensor in tensors.values())
        for at, item in enumerate(items if is_by_sample else ()):
            alone = {name: tensor[at].expand(tensor.shape) for name, tensor in tensors.items()}
            if words := self._trouble(alone):
                raise JobError(f"{item} contains {words}")
        raise JobError(f"the batch of {and_more(items)} contains {found}")

    def _trouble(self, tensors: Mapping[str, Tensor]) -> str:
        """What is wrong with the first index that is out of range; empty if none is."""
        if not self._ranges:
            return ""
        values = self._compute(tensors)
        known = [one for one in self._ranges if one.value in values]
        return next(filter(None, (_out_of_range(one, values[one.value]) for one in known)), "")


class _Needed:
    """The nodes and inputs from which integer values are computed that depend on model inputs alone."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._static = static_values(graph)
        self._producers = graph.producers()
        self._inputs = {entry.value: entry for entry in graph.inputs}
        self.nodes: set[int] = set()
        self.inputs: set[int] = set()

    def takes(self, value: int) -> bool:
        """Whether the value is computed so; then what it needs is added."""
        nodes, inputs = needed_for(value, self._graph.nodes, self._producers)
        kinds = {self._inputs[one].kind for one in inputs}
        made = {one for at in nodes for one in self._graph.nodes[at].writes()}
        is_whole = all(self._graph.values[one].dtype not in FLOATING for one in made)
        if value not in self._static or not is_whole or "input" not in kinds or "buffer" in kinds:
            return False
        self.nodes |= nodes
        self.inputs |= inputs
        return True


def _computing(graph: Graph, needed: _Needed, results: list[int], batch: int) -> _Compute:
    """A function from model inputs by name to the values `results`.

    Where an index is itself looked up by one that is out of range, only those that are inputs are given.
    """
    from farflung.runtime.torch_backend.codegen import Program
    from farflung.runtime.torch_backend.tensors import constant_tensor

    inputs = [entry for entry in graph.inputs if entry.value in needed.inputs]
    segment = _segment(graph, inputs, [graph.nodes[at] for at in sorted(needed.nodes)], results)
    program = Program(segment, batch, train=False)
    names = {entry.value: entry.name for entry in inputs}
    state = [constant_tensor(graph.constants[names[value]]) for value in program.state]

    def compute(tensors: Mapping[str, Tensor]) -> dict[int, Tensor]:
        given = {value: tensors[names[value]] for value in program.values}
        try:
            return program.results_of(state, given, 0)
        except (IndexError, RuntimeError):
            return given

    return compute


def _segment(graph: Graph, inputs: list[Input], nodes: list[Node], results: list[int]) -> Segment:
    known = {entry.value for entry in inputs} | {value for node in nodes for value in node.writes()}
    return Segment(
        version=graph.version,
        opset=graph.opset,
        number=0,
        values={value: graph.values[value] for value in sorted(known)},
        inputs=inputs,
        owned=[],
        receives=[],
        nodes=nodes,
        sends=results,
        differentiable=[],
        loss=None,
        mutations={},
        constants={e.name: graph.constants[e.name] for e in inputs if e.kind == "constant"},
    )


def _out_of_range(expected: IndexRange, indices: Tensor) -> str:
    counted = indices if expected.ignored is None else indices[indices != expected.ignored]
    return out_of_range(expected, int(counted.min()), int(counted.max())) if counted.numel() else ""
