"""A segment's functions on JAX: traced, differentiated and compiled for one microbatch size.

A segment's forward pass as a function that JAX can trace, differentiate and compile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from farflung.opdag import opset
from farflung.opdag.graph import Input, Node
from farflung.opdag.segment import EVALUATION, Segment
from farflung.runtime.indices import index_ranges, require_in_range
from farflung.runtime.jax_backend import lowering
from farflung.runtime.jax_backend.arrays import shape_of
from farflung.runtime.jax_backend.background_compile import CancelToken
from farflung.runtime.jax_backend.differentiated import Differentiated, Tape
from farflung.runtime.jax_backend.memory import program_memory
from farflung.seeds import mix

NO_KEY = np.zeros(2, np.uint32)


class Program:
    """The nodes of a segment, in training or evaluation, for one microbatch size.

    `state` are value ids of parameters, buffers and constants, `values` of model inputs and received values:
    the orders of a call's arguments.
    """

    def __init__(self, segment: Segment, batch: int, train: bool) -> None:
        self.state = [entry.value for entry in segment.inputs if entry.kind != "input"]
        self.values = [e.value for e in segment.inputs if e.kind == "input"] + list(segment.receives)
        self._batch = batch
        self._nodes = list(segment.nodes) if train else [_evaluated(node) for node in segment.nodes]
        drawing = [node.number for node in self._nodes if opset.lookup(node.op).draws(node)]
        self._places = {number: at for at, number in enumerate(drawing)}
        self._indices = index_ranges(segment, batch)

    def keys(self, seed: int) -> np.ndarray:
        """The keys of the random nodes for a microbatch with this seed, [nodes, 2] of uint32."""
        words = [divmod(mix(seed, number), 2**32) for number in self._places]
        return np.array(words, np.uint32).reshape(-1, 2)

    def __call__(
        self, state: Sequence[jax.Array], values: Sequence[jax.Array], keys: jax.Array
    ) -> dict[int, jax.Array]:
        """Every value by its id."""
        known = dict(zip(self.state, state, strict=True)) | dict(zip(self.values, values, strict=True))
        for node in self._nodes:
            place = self._places.get(node.number)
            key = jnp.asarray(NO_KEY) if place is None else keys[place]
            made = lowering.run(node, known, self._batch, key)
            known.update((v, array) for v, array in zip(node.outputs, made, strict=True) if v >= 0)
        return known

    def extremes(self, known: Mapping[int, jax.Array]) -> jax.Array:
        """The smallest and largest index of each node, [ranges, 2]. `known` maps value ids to arrays."""
        found = [jnp.zeros((0, 2), np.int64)]
        for expected in self._indices:
            indices = known[expected.value].astype(np.int64)
            if expected.ignored is not None:
                indices = jnp.where(indices == expected.ignored, expected.least, indices)
            found.append(jnp.stack([jnp.min(indices), jnp.max(indices)])[None])
        return jnp.concatenate(found)

    def require_in_range(self, extremes: jax.Array, microbatch: int) -> None:
        """Check a microbatch's `extremes`, as compiled code cannot raise; JobError names the index."""
        for expected, (least, greatest) in zip(self._indices, np.asarray(extremes).tolist(), strict=True):
            require_in_range(expected, least, greatest, microbatch)


def _evaluated(node: Node) -> Node:
    changed = EVALUATION.get(node.op)
    return msgspec.structs.replace(node, arguments=node.arguments | changed) if changed else node


Arrays = Mapping[int, Any]


class Layout:
    """Which of a segment's values are differentiated, and the order in which arrays are passed."""

    def __init__(self, segment: Segment) -> None:
        differentiable = set(segment.differentiable)
        self.trainable: list[Input] = [entry for entry in segment.inputs if entry.trainable]
        self.received = [value for value in segment.receives if value in differentiable]
        differentiated = {entry.value for entry in self.trainable} | set(self.received)
        given = [entry.value for entry in segment.inputs] + list(segment.receives)
        self.others = [value for value in given if value not in differentiated]
        self.outputs = [value for value in segment.sends if value in differentiable]
        if segment.loss is not None:
            self.outputs.append(segment.loss)
        results = [*segment.sends, *segment.mutations.values()]
        self.rest = [value for value in dict.fromkeys(results) if value not in self.outputs]

    def arguments(self, known: Arrays) -> tuple[list[Any], list[Any], list[Any]]:
        """Trainable parameters, received values with a gradient, and all else that the segment reads."""
        trainable = [known[entry.value] for entry in self.trainable]
        return trainable, [known[v] for v in self.received], [known[v] for v in self.others]


