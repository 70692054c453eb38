"""How elements lie in memory: the strides that PyTorch's ops give what they make, from shapes and arguments.

Strides count elements, one for each dimension; those of dimensions of one element mean nothing. `None` stands
for an order that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farflung.opdag.graph import Argument, Node

Shape = Sequence[int]
Strides = tuple[int, ...]


def contiguous(shape: Shape) -> Strides:
    """Row major, without gaps."""
    found: list[int] = []
    step = 1
    for size in reversed(shape):
        found.append(step)
        step *= max(size, 1)
    return tuple(reversed(found))


def is_contiguous(shape: Shape, strides: Strides | None) -> bool:
    """Whether the elements lie row major and without gaps."""
    if strides is None:
        return False
    plain = contiguous(shape)
    return all(a == b or size == 1 for a, b, size in zip(strides, plain, shape, strict=True))


def reshaped(shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """Strides of the same memory seen in the shape `new`; None if only a copy can have it."""
    if math.prod(shape) == 0 or not shape:
        return contiguous(new)
    found = [0] * len(new)
    at = len(new) - 1
    base, run, seen = strides[-1], 1, 1
    for dim in range(len(shape) - 1, -1, -1):
        run *= shape[dim]
        if dim > 0 and (shape[dim - 1] == 1 or strides[dim - 1] == run * base):
            continue  # this dimension and the one before it are one run of elements
        while at >= 0 and (seen < run or new[at] == 1):
            found[at] = seen * base
            seen *= new[at]
            at -= 1
        if seen != run:
            return None
        if dim > 0:
            base, run, seen = strides[dim - 1], 1, 1
    return tuple(found) if at == -1 else None


def viewed(node: Node, shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """Strides of a result, of shape `new`, of a view of one tensor; None where the op is not known."""
    arguments, base = node.arguments, node.op.split(".")[1]
    if base in ("split", "split_with_sizes", "chunk", "detach"):
        return strides
    if base in ("transpose", "permute", "t"):
        return tuple(strides[dim] for dim in _order(base, arguments, len(shape)))
    if base in ("squeeze", "unsqueeze"):
        left = iter([step for step, size in zip(strides, shape, strict=True) if size != 1])
        return tuple(1 if size == 1 else next(left) for size in new)
    if base in ("expand", "expand_as"):
        padded = [(1, 0)] * (len(new) - len(shape)) + list(zip(shape, strides, strict=True))
        return tuple(step if size == wide else 0 for (size, step), wide in zip(padded, new, strict=True))
    if base == "slice":
        dim, step = _integer(arguments.get("dim", 0)), _integer(arguments.get("step", 1))
        dim %= len(shape)
        return (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
    if base in ("select", "unbind"):
        dim = _integer(arguments.get("dim", 0)) % len(shape)
        return (*strides[:dim], *strides[dim + 1 :])
    return None


def like(shape: Shape, operands: Sequence[tuple[Shape, Strides | None]]) -> Strides | None:
    """Strides of what an elementwise op makes: without gaps, in the order in which its operands lie."""
    known = [(theirs, strides) for theirs, strides in operands if strides is not None]
    if len(known) < len(operands):
        return None
    if all(list(theirs) == list(shape) and is_contiguous(theirs, strides) for theirs, strides in known):
        return contiguous(shape)
    order = _fastest_first(shape, [_broadcast(theirs, strides, shape) for theirs, strides in known])
    found = [0] * len(shape)
    step = 1
    for dim in order:
        found[dim] = step
        step *= max(shape[dim], 1)
    return tuple(found)


def _fastest_first(shape: Shape, operands: Sequence[Strides]) -> list[int]:
    """Dimensions as PyTorch's TensorIterator sorts them: by insertion, as its comparison is no order."""
    order = list(range(len(shape) - 1, -1, -1))
    for at in range(1, len(order)):
        later = at
        for earlier in range(at - 1, -1, -1):
            sign = _compare(shape, operands, order[earlier], order[later])
            if sign < 0:
                break
            if sign > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
    return order


def _compare(shape: Shape, operands: Sequence[Strides], one: int, other: int) -> int:
    """Negative if the elements of `one` are nearer, 0 if nobody says."""
    for strides in operands:
        first, second = strides[one], strides[other]
        if not first or not second:
            continue
        if first != second:
            return first - second
        if shape[one] > shape[other]:
            return 1
    return 0


def _broadcast(shape: Shape, strides: Strides, result: Shape) -> Strides:
    missing = len(result) - len(shape)
    pairs = zip(shape, strides, result[missing:], strict=True)
    return (*[0] * missing, *(0 if size == 1 != wide else step for size, step, wide in pairs))


def _order(base: str, arguments: dict[str, Argument], rank: int) -> list[int]:
    order = list(range(rank))
    if base == "permute":
        dims = arguments["dims"]
        assert isinstance(dims, list)
        return [_integer(dim) % rank for dim in dims]
    if base == "t":
        return order[::-1]
    one, other = (_integer(arguments[name]) % max(rank, 1) for name in ("dim0", "dim1"))
    if rank:
        order[one], order[other] = order[other], order[one]
    return order


def _integer(argument: object) -> int:
    assert isinstance(argument, int)
    return argument
