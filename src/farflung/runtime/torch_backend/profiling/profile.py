"""Time a model on this device: each kind of node, sums of gradients, and updates of parameters.

Kinds with a known time are not timed again. One node of each kind runs, in the model's order: first all
forward, then all backward, as in training. A node then reads what the one before it has just written, weights
were last used a whole pass ago, and saved tensors stay in memory until they are needed. (Nodes that ran
repeatedly on their own made a whole model seem up to 16 % faster than it was, probably because they found
everything in the cache.) For a node whose kind is known or has run, the results are those of a similar node.
So 20 to 80 of hundreds of nodes run, each with the code that workers generate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farflung.opdag import opset
from farflung.opdag.analysis import differentiable_values
from farflung.opdag.graph import FLOATING, Graph, Node, ValueType
from farflung.opdag.opset import lookup
from farflung.opdag.segment import Segment
from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.profiling.timing import (
    FAR_BYTES,
    autograd_seconds,
    clock,
    fill,
    random_like,
    sum_time,
    update_times,
)
from farflung.runtime.torch_backend.tensors import DTYPES, constant_tensor
from farflung.workload.profile import DeviceProfile, OpTime, gradient_sums, signatures
from farflung.workload.profile_store import Device, Known, device_name

LEAST_PASSES, MOST_PASSES = 5, 50
LEAST_SECONDS, MOST_SECONDS = 0.5, 8.0
"""Passes end once both minimums are reached, and in any case at a maximum; the first pass does not count."""


@dataclass
class _Timed:
    """A node that is timed: its program, the values it reads and makes, and the seconds of each pass.

    `at_once`: one kernel computes the gradients of received values and those of parameters.
    """

    signature: str
    program: Program
    reads: list[int]
    makes: list[int]
    at_once: bool
    seconds: list[tuple[float, float, float, float]] = field(default_factory=list)

    def median(self) -> OpTime:
        columns = zip(*self.seconds, strict=True)
        return OpTime(self.signature, *(sorted(column)[len(column) // 2] for column in columns))


@dataclass
class _Tape:
    """A node that has run forward in this pass."""

    timed: _Timed
    leaves: dict[int, Tensor]
    results: dict[int, Tensor]
    forward_seconds: float


class Replay:
    """One node of each kind, in the order of the model. `given` holds values that no timed node makes."""

    def __init__(
        self,
        graph: Graph,
        samples: int,
        kinds: Sequence[str | None],
        known: Mapping[str, OpTime],
        tensors: Mapping[str, Tensor],
    ) -> None:
        self._graph, self._samples, self._kinds, self._known = graph, samples, kinds, known
        self._gradients = differentiable_values(graph)
        self._trained = {entry.value for entry in graph.inputs if entry.trainable}
        self._given = _given(graph, samples, tensors)
        self._like: dict[int, int] = {}  # value of a skipped node -> the value of a similar one
        self._nodes: list[_Timed] = []
        self._sums: dict[int, Tensor] = {}
        self._overhead = 0.0

    def prepare(self) -> None:
        """Choose the nodes to time, if any, and compute the values that they read."""
        if all(kind is None or kind in self._known for kind in self._kinds):
            return
        first: dict[str, Node] = {}
        for node, kind in zip(self._graph.nodes, self._kinds, strict=True):
            if kind is not None and kind in first:
                self._like.update(zip(node.writes(), map(self._of, first[kind].writes()), strict=True))
                continue
            if kind is not None:
                first[kind] = node
            if kind is not None and kind not in self._known:
                self._choose(node, kind)
            elif kind is None or self._is_cheap(node):
                self._run(node, program_of(node, self._graph, self._samples))
        self._keep_what_is_read()

    def times(self) -> list[OpTime]:
        """Seconds of every chosen node, medians over the passes."""
        if not self._nodes:
            return []
        self._overhead = autograd_seconds()
        apart = torch.zeros(self._apart_bytes() // 4)
        begin = time.perf_counter()
        self._pass(apart)  # page faults, and kernels' preparations for new shapes
        if time.perf_counter() - begin < MOST_SECONDS / 2:
            for timed in self._nodes:
                timed.seconds.clear()
        passes = 0
        begin = time.perf_counter()
        while passes < MOST_PASSES and (spent := time.perf_counter() - begin) < MOST_SECONDS:
            if passes >= LEAST_PASSES and spent > LEAST_SECONDS:
                break
            if passes and spent / passes * (passes + 1) > MOST_SECONDS:
                break
            self._pass(apart)
            passes += 1
        return [timed.median() for timed in self._nodes]

    def _of(self, value: int) -> int:
        return self._like.get(value, value)

    def _value(self, value: int) -> Tensor:
        """A value that a node reads; random numbers if no node has made it."""
        if value not in self._given:
            self._given[value] = _random_value(self._graph.values[value], self._samples)
        return self._given[value]

    def _choose(self, node: Node, kind: str) -> None:
        program = program_of(node, self._graph, self._samples)
        reads = [self._of(value) for value in program.values]
        at_once = lookup(node.op).group == "normalisation"
        self._nodes.append(_Timed(kind, program, reads, list(program.results), at_once))
        self._run(node, program)

    def _run(self, node: Node, program: Program) -> None:
        with torch.no_grad():
            results = program.run([], [self._value(self._of(v)) for v in program.values], 0)
        self._given.update(zip(program.results, results, strict=True))

    def _is_cheap(self, node: Node) -> bool:
        """Whether a node runs although it is not timed: views, and integers that must be right."""
        types = [self._graph.values[value].dtype for value in node.writes()]
        return lookup(node.op).group in ("view", "creation") or any(t not in FLOATING for t in types)

    def _keep_what_is_read(self) -> None:
        made = {value for timed in self._nodes for value in timed.makes}
        read = {value for timed in self._nodes for value in timed.reads}
        self._given = {value: self._value(value) for value in read - made}
        for value in read & self._trained:
            self._sums[value] = torch.zeros_like(self._given[value])

    def _apart_bytes(self) -> int:
        """The bytes that the rest of the model touches between two uses of the same weight."""
        state = {e.value for e in self._graph.inputs if e.kind != "input"}
        here = sum(self._given[value].nbytes for value in state & self._given.keys())
        whole = sum(self._graph.values[value].bytes(self._samples) for value in state)
        return max(0, min(FAR_BYTES, whole - here))

    def _pass(self, apart: Tensor) -> None:
        """All chosen nodes forward, then backward."""
        values = dict(self._given)
        apart.add_(1.0)
        tapes = [self._forward(timed, values) for timed in self._nodes]
        values.clear()
        gradients: dict[int, Tensor] = {}
        apart.add_(1.0)
        while tapes:
            self._backward(tapes.pop(), gradients)

    def _forward(self, timed: _Timed, values: dict[int, Tensor]) -> _Tape:
        leaves = {value: values[value].detach() for value in timed.reads}
        for value in self._gradients & leaves.keys():
            leaves[value].requires_grad_()
        read = [leaves[value] for value in timed.reads]
        begin = clock()
        results = timed.program.run([], read, 0)
        seconds = clock() - begin
        made = dict(zip(timed.makes, results, strict=True))
        values.update(made)
        return _Tape(timed, leaves, made, seconds)

    def _backward(self, tape: _Tape, gradients: dict[int, Tensor]) -> None:
        """Run backward: gradients of received values first, then those of parameters, added to their sums."""
        made = {v: t for v, t in tape.results.items() if t.requires_grad}
        arrived = [gradients.pop(v, None) for v in made]
        pairs = [
            random_like(t) if g is None or g.shape != t.shape else g
            for t, g in zip(made.values(), arrived, strict=True)
        ]
        inputs = {v: t for v, t in tape.leaves.items() if t.requires_grad and v not in self._trained}
        weights = {v: t for v, t in tape.leaves.items() if t.requires_grad and v in self._trained}
        seconds = [0.0, 0.0, 0.0]
        found: dict[int, Tensor] = {}
        at_once = tape.timed.at_once and inputs
        if made and inputs:
            wanted = inputs | weights if at_once else inputs
            found, seconds[0] = self._differentiate(made, wanted, pairs, keep=bool(weights) and not at_once)
        if made and weights and not at_once:
            more, seconds[1] = self._differentiate(made, weights, pairs, keep=False)
            found |= more
        for value in weights.keys() & found.keys():
            begin = clock()
            self._sums[value] += found[value]
            seconds[2] += clock() - begin
        gradients.update((value, found[value]) for value in inputs.keys() & found.keys())
        tape.timed.seconds.append((tape.forward_seconds, seconds[0], seconds[1], seconds[2]))

    def _differentiate(
        self, made: Mapping[int, Tensor], wanted: Mapping[int, Tensor], given: Sequence[Tensor], keep: bool
    ) -> tuple[dict[int, Tensor], float]:
        begin = clock()
        found = torch.autograd.grad(
            list(made.values()), list(wanted.values()), given, retain_graph=keep, allow_unused=True
        )
        seconds = max(0.0, clock() - begin - self._overhead)
        return {v: g for v, g in zip(wanted, found, strict=True) if g is not None}, seconds


def _given(graph: Graph, samples: int, tensors: Mapping[str, Tensor]) -> dict[int, Tensor]:
    given = {}
    for entry in graph.inputs:
        kind = graph.values[entry.value]
        if entry.kind == "constant":
            given[entry.value] = constant_tensor(graph.constants[entry.name])
        elif entry.name in tensors:
            given[entry.value] = tensors[entry.name].detach()
        elif entry.kind == "buffer":
            given[entry.value] = torch.ones(kind.shape_at(samples), dtype=DTYPES[kind.dtype])
        else:
            given[entry.value] = _random_value(kind, samples)
    return given


def _random_value(kind: ValueType, samples: int) -> Tensor:
    """Random numbers around zero, or zeros for integers, which are legal indices everywhere."""
    shape, dtype = kind.shape_at(samples), DTYPES[kind.dtype]
    if kind.dtype not in FLOATING:
        return (torch.ones if kind.dtype == "bool" else torch.zeros)(shape, dtype=dtype)
    made = torch.empty(shape, dtype=dtype)
    fill(made)
    return made


def program_of(node: Node, graph: Graph, samples: int) -> Program:
    """The node as a segment of its own, which receives everything that it reads."""
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


def this_device() -> Device:
    """Everything that times on this device depend on, except the op."""
    table = f"{opset.version()} {opset.schema_hash(opset.version())}"
    return Device(device_name(), f"torch {torch.__version__}", table, torch.get_num_threads())


def profile_graph(
    graph: Graph,
    samples: int,
    state: Mapping[str, Tensor] | None = None,
    batch: Mapping[str, Tensor] | None = None,
    optimizer: Optimizer | None = None,
    known: Known | None = None,
) -> DeviceProfile:
    """Time the nodes of `graph` on microbatches of `samples`, and with `optimizer` its parameters' updates.

    Parameters
    ----------
    graph
        The model.
    state, batch
        Parameters, buffers and model inputs by name. Missing ones are random: a node's time hardly depends
        on its numbers. Nothing is changed.
    optimizer
        Its updates are timed.
    known
        Earlier times from this device (`profile_store`), which are not measured again.
    """
    known = known or Known()
    kinds = signatures(graph, samples)
    sums = sorted({kind for of_node in gradient_sums(graph, samples) for kind in of_node})
    replay = Replay(graph, samples, kinds, known.nodes, {**(state or {}), **(batch or {})})
    replay.prepare()
    found = {**known.nodes, **{time.signature: time for time in replay.times()}}
    found |= {kind: sum_time(kind) for kind in sums if kind not in found}
    wanted = dict.fromkeys([*(kind for kind in kinds if kind is not None), *sums])
    device = this_device()
    return DeviceProfile(
        device=device.name,
        framework=device.framework,
        opset=device.opset,
        threads=device.threads,
        microbatch_size=samples,
        times=[found[kind] for kind in wanted],
        updates=[] if optimizer is None else update_times(graph, optimizer, known.updates),
    )
