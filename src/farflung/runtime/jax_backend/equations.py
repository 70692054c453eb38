"""A traced function as a list of equations, of which parts can be run: what splits a backward pass in two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

Atom = Var | Literal
_CALLS = frozenset({"jit", "pjit"})  # what `jax.jit` becomes where it is called while tracing


class Traced:
    """`function` for arguments of the given shapes: equations from `inputs` to `outputs`.

    Arguments and results are pytrees; `inputs` and `outputs` are their leaves, `result` is the tree of the
    results with shapes in place of arrays.
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
    """Evaluate equations, in their order, on the variables that are known; returns what is wanted."""
    values = dict(known)
    for equation in equations:
        made = _bind(equation, [_read(values, atom) for atom in equation.invars])
        values.update(zip(equation.outvars, made, strict=True))
    return [_read(values, atom) for atom in wanted]


def needed_for(
    equations: Sequence[JaxprEqn], wanted: Iterable[Atom], without: frozenset[int] = frozenset()
) -> list[int]:
    """Positions of the equations that `wanted` depends on; the results of those in `without` are there."""
    needed = {atom for atom in wanted if isinstance(atom, Var)}
    found: list[int] = []
    for at in range(len(equations) - 1, -1, -1):
        if at not in without and any(variable in needed for variable in equations[at].outvars):
            found.append(at)
            needed.update(atom for atom in equations[at].invars if isinstance(atom, Var))
    return found[::-1]


def _run_inlined(closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    """As the function was traced, but with the equations of calls in place of the calls."""
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
    functions, parameters = bound if isinstance(bound, tuple) else ((), bound)  # newer JAX has no functions
    made = equation.primitive.bind(*functions, *given, **parameters)
    return list(made) if equation.primitive.multiple_results else [made]


def _read(values: Mapping[Var, Any], atom: Atom) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]
