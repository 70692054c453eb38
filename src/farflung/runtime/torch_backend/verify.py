"""The last check of a received segment: recompute every shape and element type on the meta device.

Nothing is allocated. A graph whose declared sizes are wrong, or that needs more memory than the worker's
owner allows, is refused before any of it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.opdag.buckets import in_buckets
from farflung.opdag.graph import Argument, BatchSize, DType, Node, Ref, ValueType
from farflung.opdag.segment import Segment
from farflung.runtime.indices import check_result_count
from farflung.runtime.torch_backend.codegen import resolve
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.text import first_line


def verify_segment(segment: Segment, batch: int) -> None:
    """Recompute every value's shape and element type for microbatches of `batch` samples, in each bucket.

    Raises
    ------
    GraphError
        An op refuses its arguments, or a declared type differs from the op's result.
    """
    for sized in in_buckets(segment):
        values = {number: _meta(sized.values[number], batch) for number in _given(sized)}
        with torch.no_grad():
            for node in sized.nodes:
                _verify_node(node, sized, values, batch)


def _given(segment: Segment) -> list[int]:
    return [entry.value for entry in segment.inputs] + list(segment.receives)


def _meta(value_type: ValueType, batch: int) -> Tensor:
    return torch.empty(value_type.shape_at(batch), dtype=DTYPES[value_type.dtype], device="meta")


def _verify_node(node: Node, segment: Segment, values: dict[int, Tensor], batch: int) -> None:
    where = f"node {node.number} ({node.op})"
    arguments = {name: _value(argument, values, batch) for name, argument in node.arguments.items()}
    if opset.lookup(node.op).results == opset.MANY:
        check_result_count(node, arguments["self"].shape, arguments)
    _check_channels(node, arguments, where)
    schema = resolve(node.op)._schema.arguments
    if any(entry.name == "device" for entry in schema):
        arguments["device"] = torch.device("meta")
    try:
        results = resolve(node.op)(**arguments)
    except Exception as error:
        raise GraphError(f"{where} refuses its arguments: {first_line(error)[:200]}") from None
    made = list(results) if isinstance(results, list | tuple) else [results]
    if len(made) != len(node.outputs):
        raise GraphError(f"{where} makes {len(made)} results, the graph declares {len(node.outputs)}")
    for number, result in zip(node.outputs, made, strict=True):
        if number >= 0:
            _check_type(number, segment.values[number], result, batch, where)
            values[number] = result


def _check_type(number: int, stated: ValueType, made: Tensor, batch: int, where: str) -> None:
    if made.dtype != DTYPES[stated.dtype] or tuple(made.shape) != stated.shape_at(batch):
        raise GraphError(
            f"{where} makes value {number} as {str(made.dtype).removeprefix('torch.')}{list(made.shape)}, "
            f"the graph declares {stated.dtype}{list(stated.shape_at(batch))}"
        )


def _check_channels(node: Node, arguments: dict[str, Any], where: str) -> None:
    """Check per-channel tensors of BatchNorm: CPU kernels do not check them, and meta kernels broadcast."""
    if not node.op.startswith("aten._native_batch_norm_legit"):
        return
    tensor: Tensor = arguments["input"]
    channels = tensor.shape[1] if tensor.ndim >= 2 else -1
    for name in ("weight", "bias", "running_mean", "running_var"):
        given = arguments.get(name)
        if given is not None and tuple(given.shape) != (channels,):
            raise GraphError(f"{where}: {name} has shape {list(given.shape)}, input has {channels} channels")


def _value(argument: Argument | Sequence[Any], values: dict[int, Tensor], batch: int) -> Any:
    if isinstance(argument, list):
        return [_value(element, values, batch) for element in argument]
    if isinstance(argument, Ref):
        return values[argument.id]
    if isinstance(argument, BatchSize):
        return argument.at(batch)
    if isinstance(argument, DType):
        return DTYPES[argument.name]
    return argument
