"""A function compiled forward and backward, where the backward pass has two parts.

The first gives the gradients that others wait for, the second the gradients of parameters. Both together run
each equation of the backward pass once: what the first part makes and the second needs is carried over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Literal, Var
from jax.stages import Compiled

from farflung.runtime.jax_backend.equations import Atom, Traced, needed_for, run
from farflung.runtime.jax_backend.later import Wanted
from farflung.runtime.jax_backend.memory import Passes, taken_by

Arrays = Sequence[Any]
Shapes = Sequence[jax.ShapeDtypeStruct]

# (trainable, received, other arguments) -> (outputs to differentiate, whatever else is made)
Function = Callable[[Arrays, Arrays, Arrays], tuple[Arrays, Arrays]]


@dataclass(frozen=True)
class Tape:
    """What the rest of a microbatch's backward pass needs, by the variables of its trace."""

    values: dict[Var, Any]


class Differentiated:
    """`function` for arguments of the given shapes, compiled.

    Nothing that is an argument already is copied onto a tape. Making one takes as long as compiling does, and
    is given up between two parts where it is no longer `wanted` (NoLongerWanted).
    """

    def __init__(
        self, function: Function, trainable: Shapes, received: Shapes, others: Shapes, wanted: Wanted
    ) -> None:
        def forward(trainable: Arrays, received: Arrays, others: Arrays) -> tuple[Arrays, Arrays, Any]:
            outputs, pullback, rest = jax.vjp(
                lambda t, r: function(t, r, others), list(trainable), list(received), has_aux=True
            )
            return outputs, rest, pullback

        forwards = Traced(forward, list(trainable), list(received), list(others))
        outputs, rest, pullback = forwards.result
        self._results = (len(outputs), len(rest))
        made = forwards.outputs[: sum(self._results)]
        self._saved = forwards.outputs[sum(self._results) :]
        self._arguments = forwards.inputs
        self._constants = forwards.constants
        there = {*self._arguments, *self._constants}
        variables = dict.fromkeys(atom for atom in self._saved if isinstance(atom, Var))
        self._computed = [variable for variable in variables if variable not in there]
        every = range(len(forwards.equations))
        wanted.check()
        self._forward = _compiled(forwards, every, self._arguments, [*made, *self._computed])

        wanted.check()
        backwards = Traced(lambda saved, gradients: saved(gradients), pullback, list(outputs))
        self._residuals = backwards.inputs[: len(self._saved)]
        self._cotangents = backwards.inputs[len(self._saved) :]
        weights, inputs = backwards.outputs[: len(trainable)], backwards.outputs[len(trainable) :]
        self._split(backwards, inputs, weights, wanted)

    def _split(self, traced: Traced, inputs: Sequence[Atom], weights: Sequence[Atom], wanted: Wanted) -> None:
        equations = traced.equations
        first = needed_for(equations, inputs)
        second = needed_for(equations, weights, frozenset(first))
        given = [*self._residuals, *self._cotangents]
        reads = _reads(traced, first, inputs)
        self._first_reads = [variable for variable in given if variable in reads]
        reads = _reads(traced, second, weights)
        self._carried = [v for at in first for v in equations[at].outvars if v in reads]
        self._second_reads = [variable for variable in given if variable in reads] + self._carried
        self.backward_parts = [equations[at] for at in first], [equations[at] for at in second]
        self._input_count = len(inputs)
        wanted.check()
        self._pull_inputs = _compiled(traced, first, self._first_reads, [*inputs, *self._carried])
        wanted.check()
        self._pull_weights = _compiled_sum(traced, second, self._second_reads, weights)

    @property
    def memory(self) -> Passes:
        """What the compiled programs take."""
        return Passes(
            taken_by(self._forward),
            taken_by(self._pull_inputs),
            taken_by(self._pull_weights),
            self._left_bytes(),
        )

    def _left_bytes(self) -> int:
        """Of what the second part of a backward pass reads and the caller does not have anyway."""
        saved = dict(zip(self._residuals, self._saved, strict=True))
        computed = set(self._computed)
        left = {variable for variable in self._second_reads if variable not in saved}
        read = (saved.get(variable) for variable in self._second_reads)
        left |= {atom for atom in read if isinstance(atom, Var) and atom in computed}
        return sum(map(_bytes, left))

    def forward(
        self, trainable: Arrays, received: Arrays, others: Arrays
    ) -> tuple[list[Any], list[Any], Tape]:
        """The outputs, whatever else was made, and what `pull_inputs` needs."""
        arguments = [*trainable, *received, *others]
        made = self._forward(arguments)
        count, rest = self._results
        known = dict(zip(self._arguments, arguments, strict=True)) | self._constants
        known.update(zip(self._computed, made[count + rest :], strict=True))
        saved = [atom.val if isinstance(atom, Literal) else known[atom] for atom in self._saved]
        return made[:count], made[count : count + rest], Tape(dict(zip(self._residuals, saved, strict=True)))

    def pull_inputs(self, tape: Tape, gradients: Arrays) -> tuple[list[Any], Tape]:
        """The gradients of what was received, from those of the outputs; and what `pull_weights` needs."""
        known = tape.values | dict(zip(self._cotangents, gradients, strict=True))
        made = self._pull_inputs([known[variable] for variable in self._first_reads])
        known.update(zip(self._carried, made[self._input_count :], strict=True))
        return made[: self._input_count], Tape({v: known[v] for v in self._second_reads})

    def pull_weights(self, tape: Tape, sums: Arrays) -> list[Any]:
        """The gradients of the trainable arguments, each added to one of `sums`, which are used up."""
        return self._pull_weights([tape.values[variable] for variable in self._second_reads], list(sums))


def _reads(traced: Traced, positions: Sequence[int], wanted: Sequence[Atom]) -> set[Var]:
    atoms = [atom for at in positions for atom in traced.equations[at].invars]
    return {atom for atom in (*atoms, *wanted) if isinstance(atom, Var)}


def _shape(atom: Atom) -> jax.ShapeDtypeStruct:
    kind: Any = atom.aval
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype)


def _bytes(variable: Var) -> int:
    shape = _shape(variable)
    return math.prod(shape.shape) * shape.dtype.itemsize


def _compiled(
    traced: Traced, positions: Sequence[int], given: Sequence[Var], wanted: Sequence[Atom]
) -> Compiled:
    """Some of the equations as a compiled function from variables to variables."""
    equations = [traced.equations[at] for at in positions]

    def part(values: list[Any]) -> list[Any]:
        return run(equations, traced.constants | dict(zip(given, values, strict=True)), wanted)

    return jax.jit(part).lower([_shape(variable) for variable in given]).compile()


def _compiled_sum(
    traced: Traced, positions: Sequence[int], given: Sequence[Var], wanted: Sequence[Atom]
) -> Compiled:
    """As `_compiled`, with each result added to one of the second argument, in that one's memory."""
    equations = [traced.equations[at] for at in positions]

    def part(values: list[Any], sums: list[Any]) -> list[Any]:
        made = run(equations, traced.constants | dict(zip(given, values, strict=True)), wanted)
        return [total + one for total, one in zip(sums, made, strict=True)]

    shapes = [_shape(variable) for variable in given], [_shape(atom) for atom in wanted]
    return jax.jit(part, donate_argnums=1).lower(*shapes).compile()
