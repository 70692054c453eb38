"""A segment's functions on JAX: traced, differentiated and compiled for one microbatch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farflung.opdag.graph import Input
from farflung.opdag.segment import Segment
from farflung.runtime.jax_backend.arrays import shape_of
from farflung.runtime.jax_backend.differentiated import Differentiated, Tape
from farflung.runtime.jax_backend.later import Wanted
from farflung.runtime.jax_backend.memory import taken_by
from farflung.runtime.jax_backend.program import Program

Arrays = Mapping[int, Any]


class Layout:
    """Which of a segment's values are differentiated, and the order in which arrays are passed."""

    def __init__(self, segment: Segment) -> None:
        differentiable = set(segment.differentiable)
        self.trainable: list[Input] = [entry for entry in segment.inputs if entry.trainable]
        self.received = [value for value in segment.receives if value in differentiable]
        taken = {entry.value for entry in self.trainable} | set(self.received)
        given = [entry.value for entry in segment.inputs] + list(segment.receives)
        self.others = [value for value in given if value not in taken]
        self.outputs = [value for value in segment.sends if value in differentiable]
        if segment.loss is not None:
            self.outputs.append(segment.loss)
        results = [*segment.sends, *segment.mutations.values()]
        self.rest = [value for value in dict.fromkeys(results) if value not in self.outputs]

    def arguments(self, known: Arrays) -> tuple[list[Any], list[Any], list[Any]]:
        """Trainable parameters, received values with a gradient, and whatever else the segment reads."""
        trainable = [known[entry.value] for entry in self.trainable]
        return trainable, [known[v] for v in self.received], [known[v] for v in self.others]


class TrainingFunctions:
    """Forward and backward of a segment in training; see `Differentiated` for how long it takes to make."""

    def __init__(self, segment: Segment, batch: int, wanted: Wanted) -> None:
        self.layout = layout = Layout(segment)
        self._program = program = Program(segment, batch, train=True)
        given = [*(entry.value for entry in layout.trainable), *layout.received, *layout.others]

        def function(parameters: Sequence[Any], received: Sequence[Any], others: Sequence[Any]) -> Any:
            keys, *rest = others
            known = dict(zip(given, [*parameters, *received, *rest], strict=True))
            values = _run(program, known, keys)
            made = _apart(known, values, [*layout.outputs, *layout.rest])
            return made[: len(layout.outputs)], [*made[len(layout.outputs) :], program.extremes(values)]

        shapes = {value: shape_of(kind, batch) for value, kind in segment.values.items()}
        parameters, received, others = layout.arguments(shapes)
        keys = jax.ShapeDtypeStruct(program.keys(0).shape, np.uint32)
        self._compiled = Differentiated(function, parameters, received, [keys, *others], wanted)
        self.backward_parts = self._compiled.backward_parts
        self.memory = self._compiled.memory

    def forward(self, known: Arrays, seed: int, microbatch: int) -> tuple[dict[int, Any], Tape]:
        """What the segment makes by value id, and its tape. `known` are its inputs and received values.

        Raises JobError where they hold an index that is out of range.
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
        """Gradients of `layout.trainable`, each added to one of `sums`, which are used up."""
        return self._compiled.pull_weights(tape, sums)


class EvaluationFunction:
    """A segment in evaluation."""

    def __init__(self, segment: Segment, batch: int, wanted: Wanted) -> None:
        self._program = program = Program(segment, batch, train=False)
        self._given = [entry.value for entry in segment.inputs] + list(segment.receives)
        self._made = list(dict.fromkeys([*segment.sends, *([] if segment.loss is None else [segment.loss])]))

        def function(given: list[Any], keys: Any) -> list[Any]:
            known = dict(zip(self._given, given, strict=True))
            values = _run(program, known, keys)
            return [*_apart(known, values, self._made), program.extremes(values)]

        shapes = [shape_of(segment.values[value], batch) for value in self._given]
        keys = jax.ShapeDtypeStruct(program.keys(0).shape, np.uint32)
        lowered = jax.jit(function).lower(shapes, keys)
        wanted.check()
        self._compiled = lowered.compile()
        self.memory = taken_by(self._compiled)

    def forward(self, known: Arrays, seed: int, microbatch: int) -> dict[int, Any]:
        """What the segment sends, and its loss, by value id; JobError as in training."""
        given = [known[value] for value in self._given]
        *made, extremes = self._compiled(given, self._program.keys(seed))
        self._program.require_in_range(extremes, microbatch)
        return dict(zip(self._made, made, strict=True))


def _run(program: Program, known: Arrays, keys: Any) -> dict[int, Any]:
    state, values = ([known[value] for value in ids] for ids in (program.state, program.values))
    return program(state, values, keys)


def _apart(given: Arrays, made: Arrays, wanted: Sequence[int]) -> list[Any]:
    """What is wanted, in memory of its own also where it is what was given: parameters change, and its bytes
    may still be on their way.
    """
    arrays = {id(array) for array in given.values()}
    return [jnp.array(made[v], copy=True) if id(made[v]) in arrays else made[v] for v in wanted]
