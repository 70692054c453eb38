"""A segment's step as torch's compiler makes it: fused kernels for forward, backward and accumulate.

The joint graph of a microbatch, forward and backward, is traced and cut twice: where the compiler's own
partitioner finds the fewest bytes to save, and, within the backward pass, after the gradients that other
workers wait for. Each part becomes one function. Fused kernels round differently, and matrices are padded, so
the bits are not those of the other passes; random numbers are drawn in another order, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, fx

from farflung.opdag.graph import Input
from farflung.opdag.segment import Segment
from farflung.runtime.footprint import needs_of
from farflung.runtime.indices import IndexRange, index_ranges
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.device import Place, generator_of
from farflung.runtime.torch_backend.passes import Results, Sink, Tape
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.runtime.training import Training
from farflung.seeds import mix
from farflung.workload.footprint import Needs

Function = Callable[..., Sequence[Tensor]]


MORE = 1.15
"""Times the memory of a running microbatch that a compiled segment may take: on an H200 one of 85M parameters
took 1.08 times as much as uncompiled, and the allocator held 1.10 times as much of that."""


def compiled_needs(segment: Segment, training: Training) -> Needs[float]:
    """The memory of a compiled segment by its parts, in bytes."""
    needs = needs_of(
        segment, training.microbatch_size, memory_of_updates(training.optimizer, training.copies)
    )
    return replace(needs, running=MORE * needs.running, again=MORE * needs.again)


class Uncompiled(Exception):
    """A segment cannot be compiled; says why."""


class _Parts(NamedTuple):
    """The three functions, with what each one takes and makes.

    `forward` takes the state and the values, and makes the results, the smallest and largest of the indices
    in the ranges `noted`, and what is saved. `backward` takes from what is saved and the gradients given to
    `ends`, at `first_takes`, and makes the gradients of `sends` and what `accumulate` needs of it; None if
    nothing is sent. `accumulate` takes from all those, at `then_takes`, and makes the gradients of the state
    at `trained`; `copied` are those among them that share memory with something else.
    """

    forward: Function
    backward: Function | None
    accumulate: Function | None
    noted: list[IndexRange]
    ends: dict[int, tuple[tuple[int, ...], torch.dtype]]
    sends: list[int]
    first_takes: list[int]
    then_takes: list[int]
    trained: list[int]
    copied: set[int]


class CompiledPass:
    """See `passes.Pass`. A gradient that is expected and does not come counts as zeros.

    So parameters that only it reaches have a gradient of zeros, where they would have none uncompiled, and
    the optimizer updates them with that. `state` are the tensors of the segment's entries that are not model
    inputs, in order.

    Raises
    ------
    Uncompiled
        The segment has something that the compiler does not take.
    """

    def __init__(
        self,
        segment: Segment,
        batch: int,
        entries: Sequence[Input],
        state: Sequence[Tensor],
        place: Place,
    ) -> None:
        self.program = Program(segment, batch, True, place)
        self._generator = generator_of(place.device)
        self._place = place
        try:
            self._parts = _Builder(segment, batch, entries, place, self.program).build(state)
        except Uncompiled:
            raise
        except Exception as error:  # the compiler raises anything
            said = f"{type(error).__name__}: {error}".strip()
            raise Uncompiled(said.partition("\n")[0][:300]) from error

    def results(self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int) -> Results:
        return self.forward(state, values, seed)[0]

    def forward(
        self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int
    ) -> tuple[Results, Tape]:
        self._generator.manual_seed(mix(seed, 0))
        with torch.no_grad():
            made = self._parts.forward(
                *(tensor.detach() for tensor in state), *(values[value] for value in self.program.values)
            )
        count, noted = len(self.program.results), self._parts.noted
        results = dict(zip(self.program.results, made[:count], strict=True))
        for expected in noted:
            self._place.note(expected, *made[count : count + 2])
            count += 2
        return results, _CompiledTape(self._parts, state, made[count:])


class _CompiledTape:
    """What a microbatch has saved."""

    def __init__(self, parts: _Parts, state: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        self._parts = parts
        self._state = state
        self._held: list[Tensor] = list(saved)

    def backward(self, gradients: Mapping[int, Tensor], send: Sink) -> None:
        parts = self._parts
        for value, (shape, dtype) in parts.ends.items():
            found = gradients.get(value)
            device = self._state[0].device if self._state else None
            self._held.append(torch.zeros(shape, dtype=dtype, device=device) if found is None else found)
        if parts.backward is not None:
            with torch.no_grad():
                made = parts.backward(*(self._held[at] for at in parts.first_takes))
            for value, gradient in zip(parts.sends, made[: len(parts.sends)], strict=True):
                send(value, gradient.contiguous())
            self._held += made[len(parts.sends) :]

    def accumulate(self) -> None:
        if self._parts.accumulate is not None:
            with torch.no_grad():
                made = self._parts.accumulate(*(self._held[at] for at in self._parts.then_takes))
                self._held = []
                _add([self._state[at] for at in self._parts.trained], made, self._parts.copied)


def _add(parameters: Sequence[Tensor], gradients: Sequence[Tensor], copied: set[int]) -> None:
    """Add gradients to the parameters' `grad`."""
    sums, more = [], []
    for at, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if parameter.grad is not None:
            sums.append(parameter.grad)
            more.append(gradient)
        elif at in copied or gradient.stride() != parameter.stride():
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
        else:
            parameter.grad = gradient
    if sums:
        torch._foreach_add_(sums, more)


