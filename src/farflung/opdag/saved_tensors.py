"""The values that autograd saves for a node's backward pass, and the temporary memory of its kernels.

It follows PyTorch's list of derivatives (derivatives.yaml of 2.13); a test compares it with autograd. An op
that is not listed is assumed to save all its operands and results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

from farflung.opdag.cost import Types
from farflung.opdag.graph import ITEM_BYTES, DType, Node, Ref
from farflung.opdag.opset import lookup
from farflung.opdag.storage import Storage, reshaped, uses_fused_attention
from farflung.opdag.workspaces import workspace_bytes

_KEPT = {
    "add": "",
    "sub": "",
    "rsub": "",
    "neg": "",
    "mul": "self:other other:self",
    "div": "other self:other",
    "pow": "self exponent result:exponent",
    "sqrt rsqrt exp expm1 tanh sigmoid relu reciprocal softmax log_softmax": "result",
    "floor ceil round sign": "",
    "log log1p log2 abs sin cos atan gelu silu mish softplus leaky_relu elu hardtanh": "self",
    "hardswish hardsigmoid log_sigmoid square erf clamp clamp_min clamp_max var": "self",
    "prelu": "self weight",
    "remainder": "self:other other:other",
    "maximum minimum": "self other",
    "where": "condition",
    "masked_fill": "mask",
    "tril triu": "",
    "native_dropout": "result1",
    "amax amin logsumexp std prod linalg_vector_norm": "self result",
    "max min": "self result result1",
    "cumsum sum mean": "",
    "mse_loss smooth_l1_loss": "self target",
    "nll_loss_nd": "self target weight",
    "cross_entropy_loss": "target weight",
    "binary_cross_entropy_with_logits": "self target weight pos_weight",
    "layer_norm group_norm rms_norm": "input weight",
    "_native_batch_norm_legit_functional _native_batch_norm_legit": "input weight running_mean running_var",
    "max_pool2d max_pool3d avg_pool2d avg_pool3d": "self",
    "mm matmul": "self:other self:mat2 other:self mat2:self",
    "bmm": "self:mat2 mat2:self",
    "addmm": "mat1:mat2 mat2:mat1",
    "baddbmm": "batch1:batch2 batch2:batch1",
    "linear": "input:weight weight:input",
    "quantized_linear": "weight:input",
    "quantized_embedding": "",
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d": "input weight",
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d": "",
    "embedding": "indices",
    "index": "indices",
    "index_select": "index",
    "gather": "self index",
    "scatter scatter_add": "index",
    "scatter_reduce": "self index src result",
    "index_put": "indices",
}
"""By op: what is saved; `a:b` saves a if b needs a gradient. `result1` is the second result."""

_RULES = {name: rule.split() for names, rule in _KEPT.items() for name in names.split()}
_NOTHING = frozenset({"view", "movement", "creation"})

_BACKWARD_COPIES = {
    "abs": 1, "sin": 1, "cos": 2, "sqrt": 1, "rsqrt": 2, "reciprocal": 2, "erf": 4, "pow": 2, "diff": 2,
    "square": 2, "var": 2, "std": 2, "maximum": 2, "minimum": 2, "max": 2, "min": 2, "amax": 2, "amin": 2,
    "clamp": 1, "clamp_min": 1, "clamp_max": 1, "logsumexp": 2, "log1p": 1, "log2": 1, "expm1": 1, "atan": 2,
    "cumsum": 2, "prelu": 1, "remainder": 1, "prod": 3, "linalg_vector_norm": 2, "scatter_reduce": 4,
    "binary_cross_entropy_with_logits": 3, "cross_entropy_loss": 1, "rms_norm": 3, "native_dropout": 1,
}  # fmt: skip
"""Temporary tensors of a backward pass besides gradients, each as large as the op's largest operand."""

_FORWARD_COPIES = {"binary_cross_entropy_with_logits": 3, "logsumexp": 1}

_MEAN = 1
"""The `reduction` of a loss that is a mean."""

