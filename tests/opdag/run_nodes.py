"""A graph run node by node, as the code that workers generate, for tests to look at what is made."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from farflung.opdag.graph import Graph, Node
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.profiling.profile import program_of
from farflung.runtime.torch_backend.tensors import constant_tensor


def run_nodes(
    module: nn.Module, graph: Graph, batch: dict[str, Tensor]
) -> Iterator[tuple[Node, dict[int, Tensor]]]:
    """Each node after it has run without a tape, with all values so far."""
    samples = next(iter(batch.values())).shape[0]
    state = {**named_state(module, graph), **batch}
    values: dict[int, Tensor] = {}
    for entry in graph.inputs:
        constant = graph.constants.get(entry.name) if entry.kind == "constant" else None
        values[entry.value] = (constant_tensor(constant) if constant else state[entry.name]).detach()
    for node in graph.nodes:
        program = program_of(node, graph, samples)
        with torch.no_grad():
            made = program.run([], [values[value] for value in program.values], 0)
        values.update(zip(program.results, made, strict=True))
        yield node, values
