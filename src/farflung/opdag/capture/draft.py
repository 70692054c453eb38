"""A graph while it is written: its values, inputs and nodes so far, and what became of export's nodes."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from farflung.errors import CaptureError, GraphError
from farflung.opdag import opset, wire
from farflung.opdag.analysis import live_nodes
from farflung.opdag.capture.arguments import batch_size, dtype_name
from farflung.opdag.capture.origin import Origin, origin_of
from farflung.opdag.graph import (
    MOST_RANK,
    Argument,
    Constant,
    Graph,
    Input,
    InputKind,
    Node,
    ValueType,
)
from farflung.opdag.ordering import uses_together


class Draft:
    """What is written is only added to. `origins` maps a node's number to where it came from."""

    def __init__(self) -> None:
        self.values: list[ValueType] = []
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.origins: dict[int, Origin] = {}
        self._constants: dict[str, Constant] = {}
        self._ids: dict[fx.Node, int | list[int]] = {}

    def knows(self, node: fx.Node) -> bool:
        """Whether a node of export became a value."""
        return node in self._ids

    def value_of(self, node: fx.Node) -> int:
        """The value that a node of export became."""
        found = self._ids[node]
        assert isinstance(found, int)
        return found

    def values_of(self, node: fx.Node) -> list[int]:
        """The values that a node of export with several results became."""
        found = self._ids[node]
        assert isinstance(found, list)
        return found

    def becomes(self, node: fx.Node, values: int | list[int]) -> None:
        """Remember what a node of export is from now on."""
        self._ids[node] = values

    def new_value(self, fake: Tensor) -> int:
        """A value of this type; CaptureError if there can be none."""
        if fake.ndim > MOST_RANK:
            raise CaptureError(f"a tensor has {fake.ndim} dimensions, at most {MOST_RANK} can be: reshape it")
        return self.new_value_of(ValueType(dtype_name(fake.dtype), [batch_size(size) for size in fake.shape]))

    def new_value_of(self, value_type: ValueType) -> int:
        """A value of this type."""
        self.values.append(value_type)
        return len(self.values) - 1

    def add_input(self, node: fx.Node, kind: InputKind, name: str, trainable: bool = False) -> None:
        """A placeholder of export is an input of the graph."""
        value = self.new_value(node.meta["val"])
        self.becomes(node, value)
        self.inputs.append(Input(value, kind, name, trainable))

    def add_constant(self, node: fx.Node, name: str, tensor: Tensor) -> None:
        """The same, of a tensor that the graph brings along."""
        self.add_input(node, "constant", name)
        self._constants[name] = _constant(tensor)

    def append(self, node: fx.Node, op: str, arguments: dict[str, Argument], outputs: list[int]) -> None:
        """One more node, which comes from export's `node`."""
        self.origins[len(self.nodes)] = origin_of(node)
        self.nodes.append(Node(len(self.nodes), op, arguments, outputs))

    def finished(self, loss: int, mutations: dict[str, int], ties: dict[str, str]) -> Graph:
        """The graph without what nothing depends on, validated as if it came from outside."""
        live = live_nodes(self._graph(self.nodes, self.inputs, loss, mutations, ties))
        nodes = [node for node, alive in zip(self.nodes, live, strict=True) if alive]
        read = {value for node in nodes for value in node.reads()} | set(mutations.values())
        inputs = [
            entry
            for entry in self.inputs
            if entry.kind == "input"
            or entry.value in read
            or (entry.kind == "buffer" and entry.name in mutations)
        ]
        graph = self._graph(nodes, inputs, loss, mutations, ties)
        try:
            return wire.load_graph(wire.dump(uses_together(graph)), batch=2)
        except GraphError as error:
            raise CaptureError(f"the captured graph breaks its own rules: {error}") from error

    def _graph(
        self,
        nodes: list[Node],
        inputs: list[Input],
        loss: int,
        mutations: dict[str, int],
        ties: dict[str, str],
    ) -> Graph:
        return Graph(
            version=wire.FORMAT_VERSION,
            opset=opset.needed_version(node.op for node in nodes),
            values=self.values,
            inputs=inputs,
            nodes=nodes,
            loss=loss,
            mutations=mutations,
            ties=ties,
            constants={e.name: self._constants[e.name] for e in inputs if e.kind == "constant"},
        )


def _constant(tensor: Tensor) -> Constant:
    dense = tensor.detach().cpu().contiguous()
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return Constant(dtype_name(dense.dtype), list(dense.shape), raw)
