"""Segments of one node that nobody captured: any op of the table, with arguments that its schema admits.

What kernels do with them on the meta device is not in our hands, and a worker asks them about each node.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from tests.fuzz.document_mutator import OPS, Document, DocumentMutator

from farflung.opdag import opset
from farflung.opdag.wire import NEWEST
from farflung.runtime.torch_backend.codegen import resolve
from farflung.runtime.torch_backend.tensors import DTYPES

BATCH = 2


class Inventor:
    """Makes such segments up; half of them state the types that torch would make."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._mutator = DocumentMutator(random)

    def segment(self) -> Document:
        """A segment with a few inputs and one node."""
        random = self._random
        op = opset.table()[random.choice(OPS)]
        given = self._given()
        arguments = {
            name: self._mutator.argument(parameter, len(given))
            for name, parameter in op.parameters.items()
            if parameter.required or random.random() < 0.5
        }
        count = random.choice([1, 2, 3, 4]) if op.results == opset.MANY else op.results
        made = [random.choice([*given, self._mutator.type()]) for _ in range(count)]
        if random.random() < 0.5 and not _endless(op, arguments):
            made = _made(op, arguments, given) or made
        outputs = [len(given) + number for number in range(len(made))]
        return {
            "version": NEWEST, "opset": op.since, "number": 0, "values": dict(enumerate([*given, *made])),
            "inputs": [[number, "input", f"x{number}", False] for number in range(len(given))],
            "owned": [], "receives": [], "nodes": [[0, op.name, arguments, outputs]], "sends": outputs,
            "differentiable": [], "loss": None, "mutations": {}, "constants": {},
        }  # fmt: skip

    def _given(self) -> list[list[Any]]:
        """Types of inputs: mostly small, and often alike, as most ops ask for."""
        random = self._random
        first = [self._dtype(), [random.choice([1, 2, 2, 3, 4, 8]) for _ in range(random.randrange(5))]]
        if random.random() < 0.15:
            first = self._mutator.type()
        given = [first]
        for _ in range(random.randrange(4)):
            draw = random.random()
            alike = [self._dtype(), list(random.choice(given)[1])]
            given.append(alike if draw < 0.4 else [*first] if draw < 0.7 else self._mutator.type())
        return given

    def _dtype(self) -> str:
        return self._random.choice(["float32", "float32", "float32", "int64", "bool", "bfloat16", "float64"])


def _endless(op: opset.Op, arguments: dict[str, Any]) -> bool:
    """Whether torch would repeat its work more often than the table lets anybody ask for."""
    bounded = [name for name, parameter in op.parameters.items() if parameter.most is not None]
    return any(name in arguments and not op.parameters[name].admits(arguments[name]) for name in bounded)


def _made(op: opset.Op, arguments: dict[str, Any], given: list[list[Any]]) -> list[list[Any]] | None:
    """The types that torch makes of these; None if it refuses them, or might make a list of millions."""
    name, sizes = op.name, [size for _, shape in given for size in shape]
    if any(not isinstance(size, int) for size in sizes):
        return None
    if op.results == opset.MANY and max(sizes, default=0) > opset.LONGEST_LIST:
        return None
    try:
        tensors = [torch.empty(shape, dtype=DTYPES[dtype], device="meta") for dtype, shape in given]
        values = {key: _value(argument, tensors) for key, argument in arguments.items()}
        if any(entry.name == "device" for entry in resolve(name)._schema.arguments):
            values["device"] = torch.device("meta")
        results = resolve(name)(**values)
    except Exception:
        return None
    listed = list(results) if isinstance(results, list | tuple) else [results]
    if not 0 < len(listed) <= 64:
        return None
    return [[str(result.dtype).removeprefix("torch."), list(result.shape)] for result in listed]


def _value(argument: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(argument, list):
        return [_value(element, tensors) for element in argument]
    if not isinstance(argument, dict):
        return argument
    if argument["k"] == "v":
        return tensors[argument["id"]]
    return (
        DTYPES[argument["name"]] if argument["k"] == "t" else argument["factor"] * BATCH + argument["offset"]
    )