_SUMMED = frozenset({
    "sub", "mul", "div", "maximum", "minimum", "remainder", "where", "masked_fill", "mse_loss",
    "smooth_l1_loss",
})  # fmt: skip
"""Ops that make the gradient of a broadcast operand at the size of the result, before it is summed."""


@dataclass(frozen=True)
class SavedTensors:
    """The saved tensors and temporary memory of one node, for one microbatch.

    Parameters
    ----------
    values
        Values of the graph that autograd keeps.
    extra_bytes
        Further saved bytes: masks, statistics and copies that are not values of the graph.
    forward_bytes, backward_bytes
        Temporary memory of the kernels in addition to operands, results and gradients.
    """

    values: frozenset[int]
    extra_bytes: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0


def saved_by(node: Node, types: Types, batch: int, storage: Storage, gradients: set[int]) -> SavedTensors:
    """What autograd saves for `node`, given the values whose gradient is needed.

    Parameters
    ----------
    types, batch, storage
        Types of the values that the node reads and computes, the samples, and `storage_of` the graph.
    gradients
        Values whose gradient is needed (`differentiable_values`).
    """
    base, group = node.op.split(".")[1], lookup(node.op).group
    cast = _cast(node, types, batch)
    largest = max((cast, *(types[v].bytes(batch) for v in (*node.reads(), *node.writes()))))
    copies = _FORWARD_COPIES.get(base, 0) + _more_forward(node, base, types)
    wide = _widened(node, base, types, batch)
    forward = copies * largest + cast + wide + workspace_bytes(node, types, batch, False)
    if base in ("mse_loss", "smooth_l1_loss"):
        forward += _broadcast(node, types, batch, storage)
    if base == "matmul":
        forward += sum(_copied(node, types, batch, storage).values())
    if group == "attention":
        values, extra, around = _attention(node, types, batch, storage, gradients)
        if not gradients.intersection(node.writes()):
            return SavedTensors(frozenset(), 0, around)
        return SavedTensors(values, extra, around, around)
    if not gradients.intersection(node.writes()):
        return SavedTensors(frozenset(), 0, forward)
    copies = _BACKWARD_COPIES.get(base, 0) + _more_backward(node, base, types, batch, gradients)
    backward = copies * largest + cast + workspace_bytes(node, types, batch, True)
    backward += 2 * wide * (base == "rms_norm")
    values = _values(node, base, group, gradients)
    extra = _extra(node, base, types, batch, gradients)
    if base == "matmul":
        copied = _copied(node, types, batch, storage)
        kept = sum(copied[value] for value in values.intersection(copied))
        values, extra, forward = values.difference(copied), extra + kept, forward - kept
        expanded = (value for value, size in copied.items() if size > types[value].bytes(batch))
        backward += sum(copied[value] for value in gradients.intersection(expanded))
    return SavedTensors(values, extra, forward, backward)


def _cast(node: Node, types: Types, batch: int) -> int:
    """Bytes of an operand in the type in which an op computes, if it is told another one than it has."""
    dtype = node.arguments.get("dtype")
    if not isinstance(dtype, DType) or node.op == "aten._to_copy.default":
        return 0
    operands = [types[value] for value in _named(node, "self") if types[value].dtype != dtype.name]
    return sum(kind.numel(batch) for kind in operands) * ITEM_BYTES[dtype.name]


def _widened(node: Node, base: str, types: Types, batch: int) -> int:
    """Bytes of the copy in float32 that a mean makes of halves, also that of a loss or norm."""
    if base not in ("mean", "mse_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits", "rms_norm"):
        return 0
    if node.arguments.get("reduction", _MEAN) != _MEAN:
        return 0
    halves = [types[v].numel(batch) for v in node.reads() if types[v].dtype in ("float16", "bfloat16")]
    return max(halves, default=0) * ITEM_BYTES["float32"]