class TrainingFunctions:
    """Forward and backward of a segment in training; see `Differentiated` for how long creating it takes."""

    def __init__(self, segment: Segment, batch: int, wanted: CancelToken) -> None:
        self.layout = layout = Layout(segment)
        self._program = program = Program(segment, batch, train=True)
        given = [*(entry.value for entry in layout.trainable), *layout.received, *layout.others]

        def function(parameters: Sequence[Any], received: Sequence[Any], others: Sequence[Any]) -> Any:
            keys, *rest = others
            known = dict(zip(given, [*parameters, *received, *rest], strict=True))
            values = _run(program, known, keys)
            made = _in_own_memory(known, values, [*layout.outputs, *layout.rest])
            return made[: len(layout.outputs)], [*made[len(layout.outputs) :], program.extremes(values)]

        shapes = {value: shape_of(kind, batch) for value, kind in segment.values.items()}
        parameters, received, others = layout.arguments(shapes)
        keys = jax.ShapeDtypeStruct(program.keys(0).shape, np.uint32)
        self._compiled = Differentiated(function, parameters, received, [keys, *others], wanted)
        self.backward_parts = self._compiled.backward_parts
        self.memory = self._compiled.memory

    def forward(self, known: Arrays, seed: int, microbatch: int) -> tuple[dict[int, Any], Tape]:
        """The segment's results by value id, and its tape. `known` are its inputs and received values.

        Raises JobError if they contain an index that is out of range.
        """
        parameters, received, others = self.layout.arguments(known)
        others = [self._program.keys(seed), *others]
        outputs, (*rest, extremes), tape = self._compiled.forward(parameters, received, others)
        self._program.require_in_range(extremes, microbatch)
        made = dict(zip([*self.layout.outputs, *self.layout.rest], [*outputs, *rest], strict=True))
        return made, tape

    def pull_inputs(self, tape: Tape, gradients: Sequence[Any]) -> tuple[dict[int, Any], Tape]:
        """Gradients of received values by id, from those of `layout.outputs`; and the rest of the tape."""
        made, rest = self._compiled.pull_inputs(tape, gradients)
        return dict(zip(self.layout.received, made, strict=True)), rest

    def pull_weights(self, tape: Tape, sums: Sequence[Any]) -> list[Any]:
        """Gradients of `layout.trainable`, each added to one of `sums`, which are consumed."""
        return self._compiled.pull_weights(tape, sums)


class EvaluationFunction:
    """A segment in evaluation."""

    def __init__(self, segment: Segment, batch: int, wanted: CancelToken) -> None:
        self._program = program = Program(segment, batch, train=False)
        self._given = [entry.value for entry in segment.inputs] + list(segment.receives)
        loss = [] if segment.loss is None else [segment.loss]
        self._made = list(dict.fromkeys([*segment.sends, *loss, *segment.metrics]))

        def function(given: list[Any], keys: Any) -> list[Any]:
            known = dict(zip(self._given, given, strict=True))
            values = _run(program, known, keys)
            return [*_in_own_memory(known, values, self._made), program.extremes(values)]

        shapes = [shape_of(segment.values[value], batch) for value in self._given]
        keys = jax.ShapeDtypeStruct(program.keys(0).shape, np.uint32)
        lowered = jax.jit(function).lower(shapes, keys)
        wanted.check()
        self._compiled = lowered.compile()
        self.memory = program_memory(self._compiled)

    def forward(self, known: Arrays, seed: int, microbatch: int) -> dict[int, Any]:
        """The values that the segment sends, its loss and metrics, by id; JobError as in training."""
        given = [known[value] for value in self._given]
        *made, extremes = self._compiled(given, self._program.keys(seed))
        self._program.require_in_range(extremes, microbatch)
        return dict(zip(self._made, made, strict=True))


def _run(program: Program, known: Arrays, keys: Any) -> dict[int, Any]:
    state, values = ([known[value] for value in ids] for ids in (program.state, program.values))
    return program(state, values, keys)


def _in_own_memory(given: Arrays, made: Arrays, wanted: Sequence[int]) -> list[Any]:
    """The wanted arrays, copied if they are inputs: parameters change while their bytes are being sent."""
    arrays = {id(array) for array in given.values()}
    return [jnp.array(made[v], copy=True) if id(made[v]) in arrays else made[v] for v in wanted]
