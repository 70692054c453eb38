"""A function compiled forward and backward, where the backward pass has two parts.

The first computes the gradients that other workers wait for, the second the gradients of parameters. Together
they run each equation of the backward pass once: results of the first part that the second needs are passed
on. For this, a traced function is split into lists of equations, of which parts can be run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.stages import Compiled

from farflung.runtime.jax_backend.background_compile import CancelToken
from farflung.runtime.jax_backend.memory import Passes, program_memory

Atom = Var | Literal
_CALLS = frozenset({"jit", "pjit"})  # the primitives of `jax.jit` when it is called while tracing


class Traced:
    """`function` for arguments of the given shapes: equations from `inputs` to `outputs`.

    Arguments and results are pytrees; `inputs` and `outputs` are their leaves, `result` is the tree of the
    results with shapes instead of arrays.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        closed, self.result = jax.make_jaxpr(function, return_shape=True)(*arguments)
        inputs = jax.tree.leaves(arguments)
        flat = jax.make_jaxpr(lambda *leaves: _run_inlined(closed, leaves))(*inputs)
        self.inputs: list[Var] = list(flat.jaxpr.invars)
        self.outputs: list[Atom] = list(flat.jaxpr.outvars)
        self.equations: list[JaxprEqn] = list(flat.jaxpr.eqns)
        self.constants: dict[Var, Any] = dict(zip(flat.jaxpr.constvars, flat.consts, strict=True))


def run(equations: Iterable[JaxprEqn], known: Mapping[Var, Any], wanted: Sequence[Atom]) -> list[Any]:
    """Evaluate equations, in order, on the known variables; returns the wanted values."""
    values = dict(known)
    for equation in equations:
        made = _bind(equation, [_read(values, atom) for atom in equation.invars])
        values.update(zip(equation.outvars, made, strict=True))
    return [_read(values, atom) for atom in wanted]


def needed_for(
    equations: Sequence[JaxprEqn], wanted: Iterable[Atom], without: frozenset[int] = frozenset()
) -> list[int]:
    """Positions of the equations that `wanted` depends on, except those in `without`, whose results exist."""
    needed = {atom for atom in wanted if isinstance(atom, Var)}
    found: list[int] = []
    for at in range(len(equations) - 1, -1, -1):
        if at not in without and any(variable in needed for variable in equations[at].outvars):
            found.append(at)
            needed.update(atom for atom in equations[at].invars if isinstance(atom, Var))
    return found[::-1]


def _run_inlined(closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    """Run the traced function with its inner calls inlined."""
    jaxpr: Jaxpr = closed.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        given = [_read(values, atom) for atom in equation.invars]
        is_call = equation.primitive.name in _CALLS
        made = _run_inlined(equation.params["jaxpr"], given) if is_call else _bind(equation, given)
        values.update(zip(equation.outvars, made, strict=True))
    return [_read(values, atom) for atom in jaxpr.outvars]


def _bind(equation: JaxprEqn, given: Sequence[Any]) -> list[Any]:
    bound = equation.primitive.get_bind_params(equation.params)
    functions, parameters = (
        bound if isinstance(bound, tuple) else ((), bound)
    )  # newer versions of JAX return no functions
    made = equation.primitive.bind(*functions, *given, **parameters)
    return list(made) if equation.primitive.multiple_results else [made]


def _read(values: Mapping[Var, Any], atom: Atom) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]


Arrays = Sequence[Any]
Shapes = Sequence[jax.ShapeDtypeStruct]

# (trainable, received, other arguments) -> (outputs to differentiate, whatever else is made)
Function = Callable[[Arrays, Arrays, Arrays], tuple[Arrays, Arrays]]


@dataclass(frozen=True)
class Tape:
    """The values that the rest of a microbatch's backward pass needs, by the variables of its trace."""

    values: dict[Var, Any]


class Differentiated:
    """`function` for arguments of the given shapes, compiled.

    Arguments are not copied onto a tape. Creating one takes as long as compiling; it stops between two parts
    if `wanted` is cancelled (Cancelled).
    """

    def __init__(
        self, function: Function, trainable: Shapes, received: Shapes, others: Shapes, wanted: CancelToken
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

    def _split(
        self, traced: Traced, inputs: Sequence[Atom], weights: Sequence[Atom], wanted: CancelToken
    ) -> None:
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
        """The memory of the compiled programs."""
        return Passes(
            program_memory(self._forward),
            program_memory(self._pull_inputs),
            program_memory(self._pull_weights),
            self._left_bytes(),
        )

    def _left_bytes(self) -> int:
        """Bytes of what the second part of a backward pass reads and the caller does not have anyway."""
        saved = dict(zip(self._residuals, self._saved, strict=True))
        computed = set(self._computed)
        left = {variable for variable in self._second_reads if variable not in saved}
        read = (saved.get(variable) for variable in self._second_reads)
        left |= {atom for atom in read if isinstance(atom, Var) and atom in computed}
        return sum(map(_bytes, left))

    def forward(
        self, trainable: Arrays, received: Arrays, others: Arrays
    ) -> tuple[list[Any], list[Any], Tape]:
        """The outputs, the other results, and what `pull_inputs` needs."""
        arguments = [*trainable, *received, *others]
        made = self._forward(arguments)
        count, rest = self._results
        known = dict(zip(self._arguments, arguments, strict=True)) | self._constants
        known.update(zip(self._computed, made[count + rest :], strict=True))
        saved = [atom.val if isinstance(atom, Literal) else known[atom] for atom in self._saved]
        return made[:count], made[count : count + rest], Tape(dict(zip(self._residuals, saved, strict=True)))

    def pull_inputs(self, tape: Tape, gradients: Arrays) -> tuple[list[Any], Tape]:
        """The gradients of received values, from those of the outputs; and what `pull_weights` needs."""
        known = tape.values | dict(zip(self._cotangents, gradients, strict=True))
        made = self._pull_inputs([known[variable] for variable in self._first_reads])
        known.update(zip(self._carried, made[self._input_count :], strict=True))
        return made[: self._input_count], Tape({v: known[v] for v in self._second_reads})

    def pull_weights(self, tape: Tape, sums: Arrays) -> list[Any]:
        """The gradients of the trainable arguments, each added to one of `sums`, which are consumed."""
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
    """Compile some of the equations as a function from variables to variables."""
    equations = [traced.equations[at] for at in positions]

    def part(values: list[Any]) -> list[Any]:
        return run(equations, traced.constants | dict(zip(given, values, strict=True)), wanted)

    return jax.jit(part).lower([_shape(variable) for variable in given]).compile()


def _compiled_sum(
    traced: Traced, positions: Sequence[int], given: Sequence[Var], wanted: Sequence[Atom]
) -> Compiled:
    """Like `_compiled`, with each result added to an array of the second argument, in that array's memory."""
    equations = [traced.equations[at] for at in positions]

    def part(values: list[Any], sums: list[Any]) -> list[Any]:
        made = run(equations, traced.constants | dict(zip(given, values, strict=True)), wanted)
        return [total + one for total, one in zip(sums, made, strict=True)]

    shapes = [_shape(variable) for variable in given], [_shape(atom) for atom in wanted]
    return jax.jit(part, donate_argnums=1).lower(*shapes).compile()
