"""Temporary memory of kernels: of convolutions as PyTorch chooses them, of quantized products, of `topk`."""

from __future__ import annotations

import math

from farflung.opdag.cost import Types
from farflung.opdag.graph import ITEM_BYTES, Node, Ref
from farflung.opdag.opset import lookup
from farflung.opdag.quantized import DEQUANTIZED_AT_ONCE, QUANTIZED_EMBEDDING, QUANTIZED_LINEAR
from farflung.quantization import values_in

_PIECE_BYTES = 6
"""Of a value that is being dequantized: its level in float32, and half of an index of two levels."""

_SMALL = 20_480
"""Elements of a lone sample, its third axis not counted, up to which oneDNN is passed over."""

_BLOCK = 16
"""Channels of a block of oneDNN: it copies fewer into a whole one, with zeros."""

_WIDEST = 13
"""Last axis of a window up to which oneDNN has kernels that don't unfold; beyond, it unfolds one sample."""


def workspace_bytes(node: Node, types: Types, batch: int, backward: bool) -> int:
    """Temporary memory of a node's kernels in addition to operands, results and gradients.

    Quantized matrices are dequantized one at a time. For convolutions oneDNN copies operands, results and
    weights into blocks of channels. In the backward pass the gradients of operand and weights, which are
    counted separately, are computed one after the other. PyTorch's own kernels unfold the operand for every
    position of a window. `topk` copies one row at a time, as pairs of a number and its position.
    """
    if node.op == QUANTIZED_LINEAR:
        return _dequantized(node, types, batch)
    if node.op == QUANTIZED_EMBEDDING:
        return _looked_up(node, types, batch)
    if node.op == "aten.topk.default":
        return 0 if backward else _one_row(node, types, batch)
    if lookup(node.op).group != "convolution":
        return 0
    if runs_unfolded(node, types, batch):
        weights = types[_operand(node, "weight")].bytes(batch)
        return _unfolded(node, types, batch) + (0 if backward else weights)
    return _in_blocks(node, types, batch, backward)


def _in_blocks(node: Node, types: Types, batch: int, backward: bool) -> int:
    """Bytes that oneDNN takes for a convolution."""
    read, weight, made = _operand(node, "input"), _operand(node, "weight"), node.writes()[0]
    samples, channels, *_ = _batched(node, read, types, batch)
    first = not backward and channels <= 3  # these are read as they are
    operand = types[read].bytes(batch) if first else _blocked(node, read, types, batch)
    result, weights = _blocked(node, made, types, batch), types[weight].bytes(batch)
    found = result + (max(operand, weights) if backward else operand + weights)
    if backward and types[read].dtype == "bfloat16":  # a sample is transposed, weights are summed in float32
        found += (result + operand) // max(1, samples) + 2 * weights
    windows = _unfolded(node, types, batch) // max(1, samples)
    if types[weight].shape_at(batch)[-1] > _WIDEST:
        found = max(found, windows + found // max(1, samples))
    groups = node.arguments.get("groups", 1)
    if (
        isinstance(groups, int) and 1 < groups < channels and channels // groups % _BLOCK
    ):  # one group at a time
        found = max(found, windows // groups)
    return found


def runs_unfolded(node: Node, types: Types, batch: int) -> bool:
    """Whether PyTorch may run a convolution by its own kernels, which unfold the operand, and not by oneDNN.

    It follows `ConvParams::use_mkldnn` of PyTorch 2.13 (aten/src/ATen/native/Convolution.cpp), for a device
    with one thread, where oneDNN is passed over most often, and with bfloat16 in its processor.
    """
    read, weight = types[_operand(node, "input")], types[_operand(node, "weight")].shape_at(batch)
    strides = _whole(node, "stride", len(weight) - 2)
    padded = _whole(node, "output_padding", len(weight) - 2, 0)
    if any(more >= step for more, step in zip(padded, strides, strict=True)):
        return True
    if read.dtype != "float32":
        return read.dtype != "bfloat16"
    samples, *sizes = _batched(node, _operand(node, "input"), types, batch)
    window = (1, *weight[2:])[-2:]  # with one axis PyTorch adds one of size 1 before it
    spread = any(size > 1 for size in (*strides, *_whole(node, "dilation", len(weight) - 2)))
    pays = spread or samples >= 16 or window != (1, 1)
    large = samples > 1 or min(window) > 3 or samples * math.prod(sizes[:3]) > _SMALL
    return not (pays and (large or node.arguments.get("groups", 1) != 1))


def _whole(node: Node, name: str, rank: int, default: int = 1) -> list[int]:
    """Numbers of an argument, one for each axis."""
    given = node.arguments.get(name)
    numbers = [number for number in given if isinstance(number, int)] if isinstance(given, list) else []
    return numbers * rank if len(numbers) == 1 else numbers or [default] * rank


def _unfolded(node: Node, types: Types, batch: int) -> int:
    """Bytes of an operand with each position's window."""
    read, weight, made = _operand(node, "input"), _operand(node, "weight"), node.writes()[0]
    wide, many = (made, read) if "transpose" in node.op else (read, made)
    channels = _batched(node, wide, types, batch)[1]
    samples, _, *places = _batched(node, many, types, batch)
    window = math.prod(types[weight].shape_at(batch)[2:])
    return channels * window * samples * math.prod(places) * ITEM_BYTES[types[read].dtype]


def _blocked(node: Node, value: int, types: Types, batch: int) -> int:
    """Bytes of a value with its channels filled up to whole blocks."""
    samples, channels, *places = _batched(node, value, types, batch)
    filled = -(-channels // _BLOCK) * _BLOCK
    return samples * filled * math.prod(places) * ITEM_BYTES[types[value].dtype]


def _batched(node: Node, value: int, types: Types, batch: int) -> tuple[int, ...]:
    """Shape of a convolution's operand or result; a single one may lack the axis of samples."""
    shape = tuple(types[value].shape_at(batch))
    return shape if len(shape) == len(types[_operand(node, "weight")].shape) else (1, *shape)


def _one_row(node: Node, types: Types, batch: int) -> int:
    kind = types[_operand(node, "self")]
    shape, axis = kind.shape_at(batch), node.arguments.get("dim", -1)
    assert isinstance(axis, int)
    return (shape[axis] if shape else 1) * 2 * ITEM_BYTES["int64"]


def _looked_up(node: Node, types: Types, batch: int) -> int:
    """Bytes of the rows that an embedding takes out of a quantized matrix, and of what their values take."""
    indices, weight = _operand(node, "indices"), _operand(node, "weight")
    codes = types[indices].numel(batch) * types[weight].shape_at(1)[-1]
    return codes + min(types[node.writes()[0]].numel(batch), DEQUANTIZED_AT_ONCE) * _PIECE_BYTES


def _dequantized(node: Node, types: Types, batch: int) -> int:
    """Bytes of a quantized matrix in the type of its input, and of what making it takes."""
    read, weight, form = _operand(node, "input"), _operand(node, "weight"), node.arguments["format"]
    values = values_in(types[weight].numel(batch), str(form))
    return values * ITEM_BYTES[types[read].dtype] + min(values, DEQUANTIZED_AT_ONCE) * _PIECE_BYTES


def _operand(node: Node, name: str) -> int:
    argument = node.arguments[name]
    assert isinstance(argument, Ref)
    return argument.id
