"""FLOPs of a node's forward pass, by formula from shapes alone.

Formulas, not a framework's counter: torch's own counter misses CPU attention (2-7 % of a language model).
The convention, which `tests/opdag/test_cost.py` compares with counts by hand:

* A multiply-add is two operations. Products, convolutions and attention count their multiply-adds and nothing
  else: no bias, no scaling, no softmax. The backward pass takes as many for the gradient of each operand.
* A convolution counts every position of its kernel, including those over padding.
* Attention with `is_causal` counts the pairs in which the query attends to the key; with a mask, all pairs.
* An elementwise op counts one for each element of its result, whatever the function.
* A reduction, a loss or a norm counts the passes over its input that its definition names (`_PASSES`), a norm
  one more for its weight and one for its bias.
* A pooling op counts every element of every window.
* Resampling mixes two neighbours in every dimension, four if it is cubic; nearest-neighbour counts nothing.
* Views, movement and creation count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from farflung.opdag.graph import Argument, Node, Ref, ValueType
from farflung.opdag.opset import lookup

Types = Sequence[ValueType] | Mapping[int, ValueType]

_STATISTICS = 4  # mean, difference, square, sum of squares
_PASSES = {
    "var": _STATISTICS,
    "std": _STATISTICS,
    "linalg_vector_norm": 2,  # power, sum
    "softmax": 5,  # maximum, difference, exponential, sum, quotient
    "log_softmax": 5,
    "logsumexp": 4,
    "cross_entropy_loss": 5,
    "mse_loss": 3,  # difference, square, sum
    "binary_cross_entropy_with_logits": 8,
    "layer_norm": _STATISTICS + 2,
    "group_norm": _STATISTICS + 2,
    "_native_batch_norm_legit_functional": _STATISTICS + 2,
    "_native_batch_norm_legit": _STATISTICS + 2,
    "rms_norm": 3,  # square, sum, product
}
"""Passes over the input of reductions, losses and norms; one for those that are not listed."""


def flops(node: Node, types: Types, batch: int) -> int:
    """Floating point operations of the node's forward pass on a microbatch of `batch` samples."""
    formula = _FORMULAS.get(lookup(node.op).group)
    return formula(node, types, batch) if formula else 0


def _shape(node: Node, name: str, types: Types, batch: int) -> tuple[int, ...]:
    argument = node.arguments[name]
    assert isinstance(argument, Ref)
    return types[argument.id].shape_at(batch)


def _base(node: Node) -> str:
    return node.op.split(".")[1]


def _result(node: Node, types: Types, batch: int) -> int:
    """Elements of the first result that is used."""
    return sum(types[value].numel(batch) for value in node.writes()[:1])


def _elementwise(node: Node, types: Types, batch: int) -> int:
    return _result(node, types, batch)


def _reduction(node: Node, types: Types, batch: int) -> int:
    reduced = "target" if _base(node) == "nll_loss_nd" else "self"
    return _PASSES.get(_base(node), 1) * math.prod(_shape(node, reduced, types, batch))


def _normalisation(node: Node, types: Types, batch: int) -> int:
    affine = sum(isinstance(node.arguments.get(name), Ref) for name in ("weight", "bias"))
    return (_PASSES[_base(node)] + affine) * math.prod(_shape(node, "input", types, batch))


def _pooling(node: Node, types: Types, batch: int) -> int:
    if "kernel_size" not in node.arguments:
        return _adaptive_pooling(node, types, batch)
    kernel = _integers(node.arguments["kernel_size"])
    dimensions = int(_base(node)[-2])  # ..._pool2d
    places = math.prod(kernel) if len(kernel) == dimensions else kernel[0] ** dimensions
    return _result(node, types, batch) * places


def _adaptive_pooling(node: Node, types: Types, batch: int) -> int:
    sides = _integers(node.arguments["output_size"])
    shape = _shape(node, "self", types, batch)
    outer, pooled = shape[: -len(sides)], shape[-len(sides) :]
    read = [
        sum(-(-(at + 1) * side // parts) - at * side // parts for at in range(parts))
        for side, parts in zip(pooled, sides, strict=True)
    ]
    return math.prod(outer) * math.prod(read)


def _product(node: Node, types: Types, batch: int) -> int:
    names = ("mat1", "batch1", "input", "self")
    left = next(name for name in names if name in node.arguments)
    return 2 * _result(node, types, batch) * _shape(node, left, types, batch)[-1]


def _convolution(node: Node, types: Types, batch: int) -> int:
    weight = _shape(node, "weight", types, batch)  # [out, in / groups, *kernel]
    if "transpose" not in node.op:
        return 2 * _result(node, types, batch) * math.prod(weight[1:])
    name = "input" if "input" in node.arguments else "self"  # weight is [in, out / groups, *kernel]
    return 2 * math.prod(_shape(node, name, types, batch)) * math.prod(weight[1:])


def _attention(node: Node, types: Types, batch: int) -> int:
    *outer, queries, width = _shape(node, "query", types, batch)
    keys = _shape(node, "key", types, batch)[-2]
    values = _shape(node, "value", types, batch)[-1]
    pairs = queries * keys
    if node.arguments.get("is_causal"):
        seeing = min(queries, keys)  # the first query attends to one key, each further one to one more
        pairs = seeing * (seeing + 1) // 2 + (queries - seeing) * keys
    return 2 * math.prod(outer) * pairs * (width + values)


def _resampling(node: Node, types: Types, batch: int) -> int:
    """Each element mixes its two neighbours in every dimension, or four."""
    each = 4 if _base(node) == "upsample_bicubic2d" else 2
    neighbours = each ** (len(_shape(node, "input", types, batch)) - 2)
    return 2 * neighbours * _result(node, types, batch)


def _integers(argument: Argument) -> list[int]:
    elements = argument if isinstance(argument, list) else [argument]
    return [element for element in elements if isinstance(element, int)]


_FORMULAS: dict[str, Callable[[Node, Types, int], int]] = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "normalisation": _normalisation,
    "pooling": _pooling,
    "product": _product,
    "convolution": _convolution,
    "attention": _attention,
    "resampling": _resampling,
}