class _Builder:
    """Traces, cuts and compiles one segment."""

    def __init__(
        self, segment: Segment, batch: int, entries: Sequence[Input], place: Place, program: Program
    ) -> None:
        self._segment = segment
        self._batch = batch
        self._place = place
        self._noted: list[IndexRange] = []
        self._program = program
        differentiable = set(segment.differentiable)
        answered = {value for value in segment.sends if value in differentiable}
        self._ends = [v for v in program.results if v in answered or v == segment.loss]
        self._received = [v for v in program.values if v in differentiable and v in segment.receives]
        self._trained = [at for at, entry in enumerate(entries) if entry.trainable]

    def build(self, state: Sequence[Tensor]) -> _Parts:
        """The parts, run once on made-up values, so that each knows how memory lies in what it takes."""
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        state = [tensor.detach() for tensor in state]
        values = [self._made_up(value) for value in self._program.values]
        tangents = [self._made_up(value) for value in self._ends]
        joint = self._traced(state, values, tangents)
        count = len(self._program.results) + 2 * len(self._noted)
        forward, backward = min_cut_rematerialization_partition(joint, None, num_fwd_outputs=count)
        _require_joined(forward, backward, count, len(tangents))
        with torch.no_grad():
            run, made = _compiled(forward, [*state, *values])
            return self._cut(run, backward, [*made[count:], *tangents])

    def _made_up(self, value: int) -> Tensor:
        kind = self._segment.values[value]
        made = torch.zeros(kind.shape_at(self._batch), dtype=DTYPES[kind.dtype], device=self._place.device)
        least = [each.least for each in index_ranges(self._segment, self._batch) if each.value == value]
        return made + max(least) if least else made

    def _traced(
        self, state: Sequence[Tensor], values: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> fx.GraphModule:
        """The joint graph: `primals` are state and values, `tangents` the gradients given to the ends."""
        from torch._inductor.decomposition import select_decomp_table
        from torch.fx.experimental.proxy_tensor import make_fx

        program, trained, received = self._program, set(self._trained), set(self._received)
        count = len(state)

        def joint(primals: list[Tensor], tangents: list[Tensor]) -> list[Tensor | None]:
            held = [t.detach().requires_grad_(at in trained) for at, t in enumerate(primals[:count])]
            given = [
                t.detach().requires_grad_(value in received)
                for value, t in zip(program.values, primals[count:], strict=True)
            ]
            made = dict(zip(program.results, program.run(held, given, 0), strict=True))
            noted = self._place.take_noted()
            self._noted = [expected for expected, _, _ in noted]
            wanted = [t for t in given if t.requires_grad] + [held[at] for at in self._trained]
            ends = [(made[v], t) for v, t in zip(self._ends, tangents, strict=True) if made[v].requires_grad]
            found: Sequence[Tensor | None] = [None] * len(wanted)
            if ends and wanted:
                tensors, gradients = zip(*ends, strict=True)
                found = torch.autograd.grad(tensors, wanted, gradients, allow_unused=True)
            bounds = [bound for _, low, high in noted for bound in (low, high)]
            return [*(made[value].detach() for value in program.results), *bounds, *found]

        given = [*state, *values], list(tangents)
        made = make_fx(joint, select_decomp_table(), tracing_mode="fake")(*given)
        functional = torch.func.functionalize(made, remove="mutations")

        def again(primals: list[Tensor], tangents: list[Tensor]) -> object:
            return functional(primals, tangents)

        without_mutations: fx.GraphModule = make_fx(again, tracing_mode="fake")(*given)
        return without_mutations  # the partitioner takes no op in place

    def _cut(self, forward: Function, backward: fx.GraphModule, held: list[Tensor]) -> _Parts:
        """Compile the backward pass in two; `held` are what forward saved and the gradients of the ends."""
        (output,) = (node for node in backward.graph.nodes if node.op == "output")
        inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
        sent, trained = output.args[0][: len(self._received)], output.args[0][len(self._received) :]
        sends = [(value, node) for value, node in zip(self._received, sent, strict=True) if node is not None]
        owned = [(at, node) for at, node in zip(self._trained, trained, strict=True) if node is not None]
        first = _ancestors(node for _, node in sends)
        rest = _ancestors((node for _, node in owned), stop=first)
        between = [n for n in backward.graph.nodes if n in first and n in rest and n not in inputs]
        run, takes = None, []
        if sends:
            wanted = [*(node for _, node in sends), *between]
            takes = [at for at, node in enumerate(inputs) if node in first]
            run, made = _compiled(
                _part(backward, [inputs[at] for at in takes], wanted), [held[at] for at in takes]
            )
            held = [*held, *made[len(sends) :]]
        known = [*inputs, *between] if sends else inputs
        then = [at for at, node in enumerate(known) if node in rest]
        last, copied = None, set()
        if owned:
            given = [held[at] for at in then]
            last, grown = _compiled(_part(backward, [known[at] for at in then], [n for _, n in owned]), given)
            copied = _sharing(grown, [*given, *held])
        kinds = {value: self._segment.values[value] for value in self._ends}
        ends = {value: (kind.shape_at(self._batch), DTYPES[kind.dtype]) for value, kind in kinds.items()}
        return _Parts(
            forward,
            run,
            last,
            self._noted,
            ends,
            [value for value, _ in sends],
            takes,
            then,
            [at for at, _ in owned],
            copied,
        )


def _require_joined(forward: fx.GraphModule, backward: fx.GraphModule, results: int, tangents: int) -> None:
    """Check that the backward graph takes what the forward graph makes after its results, in that order.

    Torch's partitioner is not part of its public interface. Raises Uncompiled if it does otherwise.
    """
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    made = [node.name for node in output.args[0][results:]]
    taken = [node.name for node in backward.graph.nodes if node.op == "placeholder"]
    if taken[: len(made)] != made or len(taken) != len(made) + tangents:
        raise Uncompiled("this version of torch cuts graphs in another way")


def _ancestors(ends: Iterable[fx.Node], stop: Iterable[fx.Node] = ()) -> dict[fx.Node, None]:
    """The nodes that the ends are computed from, with the ends; of those in `stop` only the first met."""
    found: dict[fx.Node, None] = {}
    stopped, due = set(stop), list(ends)
    while due:
        node = due.pop()
        if node not in found:
            found[node] = None
            due += [] if node in stopped else node.all_input_nodes
    return found


def _part(whole: fx.GraphModule, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of a graph between these nodes."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = node.meta
    needed = _ancestors(outputs, stop=inputs)
    for node in whole.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(whole, graph)


def _compiled(module: fx.GraphModule, inputs: Sequence[Tensor]) -> tuple[Function, Sequence[Tensor]]:
    """The compiled module, and what it makes of the inputs."""
    import torch._inductor

    run: Function = torch._inductor.compile(module, list(inputs))
    return run, run(*inputs)


def _sharing(made: Sequence[Tensor], others: Sequence[Tensor]) -> set[int]:
    """Which of the tensors share memory with one of the others, or with one made before."""
    seen = {tensor.untyped_storage().data_ptr() for tensor in others}
    found = set()
    for at, tensor in enumerate(made):
        place = tensor.untyped_storage().data_ptr()
        if place in seen:
            found.add(at)
        seen.add(place)
    return found