def _more_forward(node: Node, base: str, types: Types) -> int:
    """Further temporary tensors of a forward pass, as its arguments have it."""
    if base in ("diff", "roll"):  # in one step after the other
        steps = node.arguments.get("n" if base == "diff" else "dims", 1)
        return int((len(steps) if isinstance(steps, list) else steps or 1) > 1)  # type: ignore[operator]
    if base == "native_dropout":
        return int(node.outputs[1] >= 0)  # else autograd keeps it
    if base == "scatter_reduce":
        return 2 * (node.arguments.get("reduce") == "mean")
    if base != "cross_entropy_loss":
        return 0
    weighted = bool(_named(node, "weight"))
    if _is_by_index(node, types):
        return int(weighted and bool(node.arguments.get("label_smoothing")))
    return 1 + weighted


def _more_backward(node: Node, base: str, types: Types, batch: int, gradients: set[int]) -> int:
    """Further temporary tensors of a backward pass, as its arguments and shapes have it."""
    if base == "pow" and _named(node, "self") and _named(node, "exponent"):
        return 3
    if base == "roll":
        return _more_forward(node, base, types)
    if base == "pad":
        return 2 * (node.arguments.get("mode") == "circular")
    if base in ("addmm", "baddbmm"):
        return int(any(node.arguments.get(name, 1) != 1 for name in ("beta", "alpha")))
    if base not in _SUMMED:
        return 0
    if base == "masked_fill" and not gradients.isdisjoint(_named(node, "value")):
        return 5
    size = max(types[value].numel(batch) for value in (*node.reads(), *node.writes()))
    summed = sum(types[v].numel(batch) < size for v in gradients.intersection(node.reads()))
    return summed + 2 * (base == "div" and not gradients.isdisjoint(_named(node, "other")))


def _values(node: Node, base: str, group: str, gradients: set[int]) -> frozenset[int]:
    rules = _RULES.get(base)
    if rules is None:
        return frozenset() if group in _NOTHING else frozenset((*node.reads(), *node.writes()))
    found: set[int] = set()
    for rule in rules:
        name, _, wanted = rule.partition(":")
        if not wanted or gradients.intersection(_named(node, wanted)):
            found.update(_named(node, name))
    return frozenset(found)


def _named(node: Node, name: str) -> list[int]:
    """The values of an argument or a result."""
    if name.startswith("result"):
        at = int(name[6:] or 0)
        return [value for value in node.outputs[at : at + 1] if value >= 0]
    argument = node.arguments.get(name)
    elements = argument if isinstance(argument, list) else [argument]
    return [element.id for element in elements if isinstance(element, Ref)]


def _extra(node: Node, base: str, types: Types, batch: int, gradients: set[int]) -> int:
    """Bytes that autograd saves in addition to the graph's values."""

    def size(name: str) -> int:
        return sum(types[value].bytes(batch) for value in _named(node, name))

    if base == "cross_entropy_loss":
        smoothed = bool(node.arguments.get("label_smoothing")) and not _is_by_index(node, types)
        return size("self") * (1 + smoothed)  # log-probabilities, and probabilities as targets
    if base == "log_sigmoid":
        return size("self")  # the exponentials
    if base in ("max", "min") and node.outputs[1:] == [-1]:
        return types[node.outputs[0]].numel(batch) * ITEM_BYTES["int64"]  # their positions
    if base == "native_dropout" and node.outputs[1] < 0:
        return size("input")  # noise as numbers, if the mask is not used elsewhere
    if base in ("max_pool2d", "max_pool3d"):
        return sum(types[v].numel(batch) for v in node.writes()) * ITEM_BYTES["int64"]
    if base == "rms_norm":
        return _statistics(node, base, types, batch) + _normalised(node, types, batch, gradients)
    if base in ("layer_norm", "group_norm"):
        return _statistics(node, base, types, batch)
    if base.startswith("_native_batch_norm"):
        channels = sum(types[v].shape_at(batch)[1] for v in _named(node, "input"))
        return 2 * channels * ITEM_BYTES["float32"]
    return 0


def _normalised(node: Node, types: Types, batch: int, gradients: set[int]) -> int:
    """What `rms_norm` keeps, which PyTorch makes of other ops: what it multiplies by the weight, if that
    wants a gradient, and an operand in halves as float32.
    """
    (operand,) = _named(node, "input")
    dtype = types[operand].dtype
    wide = max(ITEM_BYTES[dtype], ITEM_BYTES["float32"])
    kept = [*gradients.intersection(_named(node, "weight"))]
    kept += [operand] if dtype in ("float16", "bfloat16") and operand in gradients else []
    return len(kept) * types[operand].numel(batch) * wide


