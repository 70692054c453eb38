"""torch's argument values to the OP-DAG's: sizes, element types, references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from farflung.errors import CaptureError
from farflung.opdag.graph import ITEM_BYTES, Argument, BatchSize, DType, DTypeName


def dtype_name(dtype: torch.dtype) -> DTypeName:
    """The wire name of an element type.

    Raises
    ------
    CaptureError
        The opset has no such element type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise CaptureError(
            f"element type {name} is not supported: use one of {', '.join(sorted(ITEM_BYTES))}"
        )
    return name  # type: ignore[return-value]


def batch_size(size: int | torch.SymInt) -> int | BatchSize:
    """A size as an integer, or as factor * batch + offset where it follows the batch.

    Raises
    ------
    CaptureError
        The size depends on data, or on the batch in another way.
    """
    if isinstance(size, int):
        return size
    expression = size.node.expr
    symbols = expression.free_symbols
    if not symbols:
        return int(expression)
    if any(str(symbol).startswith("u") for symbol in symbols):
        raise CaptureError("a size depends on a tensor's data")
    at = [expression.subs(dict.fromkeys(symbols, batch)) for batch in (2, 3, 7)]
    if not all(value.is_integer for value in at):
        raise CaptureError(
            f"a size depends on the batch as {expression}; only factor * batch + offset is known"
        )
    two, three, seven = (int(value) for value in at)
    factor = three - two
    if seven - three != 4 * factor:
        raise CaptureError(
            f"a size depends on the batch as {expression}; only factor * batch + offset is known"
        )
    offset = two - 2 * factor
    return BatchSize(factor, offset) if factor else offset


def to_argument(value: Any, reference: Callable[[fx.Node], Argument]) -> Argument:
    """One argument of a call; `reference` resolves nodes (values, or sizes computed in the graph)."""
    if isinstance(value, fx.Node):
        return reference(value)
    if isinstance(value, torch.SymInt):
        return batch_size(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return DType(dtype_name(value))
    if isinstance(value, list | tuple):
        return [to_argument(element, reference) for element in value]  # type: ignore[misc]
    raise CaptureError(f"an argument of type {type(value).__name__} cannot be captured")
