"""Times each kind of node that a model has, forward and backward, on the device at hand.

The model runs forward once, node by node, on a real microbatch, so that every node is timed on what it
really reads: values, sizes and where they lie in memory. A kind that was timed before is not timed again,
which leaves 20 to 80 of hundreds of nodes. Each runs as the code that workers generate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    trained = {entry.value for entry in graph.inputs if entry.trainable}
    kinds = signatures(graph, samples)
    times: dict[str, OpTime] = {}
    overhead = _overhead()
    for at, step in enumerate(node_by_node(graph, state, batch)):
        if progress:
            progress(at, len(graph.nodes))
        signature = kinds[at]
        if signature is not None and signature not in times:
            forward, backward = _timed(step, gradients, trained)
            times[signature] = OpTime(signature, forward, max(0.0, backward - overhead))
    offer = TorchBackend().offer()
    return DeviceProfile(offer.name, offer.framework, torch.get_num_threads(), samples, list(times.values()))


@dataclass(frozen=True)
class Step:
    """One node as a program, with what it reads."""

    program: Program
    read: list[Tensor]

    def run(self) -> tuple[Tensor, ...]:
        """What the node makes, in the order of `program.results`."""
        return self.program.run([], self.read, 0)


def node_by_node(graph: Graph, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Iterator[Step]:
    """Run `graph` forward once, each node handed out before it runs; a value is kept until its last use."""
    samples = next(iter(batch.values())).shape[0]
    values = _given(graph, state, batch)
    last_use = {value: at for at, node in enumerate(graph.nodes) for value in node.reads()}
    for at, node in enumerate(graph.nodes):
        program = _program(node, graph, samples)
        step = Step(program, [values[value].detach() for value in program.values])
        yield step
        with torch.no_grad():
            values |= dict(zip(program.results, step.run(), strict=True))
        for value in {*node.reads(), *node.writes()}:
            if last_use.get(value, at) == at:
                del values[value]


def _given(graph: Graph, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[int, Tensor]:
    given = {}
    for entry in graph.inputs:
        if entry.kind == "constant":
            given[entry.value] = constant_tensor(graph.constants[entry.name])
        else:
            given[entry.value] = (batch if entry.kind == "input" else state)[entry.name].detach()
    return given


def _program(node: Node, graph: Graph, samples: int) -> Program:
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
    return Program(segment, samples, train=True)


def _timed(step: Step, gradients: set[int], trained: set[int]) -> tuple[float, float]:
    """Median seconds of a forward and of a backward run."""
    leaves = [
        (value, tensor.requires_grad_())
        for value, tensor in zip(step.program.values, step.read, strict=True)
        if value in gradients
    ]
    wanted = [leaf for _, leaf in leaves]
    sums = [torch.zeros_like(leaf) if value in trained else None for value, leaf in leaves]
    runs: list[tuple[float, float]] = []
    until = _clock() + SECONDS
    while len(runs) < LEAST_RUNS or (len(runs) < MOST_RUNS and _clock() < until):
        runs.append(_run(step, wanted, sums))
    forward, backward = (sorted(seconds)[len(runs) // 2] for seconds in zip(*runs, strict=True))
    for leaf in wanted:
        leaf.requires_grad_(False)
    return forward, backward


def _run(step: Step, wanted: Sequence[Tensor], sums: Sequence[Tensor | None]) -> tuple[float, float]:
    """Seconds forward and backward; a parameter's gradient is added to its sum, as over microbatches."""
    begin = _clock()
    results = step.run()
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