def _is_by_index(node: Node, types: Types) -> bool:
    """Whether a loss has targets that are classes, and not probabilities."""
    return all("int" in types[value].dtype for value in _named(node, "target"))


def _statistics(node: Node, base: str, types: Types, batch: int) -> int:
    """Mean and deviation of every row or group."""
    (shape,) = (types[value].shape_at(batch) for value in _named(node, "input"))
    groups, normalised = node.arguments.get("num_groups"), node.arguments.get("normalized_shape")
    if base == "group_norm":
        assert isinstance(groups, int)
        return 2 * shape[0] * groups * ITEM_BYTES["float32"]
    assert isinstance(normalised, list)
    return 2 * math.prod(shape[: len(shape) - len(normalised)]) * ITEM_BYTES["float32"]


def _copied(node: Node, types: Types, batch: int, storage: Storage) -> dict[int, int]:
    """Bytes, by value, of copies that a batched product makes of operands not laid out as [batch, n, m]."""
    copies: dict[int, int] = {}
    operands = (*_named(node, "self"), *_named(node, "other"))
    result = types[node.writes()[0]].shape_at(batch)
    by_vector = min(len(storage.shapes[value]) for value in operands) < 2
    for value in operands:
        shape = storage.shapes[value]
        lead = shape[:-2] if by_vector else result[:-2]
        if len(shape) > 2 and (shape[:-2] != lead or not _as_batches(value, storage)):
            copies[value] = math.prod((*lead, *shape[-2:])) * ITEM_BYTES[types[value].dtype]
    return copies


def _broadcast(node: Node, types: Types, batch: int, storage: Storage) -> int:
    """Bytes of a loss that broadcasts its operands: it is computed for each pair, in two steps."""
    one, other = (storage.shapes[value] for name in ("self", "target") for value in _named(node, name))
    if one == other:
        return 0
    sides = zip_longest(reversed(one), reversed(other), fillvalue=1)
    widest = max(ITEM_BYTES[types[value].dtype] for value in node.reads())
    return 2 * math.prod(max(sizes) if min(sizes) else 0 for sizes in sides) * widest


def _as_batches(value: int, storage: Storage) -> bool:
    shape, strides = storage.shapes[value], storage.strides(value)
    flat = (math.prod(shape[:-2]), *shape[-2:])
    return strides is not None and reshaped(shape, strides, flat) is not None


def _attention(
    node: Node, types: Types, batch: int, storage: Storage, gradients: set[int]
) -> tuple[frozenset[int], int, int]:
    """Saved values, further saved bytes, and temporary bytes of attention."""
    operands = [value for name in ("query", "key", "value") for value in _named(node, name)]
    shape = storage.shapes[operands[0]]
    item = ITEM_BYTES[types[operands[0]].dtype]
    keys = storage.shapes[operands[1]][-2]
    (made,) = node.writes()
    pairs = math.prod(storage.shapes[made][:-1]) * keys
    masks = [types[value] for value in _named(node, "attn_mask")]
    if uses_fused_attention(node, storage, gradients):
        sums = math.prod(shape[:-1]) * ITEM_BYTES["float32"]
        mask = sum(kind.numel(batch) * item for kind in masks if kind.dtype == "bool")
        kept = frozenset((*operands, *_named(node, "attn_mask"), *node.writes()))
        return kept, sums + mask, 0
    # Otherwise scores are a table; autograd saves its softmax and, with dropout, the noise and the product.
    tables = 3 if node.arguments.get("dropout_p") else 1
    whole = frozenset(value for value in operands[2:] if _as_batches(value, storage))
    copies = sum(types[value].bytes(batch) for value in operands if value not in whole)
    return whole, copies + tables * pairs * item, (2 * item + ITEM_BYTES["bool"]) * pairs
