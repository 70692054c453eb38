"""Convert an exported program to the OP-DAG's normal form: its inputs, its calls one by one, its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from farflung.errors import CaptureError
from farflung.opdag import opset
from farflung.opdag.capture import missing_ops
from farflung.opdag.capture.calls import Calls, display
from farflung.opdag.capture.draft import Draft, Origin, origin_of
from farflung.opdag.capture.missing_ops import missing_calls, refusal
from farflung.opdag.graph import Graph


class Normaliser:
    """One pass over an exported program; `run` returns the graph and the origins.

    `metrics` says how many of the program's results, after the loss, each metric has.
    """

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        input_names: list[str],
        module: nn.Module,
        metrics: Mapping[str, int],
    ) -> None:
        self._exported = exported
        self._names = input_names
        self._module = module
        self._metrics = metrics
        self._draft = Draft()

    def run(self) -> tuple[Graph, Mapping[int, Origin]]:
        """Walk the exported graph once, and validate the result like a received graph."""
        nodes = list(self._exported.graph.nodes)
        self._forbid_nested(nodes)
        if missing := missing_calls(nodes):
            raise refusal(missing)
        self._add_inputs([node for node in nodes if node.op == "placeholder"])
        calls = Calls(self._draft)
        for node in nodes:
            if node.op == "call_function":
                calls.add(node)
            elif node.op == "get_attr":
                raise CaptureError(f"a nested graph cannot be captured: {origin_of(node)}", "control-flow")
        (loss, *scalars), mutations = self._outputs(next(node for node in nodes if node.op == "output"))
        rest = iter(scalars)
        metrics = {name: list(islice(rest, count)) for name, count in self._metrics.items()}
        graph = self._draft.finished(loss, mutations, self._ties(), metrics)
        _check_inputs_used(graph)
        return graph, self._draft.origins

    def draws(self) -> list[int]:
        """Numbers of the nodes that draw random numbers."""
        return [node.number for node in self._draft.nodes if opset.lookup(node.op).draws(node)]

    def _forbid_nested(self, nodes: list[fx.Node]) -> None:
        for node in nodes:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                name = display(node.target)
                raise CaptureError(
                    f"higher-order op {name} cannot be captured: {origin_of(node)}"
                    + missing_ops.for_higher_order(name),
                    "control-flow",
                )

    def _add_inputs(self, placeholders: list[fx.Node]) -> None:
        draft = self._draft
        user_names = iter(self._names)
        parameters = dict(self._module.named_parameters(remove_duplicate=False))
        for node, spec in zip(placeholders, self._exported.graph_signature.input_specs, strict=True):
            target = (spec.target or "").removeprefix("module.")
            if spec.kind is InputKind.USER_INPUT:
                draft.add_input(node, "input", next(user_names))
            elif not node.users and spec.kind is not InputKind.BUFFER:
                continue  # the other name of a tied parameter
            elif spec.kind is InputKind.PARAMETER:
                draft.add_input(node, "parameter", target, parameters[target].requires_grad)
            elif spec.kind is InputKind.BUFFER:
                draft.add_input(node, "buffer", target)
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                draft.add_constant(node, target, self._exported.constants[str(spec.target)])
            else:
                raise CaptureError(f"an input of kind {spec.kind.name} ({node.name}) cannot be captured")

    def _outputs(self, output: fx.Node) -> tuple[list[int], dict[str, int]]:
        """The loss and the values of metrics, and the new values of buffers."""
        scalars: list[int] = []
        mutations: dict[str, int] = {}
        results: Any = output.args[0]
        for spec, node in zip(self._exported.graph_signature.output_specs, results, strict=True):
            value = self._draft.value_of(node)
            if spec.kind is OutputKind.USER_OUTPUT:
                scalars.append(value)
            elif spec.kind is OutputKind.BUFFER_MUTATION and value < len(self._draft.inputs):
                raise CaptureError(
                    f"buffer {spec.target} becomes an input as it is: keep a computed value", "buffers"
                )
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                mutations[str(spec.target).removeprefix("module.")] = value
            elif spec.kind is not OutputKind.USER_INPUT_MUTATION:  # an input is read once, by this forward
                raise _changed(str(spec.target), node)
        return scalars, mutations

    def _ties(self) -> dict[str, str]:
        """Further names of parameters and buffers, by which a module that stands twice is saved."""
        used = {entry.name for entry in self._draft.inputs if entry.kind in ("parameter", "buffer")}
        named = [
            *self._module.named_parameters(remove_duplicate=False),
            *self._module.named_buffers(remove_duplicate=False),
        ]
        by_tensor = {id(tensor): name for name, tensor in named if name in used}
        return {
            name: by_tensor[id(tensor)]
            for name, tensor in named
            if name not in used and id(tensor) in by_tensor
        }


def _changed(target: str, node: fx.Node) -> CaptureError:
    what = target.removeprefix("module.")
    return CaptureError(
        f"forward changes {what} in place: {origin_of(node)}: register it as a buffer", "buffers"
    )


def _check_inputs_used(graph: Graph) -> None:
    read = {value for node in graph.nodes for value in node.reads()}
    for entry in graph.inputs_of("input"):
        if entry.value not in read:
            raise CaptureError(
                f"the loss does not depend on input {entry.name!r}: leave it out of the data set's items",
                "inputs",
            )
