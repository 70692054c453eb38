"""Determine which values have their own memory (many nodes only return views), and the strides of values.

It models PyTorch's CPU kernels on contiguous inputs, as they arrive over a link. If the order of elements is
unknown, an op that may copy is assumed to copy: an estimate that is too high refuses a plan, but one that is
too low kills a worker.

Strides count elements, one for each dimension; those of dimensions of size one are meaningless. `None` stands
for an unknown order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from farflung.opdag.cost import Types
from farflung.opdag.graph import Argument, Node, Ref
from farflung.opdag.opset import lookup

Shape = Sequence[int]
Strides = tuple[int, ...]


def contiguous(shape: Shape) -> Strides:
    """Strides of a row-major tensor without gaps."""
    found: list[int] = []
    step = 1
    for size in reversed(shape):
        found.append(step)
        step *= max(size, 1)
    return tuple(reversed(found))


def is_contiguous(shape: Shape, strides: Strides | None) -> bool:
    """Whether the elements are in row-major order without gaps."""
    if strides is None:
        return False
    plain = contiguous(shape)
    return all(a == b or size == 1 for a, b, size in zip(strides, plain, shape, strict=True))


def reshaped(shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """Strides of the same memory viewed in the shape `new`; None if that needs a copy."""
    if math.prod(shape) == 0 or not shape:
        return contiguous(new)
    found = [0] * len(new)
    at = len(new) - 1
    base, run, seen = strides[-1], 1, 1
    for dim in range(len(shape) - 1, -1, -1):
        run *= shape[dim]
        if dim > 0 and (shape[dim - 1] == 1 or strides[dim - 1] == run * base):
            continue  # contiguous with the dimension before it
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
    """Strides of the result, of shape `new`, of an op that views one tensor; None if the op is unknown."""
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
    """Strides of an elementwise op's result: without gaps, in the order of its operands."""
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
    """Dimensions in the order of PyTorch's TensorIterator: insertion sort, as `_compare` is no order."""
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
    """Negative if the elements of `one` are closer together, 0 if no operand decides."""
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


_MAY_COPY = frozenset({"aten.reshape.default", "aten.flatten.using_ints"})
_ATTENTION = "aten.scaled_dot_product_attention.default"


@dataclass
class Storage:
    """The memory of the values that nodes compute.

    Parameters
    ----------
    shared
        Values that share the memory of the values they are computed from.
    copied
        Values that are copies because their source has another order of elements, with the position of the
        last node that changed the order. If that node ran elsewhere and its result came over a link, there is
        no copy.
    spared
        Values that are not copies because their elements already have the order that attention needs, with
        the position of the node that gave them that order. If that node ran elsewhere, they are copies.
    shapes
        Shapes of all values that nodes read or compute.
    laid
        Strides of the nodes' results, `None` if unknown.
    roots
        For each of the `shared` values, the value that owns the memory.
    """

    shared: set[int] = field(default_factory=set)
    copied: dict[int, int] = field(default_factory=dict)
    spared: dict[int, int] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    laid: dict[int, Strides | None] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)

    def root(self, value: int) -> int:
        """The value that owns the memory of `value`: itself, or for a view its base."""
        return self.roots.get(value, value)

    def strides(self, value: int) -> Strides | None:
        """Strides of a value; contiguous if no node here computed it."""
        return self.laid[value] if value in self.laid else contiguous(self.shapes[value])

    def is_contiguous(self, value: int) -> bool:
        """Whether the value's elements are in row-major order without gaps."""
        return is_contiguous(self.shapes[value], self.strides(value))


def storage_of(nodes: Iterable[Node], types: Types, batch: int) -> Storage:
    """The memory of all values that `nodes` compute, in their order, for microbatches of `batch` samples."""
    found = Storage()
    reordered: dict[int, int] = {}  # value -> position of the last node that changed the order
    attended: dict[int, int] = {}  # result of attention -> position of the node that ordered its queries
    for at, node in enumerate(nodes):
        for value in (*node.reads(), *node.writes()):
            found.shapes.setdefault(value, types[value].shape_at(batch))
        by = max((reordered[value] for value in node.reads() if value in reordered), default=None)
        for value in node.writes():
            is_copy = _lay(found, node, value)
            if node.op == _ATTENTION and (query := _reference(node, "query")) in reordered:
                attended[value] = reordered[query]
            if is_copy and by is not None:
                found.copied[value] = by
            elif node.op in _MAY_COPY and (root := found.root(value)) in attended:
                found.spared[value] = attended[root]
            elif not found.is_contiguous(value):
                reordered[value] = at if by is None or _turns(found, node) else by
    return found


def uses_fused_attention(node: Node, storage: Storage, gradients: Collection[int] = ()) -> bool:
    """Whether attention runs as one fused kernel, which does not store the table of all pairs.

    PyTorch's CPU kernel does not support dropout, values with another width than keys, broadcast operands
    (though heads of keys may be shared), or a mask that has a gradient or three dimensions.
    """
    query, key, value = (storage.shapes[_reference(node, name)] for name in ("query", "key", "value"))
    if node.arguments.get("dropout_p") or not len(query) == len(key) == len(value) == 4:
        return False
    shares = bool(node.arguments.get("enable_gqa"))
    same = query[-1] == key[-1] == value[-1] and query[0] == key[0] == value[0]
    if not same or key[1] != value[1] or (query[1] != key[1] and not shares) or not query[2] * key[2]:
        return False
    mask = node.arguments.get("attn_mask")
    if not isinstance(mask, Ref):
        return True
    shape = storage.shapes[mask.id]
    covers = len(shape) == 2 or (len(shape) == 4 and shape[0] in (1, query[0]) and shape[1] in (1, query[1]))
    return covers and mask.id not in gradients


def _lay(found: Storage, node: Node, value: int) -> bool:
    """Record the memory of a result; returns whether a view op had to copy it."""
    group, shape = lookup(node.op).group, found.shapes[value]
    if group != "view":
        found.laid[value] = _fresh(found, node, shape)
        return False
    source = node.reads()[0]
    theirs, strides = found.shapes[source], found.strides(source)
    if node.op in _MAY_COPY:
        seen = None if strides is None else reshaped(theirs, strides, shape)
        if seen is None:
            found.laid[value] = contiguous(shape)
            return True
    else:
        seen = None if strides is None else viewed(node, theirs, strides, shape)
    found.laid[value] = seen
    found.shared.add(value)
    found.roots[value] = found.root(source)
    return False


def _fresh(found: Storage, node: Node, shape: tuple[int, ...]) -> Strides | None:
    if lookup(node.op).group == "elementwise" or node.op == "aten._to_copy.default":
        return like(shape, [(found.shapes[v], found.strides(v)) for v in node.reads()])
    if node.op == _ATTENTION and uses_fused_attention(node, found):
        query = _reference(node, "query")
        return like(shape, [(found.shapes[query], found.strides(query))])
    return contiguous(shape)


def _turns(found: Storage, node: Node) -> bool:
    """Whether a view's elements have another order than those of its base."""
    if lookup(node.op).group != "view":
        return False
    made, source = node.writes()[0], node.reads()[0]
    return found.strides(made) != found.strides(source) and node.op not in _MAY_COPY


def _reference(node: Node, name: str) -> int:
    argument = node.arguments[name]
    assert isinstance(argument, Ref)
    return argument.id
