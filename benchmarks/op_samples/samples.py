"""What an op of the table is given in a test, and what torch makes of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from farflung.opdag import opset
from farflung.opdag.graph import Argument, DType, Node, Ref
from farflung.opdag.opset import Op
from farflung.runtime.torch_backend.codegen import resolve
from farflung.runtime.torch_backend.tensors import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_ELEMENTS = 30_000


class Unfit(Exception):
    """The opset's schema cannot say this call."""


@dataclass(frozen=True)
class Sample:
    """One call of `op`: arguments by schema name, with tensors where the wire has references.

    `reference` makes the same results by what torch offers its users; `unused` are results that no captured
    model reads. Tensors that require a gradient are those that it is checked of.
    """

    op: str
    arguments: Mapping[str, Any]
    reference: Callable[[], Any]
    unused: frozenset[int] = frozenset()
    source: str = "own"

    @cached_property
    def expected(self) -> list[Tensor]:
        """What the op must make, one tensor a result."""
        made = self.reference()
        return [made] if isinstance(made, Tensor) else list(made)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, each object once, in the order of the arguments."""
        found: dict[int, Tensor] = {}
        for argument in self.arguments.values():
            for element in argument if isinstance(argument, list) else (argument,):
                if isinstance(element, Tensor):
                    found.setdefault(id(element), element)
        return list(found.values())

    def wire(self, number_of: Callable[[Tensor], int]) -> dict[str, Argument]:
        """The arguments as a node has them."""

        def written(argument: Any) -> Any:
            if isinstance(argument, list):
                return [written(element) for element in argument]
            if isinstance(argument, Tensor):
                return Ref(number_of(argument))
            return DType(NAMES[argument]) if isinstance(argument, torch.dtype) else argument

        return {name: written(argument) for name, argument in self.arguments.items()}

    def is_fit(self) -> bool:
        """Whether torch can do it at all, the wire has words for all of its types, and nothing is large."""
        try:
            tensors = [*self.tensors, *self.expected]
        except RuntimeError:  # "not implemented for 'Bool'"
            return False
        return all(t.dtype in NAMES and t.numel() <= MOST_ELEMENTS and t.ndim <= 8 for t in tensors)

    def draws(self) -> bool:
        """Whether its results are random."""
        node = Node(0, self.op, self.wire(lambda _: 0), [0])
        return opset.lookup(self.op).draws(node)


def spread(samples: Sequence[Sample], most: int) -> Iterator[Sample]:
    """At most so many of the samples, from the first to the last."""
    count = min(most, len(samples))
    for number in range(count):
        yield samples[number * (len(samples) - 1) // max(1, count - 1)]


IGNORED = {
    "device", "layout", "pin_memory", "requires_grad", "memory_format", "generator", "inplace", "sparse",
    "return_indices",
}  # fmt: skip
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


class Call:
    """A Python call, bound to an op's schema where the schema can say it.

    Where the schema has a number and the call a tensor, the tensor's first element takes its place in both.
    """

    def __init__(self, function: Callable[..., Any], values: Sequence[Any], words: Mapping[str, Any]) -> None:
        self._function = function
        self._values = list(values)
        self._words = dict(words)

    def bound(self, op: Op, source: str) -> Sample:
        """The call as a sample.

        Raises
        ------
        Unfit
            It has an argument that the op has not, or the other way round, or one of another type.
        """
        sizes = {entry.name: entry.N for entry in resolve(op.name)._schema.arguments}
        names = list(op.parameters)
        if len(self._values) > len(names):
            raise Unfit
        arguments: dict[str, Any] = {}
        for at, value in enumerate(self._values):
            arguments[names[at]], self._values[at] = self._fit(op, names[at], value, sizes[names[at]])
        for word, value in self._words.items():
            if word in IGNORED and not (word == "return_indices" and value):
                continue
            if word not in op.parameters or word in arguments:
                raise Unfit
            arguments[word], self._words[word] = self._fit(op, word, value, sizes[word])
        if any(p.required and p.name not in arguments for p in op.parameters.values()):
            raise Unfit
        given = {name: value for name, value in arguments.items() if value is not None}
        given |= {n: None for n, value in arguments.items() if value is None and op.parameters[n].required}
        values, words, function = list(self._values), dict(self._words), self._function
        return Sample(op.name, given, lambda: function(*values, **words), source=source)

    def _fit(self, op: Op, name: str, value: Any, size: int | None) -> tuple[Any, Any]:
        """A value as the schema wants it, and as the call then has it."""
        parameter = op.parameters[name]
        told = value
        if isinstance(value, Tensor) and not parameter.is_list and "Tensor" not in parameter.base:
            if parameter.base == "Operand":
                return value, value
            if not value.numel() or parameter.base not in ("Scalar", "int", "float"):
                raise Unfit
            told = value = value.flatten()[0].item()
        elif parameter.is_list and isinstance(value, int) and size:
            value = [value] * size
        elif isinstance(value, tuple):
            value = list(value)
        elif name == "reduction" and isinstance(value, str):
            value = REDUCTIONS[value]
        if not parameter.admits(_as_written(value)):
            raise Unfit
        return value, told


def _as_written(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_written(element) for element in value]
    if isinstance(value, Tensor):
        return Ref(0)
    return DType(NAMES[value]) if isinstance(value, torch.dtype) and value in NAMES else value
