"""The last check of a received segment: recompute every shape and element type by abstract evaluation.

JAX traces each node's lowering on shapes alone: nothing is allocated, computed or compiled. Nodes with equal
ops, arguments and shapes are traced only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.opdag.graph import Argument, BatchSize, Node, Ref, ValueType
from farflung.opdag.segment import Segment
from farflung.runtime.indices import check_result_count
from farflung.runtime.jax_backend import lowering
from farflung.runtime.jax_backend.arrays import shape_of
from farflung.text import first_line, printable

Shape = jax.ShapeDtypeStruct
Shapes = dict[int, Shape]

_KEY = Shape((2,), np.uint32)


def verify_segment(segment: Segment, batch: int) -> None:
    """Recompute every value's shape and element type for microbatches of `batch` samples.

    Raises
    ------
    GraphError
        This backend does not run an op, an op refuses its arguments, or a declared type differs from the
        op's result.
    """
    given = [entry.value for entry in segment.inputs] + list(segment.receives)
    shapes = {number: shape_of(segment.values[number], batch) for number in given}
    seen: dict[tuple[Any, ...], list[Shape]] = {}
    for node in segment.nodes:
        signature = _signature(node, shapes, batch)
        if signature not in seen:
            seen[signature] = _evaluated(node, shapes, batch)
        _check(node, segment, seen[signature], shapes, batch)


def _evaluated(node: Node, shapes: Shapes, batch: int) -> list[Shape]:
    where = f"node {node.number} ({node.op})"
    read = {number: shapes[number] for number in node.reads()}
    if opset.lookup(node.op).results == opset.MANY:
        sizes = {n: a.at(batch) if isinstance(a, BatchSize) else a for n, a in node.arguments.items()}
        check_result_count(node, shapes[node.reads()[0]].shape, sizes)
    try:
        return jax.eval_shape(lambda values, key: lowering.run(node, values, batch, key), read, _KEY)
    except GraphError:
        raise
    except Exception as error:
        line = printable(first_line(error)[:200])
        raise GraphError(f"{where} refuses its arguments: {line}") from None


def _check(node: Node, segment: Segment, made: Sequence[Shape], shapes: Shapes, batch: int) -> None:
    where = f"node {node.number} ({node.op})"
    if len(made) != len(node.outputs):
        raise GraphError(f"{where} makes {len(made)} results, the graph declares {len(node.outputs)}")
    for number, result in zip(node.outputs, made, strict=True):
        if number >= 0:
            _check_type(number, segment.values[number], result, batch, where)
            shapes[number] = result


def _check_type(number: int, stated: ValueType, made: Shape, batch: int, where: str) -> None:
    if made.shape != stated.shape_at(batch) or made.dtype != shape_of(stated, batch).dtype:
        raise GraphError(
            f"{where} makes value {number} as {made.dtype}{list(made.shape)}, "
            f"the graph declares {stated.dtype}{list(stated.shape_at(batch))}"
        )


def _signature(node: Node, shapes: Mapping[int, Shape], batch: int) -> tuple[Any, ...]:
    """Equal for two nodes only if equal inputs give equal results."""
    arguments = tuple((name, _marked(argument, shapes, batch)) for name, argument in node.arguments.items())
    return node.op, len(node.outputs), arguments


def _marked(argument: Argument, shapes: Mapping[int, Shape], batch: int) -> Any:
    """The argument in a comparable form; 1, 1.0 and True differ."""
    if isinstance(argument, list):
        return tuple(_marked(element, shapes, batch) for element in argument)
    if isinstance(argument, Ref):
        return shapes[argument.id].shape, shapes[argument.id].dtype
    if isinstance(argument, BatchSize):
        return int, argument.at(batch)
    return type(argument), repr(argument)
