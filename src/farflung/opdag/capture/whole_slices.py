"""Keep slices that take the whole of a dimension, which torch leaves out.

At another length of the batch the same line takes a part, as `position_ids[:, :length]` does of a table. So
without them a model would have other nodes at its greatest length than at smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WholeSlices(TorchFunctionMode):
    """Makes each slice with an end a node of its own, in the order of dimensions."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[0], Tensor):
            args = _sliced(args[0], args[1])
        return func(*args, **(kwargs or {}))


def _sliced(tensor: Tensor, index: Any) -> tuple[Tensor, Any]:
    """The tensor after its slices, and what is left of the index."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(part is None or isinstance(part, slice | int | EllipsisType) for part in parts):
        return tensor, index
    for at, dimension in _dimensions(parts, tensor.dim()):
        part, size = parts[at], tensor.shape[dimension]
        if part == slice(None):
            continue
        if _is_whole(part, size):
            tensor = torch.ops.aten.slice.Tensor(tensor, dimension, 0, size)
        else:
            tensor = tensor[(slice(None),) * dimension + (part,)]
        parts[at] = slice(None)
    return tensor, tuple(parts)


def _dimensions(parts: Sequence[Any], rank: int) -> Iterator[tuple[int, int]]:
    """For each slice among the parts of an index, its place there and the dimension that it cuts."""
    taken = sum(isinstance(part, slice | int) for part in parts)
    dimension = 0
    for at, part in enumerate(parts):
        if isinstance(part, EllipsisType):
            dimension += rank - taken
        elif part is not None:
            if isinstance(part, slice) and dimension < rank:
                yield at, dimension
            dimension += 1


def _is_whole(part: slice, size: int | torch.SymInt) -> bool:
    """Whether torch would leave a slice out: both its end and the size are plain numbers."""
    is_known = type(part.stop) is int and type(size) is int
    return is_known and part.stop >= size and part.start in (None, 0) and part.step in (None, 1)
