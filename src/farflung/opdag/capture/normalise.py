"""An exported program to the OP-DAG's normal form.

`view` becomes `reshape` (strides differ between machines), copies and aliases vanish, sizes become integers
or `BatchSize`, arguments go by schema name with defaults left out, device and layout arguments do not exist.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from farflung.errors import CaptureError, GraphError
from farflung.opdag import opset, wire
from farflung.opdag.analysis import live_nodes
from farflung.opdag.capture import advice
from farflung.opdag.capture.arguments import batch_size, dtype_name, to_argument
from farflung.opdag.capture.failures import line_of_stack_trace
from farflung.opdag.graph import (
    MOST_RANK,
    Argument,
    Constant,
    DType,
    Element,
    Graph,
    Input,
    Node,
    Ref,
    ValueType,
)
from farflung.opdag.ordering import uses_together

_ALIASES = frozenset(
    {
        "clone",
        "alias",
        "lift_fresh_copy",
        "contiguous",
        "lift_fresh",
        "_assert_tensor_metadata",
    }
)
_RENAMED = {
    "view": "reshape.default",
    "_unsafe_view": "reshape.default",
    "view_copy": "reshape.default",
    "to": "_to_copy.default",
    "__and__": "bitwise_and.Tensor",
    "__or__": "bitwise_or.Tensor",
    "min.other": "minimum.default",
    "max.other": "maximum.default",
}
_IGNORED_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"})
_TO_THE_END = 2**63 - 1  # how torch writes the open end of x[3:]
_ASSERTS = ("_assert", "sym_", "_check", "runtime_assert")


@dataclass(frozen=True)
class Origin:
    """Where a node came from: the module's path and the user's source line, as far as export knows them."""

    module: str
    line: str

    def __str__(self) -> str:
        return f"in module {self.module or '(root)'}, {self.line or 'source line unknown'}"


class Normaliser:
    """One pass over an exported program; `run` returns the graph and the origins."""

    def __init__(
        self, exported: torch.export.ExportedProgram, input_names: list[str], module: nn.Module
    ) -> None:
        self._exported = exported
        self._names = input_names
        self._module = module
        self._values: list[ValueType] = []
        self._inputs: list[Input] = []
        self._nodes: list[Node] = []
        self._constants: dict[str, Constant] = {}
        self._origins: dict[int, Origin] = {}
        self._ids: dict[fx.Node, int | list[int]] = {}

    def run(self) -> tuple[Graph, Mapping[int, Origin]]:
        """Walk the exported graph once and validate what comes out as if it came from outside."""
        nodes = list(self._exported.graph.nodes)
        self._forbid_nested(nodes)
        self._add_inputs([node for node in nodes if node.op == "placeholder"])
        for node in nodes:
            if node.op == "call_function":
                self._add_call(node)
            elif node.op == "get_attr":
                raise CaptureError(f"a nested graph cannot be captured: {self._origin(node)}", "control-flow")
        loss, mutations = self._outputs(next(node for node in nodes if node.op == "output"))
        graph = self._finish(loss, mutations)
        self._check_inputs_used(graph)
        return graph, self._origins

    def draws(self) -> list[int]:
        """Numbers of the nodes that draw random numbers."""
        return [node.number for node in self._nodes if opset.lookup(node.op).draws(node)]

    def _forbid_nested(self, nodes: list[fx.Node]) -> None:
        for node in nodes:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                name = _display(node.target)
                raise CaptureError(
                    f"higher-order op {name} cannot be captured: {self._origin(node)}"
                    + advice.for_higher_order(name),
                    "control-flow",
                )
        for node in nodes:  # what is private says more than an op that happens to stand before it
            target = node.target
            is_private = isinstance(target, torch._ops.OpOverload) and target.namespace != "aten"
            if is_private and node.meta.get("val") is not None:
                raise self._unknown(node, target)

    def _unknown(self, node: fx.Node, target: Any) -> CaptureError:
        name = target._schema.name.split("::")[-1]
        shown = f"{target.namespace}.{name}.{target._overloadname or 'default'}"
        return CaptureError(
            f"op {shown} is not in the opset: {self._origin(node)}: {advice.for_op(target.namespace)}"
        )

    def _add_inputs(self, placeholders: list[fx.Node]) -> None:
        user_names = iter(self._names)
        parameters = dict(self._module.named_parameters(remove_duplicate=False))
        for node, spec in zip(placeholders, self._exported.graph_signature.input_specs, strict=True):
            target = (spec.target or "").removeprefix("module.")
            if spec.kind is InputKind.USER_INPUT:
                self._add_input(node, "input", next(user_names))
            elif not node.users and spec.kind is not InputKind.BUFFER:
                continue  # the other name of a tied parameter
            elif spec.kind is InputKind.PARAMETER:
                self._add_input(node, "parameter", target, parameters[target].requires_grad)
            elif spec.kind is InputKind.BUFFER:
                self._add_input(node, "buffer", target)
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                self._add_input(node, "constant", target)
                self._constants[target] = _constant(self._exported.constants[str(spec.target)])
            else:
                raise CaptureError(f"an input of kind {spec.kind.name} ({node.name}) cannot be captured")

    def _add_input(self, node: fx.Node, kind: Any, name: str, trainable: bool = False) -> None:
        value = self._new_value(node.meta["val"])
        self._ids[node] = value
        self._inputs.append(Input(value, kind, name, trainable))

    def _new_value(self, fake: Tensor) -> int:
        if fake.ndim > MOST_RANK:
            raise CaptureError(f"a tensor has {fake.ndim} dimensions, at most {MOST_RANK} can be: reshape it")
        self._values.append(ValueType(dtype_name(fake.dtype), [batch_size(size) for size in fake.shape]))
        return len(self._values) - 1

    def _add_call(self, node: fx.Node) -> None:
        meta = node.meta.get("val")
        if isinstance(meta, torch.SymInt | torch.SymBool | torch.SymFloat | int | bool | float):
            return  # arithmetic on sizes: folded into the arguments that use it
        if node.target is operator.getitem:
            source, index = node.args
            ids = self._ids[source]  # type: ignore[index]
            assert isinstance(ids, list) and isinstance(index, int)
            self._ids[node] = ids[index]
            return
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(f"{_display(target)} cannot be captured: {self._origin(node)}")
        name = target._schema.name.removeprefix("aten::")
        if meta is None or name.startswith(_ASSERTS):
            return
        if name == "broadcast_tensors":
            self._broadcast(node)
        elif name == "fill":
            self._fill(node)
        elif not self._alias(node, name, meta):
            self._add_node(node, target, name, meta)

    def _broadcast(self, node: fx.Node) -> None:
        """One `expand` for each operand that has another shape than the result."""
        ids: list[int] = []
        operands: Any = node.args[0]
        for source, made in zip(operands, node.meta["val"], strict=True):
            before = self._ids[source]
            assert isinstance(before, int)
            ids.append(before)
            if source.meta["val"].shape != made.shape:
                ids[-1] = self._new_value(made)
                size: list[Element] = list(self._values[ids[-1]].shape)
                self._append(node, "aten.expand.default", {"self": Ref(before), "size": size}, ids[-1:])
        self._ids[node] = ids

    def _fill(self, node: fx.Node) -> None:
        """What assigning one value to a part becomes: that value everywhere, gradients to it included."""
        arguments: Any = node.args
        filled, value = arguments
        made = self._new_value(node.meta["val"])
        self._ids[node] = made
        if not isinstance(value, fx.Node):
            self._append(
                node, "aten.full_like.default", {"self": self._ref(filled), "fill_value": value}, [made]
            )
            return
        source = self._ref(value)
        if self._values[source.id].dtype != self._values[made].dtype:
            cast = ValueType(self._values[made].dtype, self._values[source.id].shape)
            self._values.append(cast)
            converted = Ref(len(self._values) - 1)
            self._append(
                node, "aten._to_copy.default", {"self": source, "dtype": DType(cast.dtype)}, [converted.id]
            )
            source = converted
        size: list[Element] = list(self._values[made].shape)
        self._append(node, "aten.expand.default", {"self": source, "size": size}, [made])

    def _ref(self, source: Any) -> Ref:
        found = self._ids[source]
        assert isinstance(found, int)
        return Ref(found)

    def _alias(self, node: fx.Node, name: str, meta: Any) -> bool:
        """Ops that only copy are their source; true if the node was one."""
        if name == "copy" and node.args[0].meta["val"].shape == node.args[1].meta["val"].shape:  # type: ignore[union-attr]
            source = node.args[1]
        elif name in _ALIASES or name in ("_to_copy", "to"):
            source = node.args[0]
        else:
            return False
        if source.meta["val"].dtype != meta.dtype:  # type: ignore[union-attr]
            return False
        self._ids[node] = self._ids[source]  # type: ignore[index]
        return True

    def _add_node(self, node: fx.Node, target: torch._ops.OpOverload, name: str, meta: Any) -> None:
        overload = target._overloadname or "default"
        op_name = "aten." + (_RENAMED.get(name) or _RENAMED.get(f"{name}.{overload}") or f"{name}.{overload}")
        if target.namespace != "aten" or op_name not in opset.table():
            raise self._unknown(node, target)
        arguments = self._arguments(node, target, op_name)
        outputs = meta if isinstance(meta, list | tuple) else [meta]
        used = self._used_outputs(node, len(outputs))
        try:
            ids = [self._new_value(fake) if at in used else -1 for at, fake in enumerate(outputs)]
        except CaptureError as error:
            raise CaptureError(f"{error} ({node.target}: {self._origin(node)})") from None
        self._ids[node] = ids if isinstance(meta, list | tuple) else ids[0]
        self._append(node, op_name, arguments, ids)

    def _append(self, node: fx.Node, op_name: str, arguments: dict[str, Argument], ids: list[int]) -> None:
        self._origins[len(self._nodes)] = self._origin(node)
        self._nodes.append(Node(len(self._nodes), op_name, arguments, ids))

    def _used_outputs(self, node: fx.Node, count: int) -> set[int]:
        if not isinstance(node.meta["val"], list | tuple):
            return {0}
        readers = [user for user in node.users if user.target is operator.getitem and user.users]
        return {int(user.args[1]) for user in readers} & set(range(count))  # type: ignore[arg-type]

    def _arguments(self, node: fx.Node, target: torch._ops.OpOverload, op_name: str) -> dict[str, Argument]:
        schema = target._schema.arguments
        given = {schema[at].name: value for at, value in enumerate(node.args)} | dict(node.kwargs)
        known = opset.table()[op_name].parameters
        arguments: dict[str, Argument] = {}
        for entry in schema:
            value = given.get(entry.name, entry.default_value)
            if entry.name in _IGNORED_ARGUMENTS or (
                entry.has_default_value() and value == entry.default_value
            ):
                continue
            if entry.name == "end" and value == _TO_THE_END:  # of slice and slice_scatter
                continue
            name = "shape" if op_name == "aten.reshape.default" and entry.name == "size" else entry.name
            if name not in known:
                raise CaptureError(
                    f"argument {name}={value} of {op_name} is not in the opset: {self._origin(node)}"
                    + advice.for_argument(name)
                )
            arguments[name] = self._argument(value, known[name], node)
        return arguments

    def _argument(self, value: Any, parameter: opset.Parameter, node: fx.Node) -> Argument:
        def reference(source: fx.Node) -> Argument:
            meta = source.meta.get("val")
            if source not in self._ids and not isinstance(meta, Tensor):
                return to_argument(meta, reference)
            ids = self._ids[source]
            assert isinstance(ids, int)
            return Ref(ids)

        try:
            converted = to_argument(value, reference)
        except CaptureError as error:
            raise CaptureError(f"{error} ({node.target}: {self._origin(node)})") from None
        if parameter.is_list and converted is not None and not isinstance(converted, list):
            return [converted]  # type: ignore[list-item]
        return converted

    def _outputs(self, output: fx.Node) -> tuple[int, dict[str, int]]:
        loss = -1
        mutations: dict[str, int] = {}
        results: Any = output.args[0]
        for spec, node in zip(self._exported.graph_signature.output_specs, results, strict=True):
            value = self._ids[node]
            assert isinstance(value, int)
            if spec.kind is OutputKind.USER_OUTPUT:
                loss = value
            elif spec.kind is OutputKind.BUFFER_MUTATION and value < len(self._inputs):
                raise CaptureError(
                    f"buffer {spec.target} becomes an input as it is: keep a computed value", "buffers"
                )
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                mutations[str(spec.target).removeprefix("module.")] = value
            else:
                raise self._changed(str(spec.target), spec.kind, node)
        return loss, mutations

    def _changed(self, target: str, kind: OutputKind, node: fx.Node) -> CaptureError:
        what = target.removeprefix("module.").removeprefix("batch_")
        if kind is OutputKind.USER_INPUT_MUTATION:
            words = (
                f"forward changes input {what!r} in place: {self._origin(node)}: copy it first (x.clone())"
            )
            return CaptureError(words, "inputs")
        return CaptureError(
            f"forward changes {what} in place: {self._origin(node)}: register it as a buffer", "buffers"
        )

    def _finish(self, loss: int, mutations: dict[str, int]) -> Graph:
        graph = Graph(
            version=wire.FORMAT_VERSION,
            opset=opset.needed_version(node.op for node in self._nodes),
            values=self._values,
            inputs=self._inputs,
            nodes=self._nodes,
            loss=loss,
            mutations=mutations,
            ties=self._ties(),
            constants=self._constants,
        )
        live = live_nodes(graph)
        nodes = [node for node, alive in zip(self._nodes, live, strict=True) if alive]
        read = {value for node in nodes for value in node.reads()} | set(mutations.values())
        inputs = [
            entry
            for entry in self._inputs
            if entry.kind == "input"
            or entry.value in read
            or (entry.kind == "buffer" and entry.name in mutations)
        ]
        constants = {entry.name: self._constants[entry.name] for entry in inputs if entry.kind == "constant"}
        graph = Graph(
            graph.version,
            opset.needed_version(node.op for node in nodes),
            graph.values,
            inputs,
            nodes,
            loss,
            mutations,
            graph.ties,
            constants,
        )
        try:
            return wire.load_graph(wire.dump(uses_together(graph)), batch=2)
        except GraphError as error:
            raise CaptureError(f"the captured graph breaks its own rules: {error}") from error

    def _ties(self) -> dict[str, str]:
        used = {entry.name for entry in self._inputs if entry.kind == "parameter"}
        by_tensor: dict[int, str] = {}
        parameters = list(self._module.named_parameters(remove_duplicate=False))
        for name, parameter in parameters:
            if name in used:
                by_tensor[id(parameter)] = name
        return {
            name: by_tensor[id(parameter)]
            for name, parameter in parameters
            if name not in used and id(parameter) in by_tensor
        }

    def _check_inputs_used(self, graph: Graph) -> None:
        read = {value for node in graph.nodes for value in node.reads()}
        for entry in graph.inputs_of("input"):
            if entry.value not in read:
                raise CaptureError(
                    f"the loss does not depend on input {entry.name!r}: leave it out of the data set's items",
                    "inputs",
                )

    def _origin(self, node: fx.Node) -> Origin:
        stack = node.meta.get("nn_module_stack") or {}
        paths = [str(path) for path, _ in stack.values() if not str(path).startswith("_")]
        module = paths[-1].removeprefix("L__self___").removeprefix("module.") if paths else ""
        return Origin("" if module == "module" else module, line_of_stack_trace(node.meta.get("stack_trace")))


def _display(target: Any) -> str:
    return getattr(target, "__name__", str(target))


def _constant(tensor: Tensor) -> Constant:
    dense = tensor.detach().cpu().contiguous()
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return Constant(dtype_name(dense.dtype), list(dense.shape), raw)
