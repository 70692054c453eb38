"""What a node costs: floating point operations and bytes moved, by formula from shapes alone.

Formulas, not a framework's counter: torch's own counter misses CPU attention (2-7 % of a language model).
A multiply-add counts as two operations; the backward pass costs about twice the forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from farflung.opdag.graph import Node, Ref, ValueType
from farflung.opdag.opset import lookup

OPTIMIZER_COPIES = 4
"""Of every trainable parameter a worker holds itself, its gradient and AdamW's two moments."""

Types = Sequence[ValueType] | Mapping[int, ValueType]

OPTIMIZER_COPIES = 4
"""Of every trainable parameter a worker holds itself, its gradient and AdamW's two moments."""

_OPERATIONS_PER_ELEMENT = {"elementwise": 1, "reduction": 4, "normalisation": 8}


def _shape(node: Node, name: str, types: Types, batch: int) -> tuple[int, ...]:
    argument = node.arguments[name]
    assert isinstance(argument, Ref)
    return types[argument.id].shape_at(batch)


def _output_elements(node: Node, types: Types, batch: int) -> int:
    return sum(types[value].numel(batch) for value in node.writes()[:1])


def _input_elements(node: Node, types: Types, batch: int) -> int:
    return max((types[value].numel(batch) for value in node.reads()), default=0)


def _product(node: Node, types: Types, batch: int) -> int:
    left = "mat1" if "mat1" in node.arguments else "batch1" if "batch1" in node.arguments else "self"
    left = "input" if "input" in node.arguments else left
    return 2 * _output_elements(node, types, batch) * _shape(node, left, types, batch)[-1]


def _convolution(node: Node, types: Types, batch: int) -> int:
    weight = _shape(node, "weight", types, batch)  # [out, in / groups, *kernel], transposed [in, ...]
    if node.op.startswith("aten.conv_transpose"):  # each element of the input is spread, not gathered
        return 2 * math.prod(_shape(node, "input", types, batch)) * math.prod(weight[1:])
    return 2 * _output_elements(node, types, batch) * math.prod(weight[1:])


def _attention(node: Node, types: Types, batch: int) -> int:
    query = _shape(node, "query", types, batch)  # [..., queries, width]
    keys = _shape(node, "key", types, batch)[-2]
    values = _shape(node, "value", types, batch)[-1]
    return 2 * math.prod(query[:-1]) * keys * (query[-1] + values)


def _resampling(node: Node, types: Types, batch: int) -> int:
    """Each element mixes its two neighbours in every dimension."""
    neighbours = 2 ** (len(_shape(node, "input", types, batch)) - 2)
    return 2 * neighbours * _output_elements(node, types, batch)


def _pooling(node: Node, types: Types, batch: int) -> int:
    return _input_elements(node, types, batch)


_FORMULAS: dict[str, Callable[[Node, Types, int], int]] = {
    "product": _product,
    "convolution": _convolution,
    "attention": _attention,
    "pooling": _pooling,
    "resampling": _resampling,
}


def flops(node: Node, types: Types, batch: int) -> int:
    """Floating point operations of the node's forward pass on a microbatch of `batch` samples."""
    group = lookup(node.op).group
    if group in _FORMULAS:
        return _FORMULAS[group](node, types, batch)
    per_element = _OPERATIONS_PER_ELEMENT.get(group, 0)
    elements = max(_output_elements(node, types, batch), _input_elements(node, types, batch))
    return per_element * elements


def bytes_moved(node: Node, types: Types, batch: int) -> int:
    """Bytes that the node's forward pass reads and writes; nothing for views."""
    if lookup(node.op).group == "view":
        return 0
    return sum(types[value].bytes(batch) for value in [*node.reads(), *node.writes()])
