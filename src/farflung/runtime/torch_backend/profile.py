"""Times each kind of node that a model has, forward and backward, on the device at hand.

The model runs forward once, node by node, on a real microbatch, so that every node is timed on what it
really reads: values, sizes and where they lie in memory. A kind that was timed before is not timed again,
which leaves 20 to 80 of hundreds of nodes. Each runs as the code that workers generate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from farflung.opdag.analysis import differentiable_values
from farflung.opdag.graph import Graph, Node
from farflung.opdag.segment import Segment
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.tensors import constant_tensor
from farflung.workload.profile import DeviceProfile, OpTime, signatures

LEAST_RUNS, MOST_RUNS = 5, 50
SECONDS = 0.05
"""A kind is run until this has passed, within the limits above."""


@dataclass(frozen=True)
class _Kind:
    """One node as a program, the values whose gradient it is asked for, and which of them are parameters."""

    program: Program
    needs_gradient: frozenset[int]
    trained: frozenset[int]


def profile_graph(
    graph: Graph,
    state: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    progress: Callable[[int, int], None] | None = None,
) -> DeviceProfile:
    """Time the nodes of `graph` on one microbatch.

    Parameters
    ----------
    graph
        The model.
    state
        Every parameter and buffer by name; nothing is changed.
    batch
        A collated microbatch by the names of the model's inputs, as large as one will be in training.
    progress
        Told how many nodes of how many have run.
    """
    samples = next(iter(batch.values())).shape[0]
    gradients = differentiable_values(graph)
    values = _given(graph, state, batch)
    last_use = {value: at for at, node in enumerate(graph.nodes) for value in node.reads()}
    times: dict[str, OpTime] = {}
    overhead = _overhead()
    for at, (node, signature) in enumerate(zip(graph.nodes, signatures(graph, samples), strict=True)):
        if progress:
            progress(at, len(graph.nodes))
        kind = _kind(node, graph, samples, gradients)
        read = [values[value].detach() for value in kind.program.values]
        if signature is not None and signature not in times:
            forward, backward = _timed(kind, read)
            times[signature] = OpTime(signature, forward, max(0.0, backward - overhead))
        with torch.no_grad():
            made = kind.program.run([], read, 0)
        values |= dict(zip(kind.program.results, made, strict=True))
        for value in {*node.reads(), *node.writes()}:
            if last_use.get(value, at) == at:
                del values[value]
    offer = TorchBackend().offer()
    return DeviceProfile(offer.name, offer.framework, torch.get_num_threads(), samples, list(times.values()))


def _given(graph: Graph, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[int, Tensor]:
    given = {}
    for entry in graph.inputs:
        if entry.kind == "constant":
            given[entry.value] = constant_tensor(graph.constants[entry.name])
        else:
            given[entry.value] = (batch if entry.kind == "input" else state)[entry.name].detach()
    return given


def _kind(node: Node, graph: Graph, samples: int, gradients: set[int]) -> _Kind:
    """The node as a segment of its own, to which all that it reads is sent."""
    reads, writes = sorted(set(node.reads())), node.writes()
    segment = Segment(
        version=graph.version,
        opset=graph.opset,
        number=0,
        values={value: graph.values[value] for value in (*reads, *writes)},
        inputs=[],
        owned=[],
        receives=reads,
        nodes=[node],
        sends=writes,
        differentiable=[],
        loss=None,
        mutations={},
        constants={},
    )
    trained = {entry.value for entry in graph.inputs if entry.trainable}
    program = Program(segment, samples, train=True)
    return _Kind(program, frozenset(gradients & set(reads)), frozenset(trained & set(reads)))


def _timed(kind: _Kind, read: Sequence[Tensor]) -> tuple[float, float]:
    """Median seconds of a forward and of a backward run."""
    leaves = [
        tensor.requires_grad_(value in kind.needs_gradient)
        for value, tensor in zip(kind.program.values, read, strict=True)
    ]
    by_value = dict(zip(kind.program.values, leaves, strict=True))
    wanted = [by_value[value] for value in sorted(kind.needs_gradient)]
    sums = [torch.zeros_like(by_value[v]) if v in kind.trained else None for v in sorted(kind.needs_gradient)]
    runs: list[tuple[float, float]] = []
    until = _clock() + SECONDS
    while len(runs) < LEAST_RUNS or (len(runs) < MOST_RUNS and _clock() < until):
        runs.append(_run(kind.program, leaves, wanted, sums))
    halves = [sorted(seconds)[len(runs) // 2] for seconds in zip(*runs, strict=True)]
    for leaf in leaves:
        leaf.requires_grad_(False)
    return halves[0], halves[1]


def _run(
    program: Program, leaves: Sequence[Tensor], wanted: Sequence[Tensor], sums: Sequence[Tensor | None]
) -> tuple[float, float]:
    """Seconds forward and backward; a parameter's gradient is added to its sum, as over microbatches."""
    begin = _clock()
    results = program.run([], leaves, 0)
    forward = _clock() - begin
    made = [result for result in results if result.requires_grad]
    if not made or not wanted:
        return forward, 0.0
    gradients = [torch.ones_like(result) for result in made]
    begin = _clock()
    found = torch.autograd.grad(made, wanted, gradients, allow_unused=True)
    for total, gradient in zip(sums, found, strict=True):
        if total is not None and gradient is not None:
            total += gradient
    return forward, _clock() - begin


def _clock() -> float:
    """Seconds of this thread where it does all the work: what else the machine does then counts little."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _overhead() -> float:
    """Seconds that starting autograd takes, beside what any node adds."""
    leaf = torch.zeros(1, requires_grad=True)
    one = torch.ones(1)
    seconds = []
    for _ in range(MOST_RUNS):
        result = leaf.view_as(leaf)
        begin = _clock()
        torch.autograd.grad([result], [leaf], [one])
        seconds.append(_clock() - begin)
    return sorted(seconds)[len(seconds) // 2]
