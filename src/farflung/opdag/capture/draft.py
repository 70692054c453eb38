"""A graph under construction: its values, inputs and nodes so far, and the values of export's nodes.

Also converts torch's argument values to the OP-DAG's (sizes, element types, references), and describes the
origins of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from farflung.errors import CaptureError, GraphError
from farflung.opdag import opset, wire
from farflung.opdag.analysis import live_nodes
from farflung.opdag.capture.failures import line_of_stack_trace
from farflung.opdag.capture.symbols import in_words, is_of_data
from farflung.opdag.graph import (
    ITEM_BYTES,
    MOST_RANK,
    Argument,
    BatchSize,
    Constant,
    DType,
    DTypeName,
    Graph,
    Input,
    InputKind,
    Node,
    ValueType,
)
from farflung.opdag.ordering import uses_together
from farflung.opdag.postponing import postpone_growth


@dataclass(frozen=True)
class Origin:
    """The origin of a node: the module's path and the user's source line, as far as export knows them."""

    module: str
    line: str

    def __str__(self) -> str:
        module = f"module {self.module}" if self.module else "the outermost module"
        return f"in {module}, {self.line or 'source line unknown'}"


def origin_of(node: fx.Node) -> Origin:
    """The origin that export recorded for a node."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if not str(path).startswith("_")]
    module = paths[-1].removeprefix("L__self___").removeprefix("module.") if paths else ""
    return Origin("" if module == "module" else module, line_of_stack_trace(node.meta.get("stack_trace")))


def dtype_name(dtype: torch.dtype) -> DTypeName:
    """The wire name of an element type.

    Raises
    ------
    CaptureError
        The opset has no such element type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise CaptureError(
            f"element type {name} is not supported: use one of {', '.join(sorted(ITEM_BYTES))}"
        )
    return name  # type: ignore[return-value]


def batch_size(size: int | torch.SymInt) -> int | BatchSize:
    """A size as an integer, or as factor * batch + offset if it depends on the batch.

    Raises
    ------
    CaptureError
        The size depends on data, or on the batch in another form.
    """
    if isinstance(size, int):
        return size
    expression = size.node.expr
    symbols = expression.free_symbols
    if not symbols:
        return int(expression)
    if any(map(is_of_data, symbols)):
        raise CaptureError("a size depends on a tensor's data")
    at = [expression.subs(dict.fromkeys(symbols, batch)) for batch in (2, 3, 7)]
    if not all(value.is_integer for value in at):
        raise CaptureError(
            f"a size depends on the batch as {in_words(expression)}; only factor * batch + offset is known"
        )
    two, three, seven = (int(value) for value in at)
    factor = three - two
    if seven - three != 4 * factor:
        raise CaptureError(
            f"a size depends on the batch as {in_words(expression)}; only factor * batch + offset is known"
        )
    offset = two - 2 * factor
    return BatchSize(factor, offset) if factor else offset


def to_argument(value: Any, reference: Callable[[fx.Node], Argument]) -> Argument:
    """Convert one argument of a call; `reference` resolves nodes (values, or sizes computed in the graph)."""
    if isinstance(value, fx.Node):
        return reference(value)
    if isinstance(value, torch.SymInt):
        return batch_size(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return DType(dtype_name(value))
    if isinstance(value, list | tuple):
        return [to_argument(element, reference) for element in value]  # type: ignore[misc]
    raise CaptureError(f"an argument of type {type(value).__name__} cannot be captured")


class Draft:
    """A graph under construction. `origins` maps a node's number to its origin."""

    def __init__(self) -> None:
        self.values: list[ValueType] = []
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.origins: dict[int, Origin] = {}
        self._constants: dict[str, Constant] = {}
        self._ids: dict[fx.Node, int | list[int]] = {}

    def knows(self, node: fx.Node) -> bool:
        """Whether a node of export has a value."""
        return node in self._ids

    def value_of(self, node: fx.Node) -> int:
        """The value of a node of export."""
        found = self._ids[node]
        assert isinstance(found, int)
        return found

    def values_of(self, node: fx.Node) -> list[int]:
        """The values of a node of export with several results."""
        found = self._ids[node]
        assert isinstance(found, list)
        return found

    def becomes(self, node: fx.Node, values: int | list[int]) -> None:
        """Set the values of a node of export."""
        self._ids[node] = values

    def new_value(self, fake: Tensor) -> int:
        """A new value of this type; CaptureError if the type is not possible."""
        if fake.ndim > MOST_RANK:
            raise CaptureError(f"a tensor has {fake.ndim} dimensions, the limit is {MOST_RANK}: reshape it")
        return self.new_value_of(ValueType(dtype_name(fake.dtype), [batch_size(size) for size in fake.shape]))

    def new_value_of(self, value_type: ValueType) -> int:
        """A new value of this type."""
        self.values.append(value_type)
        return len(self.values) - 1

    def add_input(self, node: fx.Node, kind: InputKind, name: str, trainable: bool = False) -> None:
        """Add a placeholder of export as an input of the graph."""
        value = self.new_value(node.meta["val"])
        self.becomes(node, value)
        self.inputs.append(Input(value, kind, name, trainable))

    def add_constant(self, node: fx.Node, name: str, tensor: Tensor) -> None:
        """Add a placeholder of export as a constant."""
        self.add_input(node, "constant", name)
        self._constants[name] = _constant(tensor)

    def append(self, node: fx.Node, op: str, arguments: dict[str, Argument], outputs: list[int]) -> None:
        """Add a node, which originates from export's `node`."""
        self.origins[len(self.nodes)] = origin_of(node)
        self.nodes.append(Node(len(self.nodes), op, arguments, outputs))

    def finished(
        self,
        loss: int,
        mutations: dict[str, int],
        ties: dict[str, str],
        metrics: dict[str, list[int]],
    ) -> Graph:
        """The graph without unused parts, validated like a received one."""
        live = live_nodes(self._graph(self.nodes, self.inputs, loss, mutations, ties, metrics))
        nodes = [node for node, alive in zip(self.nodes, live, strict=True) if alive]
        read = {value for node in nodes for value in node.reads()} | set(mutations.values())
        inputs = [
            entry
            for entry in self.inputs
            if entry.kind == "input"
            or entry.value in read
            or (entry.kind == "buffer" and entry.name in mutations)
        ]
        kept = {entry.name for entry in inputs}
        ties = {alias: name for alias, name in ties.items() if name in kept}
        graph = self._graph(nodes, inputs, loss, mutations, ties, metrics)
        try:
            return wire.load_graph(wire.dump(uses_together(postpone_growth(graph))), batch=2)
        except GraphError as error:
            raise CaptureError(f"the captured graph breaks its own rules: {error}") from error

    def _graph(
        self,
        nodes: list[Node],
        inputs: list[Input],
        loss: int,
        mutations: dict[str, int],
        ties: dict[str, str],
        metrics: dict[str, list[int]],
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
            metrics=metrics,
        )


def _constant(tensor: Tensor) -> Constant:
    dense = tensor.detach().cpu().contiguous()
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return Constant(dtype_name(dense.dtype), list(dense.shape), raw)
