"""Convolutions over one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.promotion import compute_type, is_floating, to

Array = jax.Array
_SPATIAL = "DHW"


def _sizes(name: str, given: Sequence[int], count: int, least: int) -> list[int]:
    sizes = list(given) * count if len(given) == 1 else list(given)
    if len(sizes) != count or min(sizes) < least:
        raise ValueError(f"{name} {list(given)} of a convolution over {count} dimensions")
    return sizes


def _convolution(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
    spread: Sequence[int] = (),
) -> Array:
    """A convolution, with checks for what JAX would compute differently or not refuse clearly.

    `spread` is the distance between the input's elements.
    """
    count = weight.ndim - 2
    if input.ndim not in (count + 1, count + 2) or not is_floating(input.dtype):
        raise ValueError(f"an input of {input.ndim} dimensions, {input.dtype}")
    if any(other is not None and other.dtype != input.dtype for other in (weight, bias)):
        raise ValueError(f"weight and bias must be {input.dtype} as the input is")
    if groups < 1 or input.shape[-count - 1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ValueError(f"{input.shape[-count - 1]} channels in {groups} groups, weight {weight.shape}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"a bias of shape {list(bias.shape)} for {weight.shape[0]} channels")
    reach = [d * (size - 1) + 1 for d, size in zip(dilation, weight.shape[2:], strict=True)]
    apart = spread or [1] * count
    sides = zip(input.shape[-count:], apart, padding, reach, strict=True)
    if any((size - 1) * far + 1 + low + high < window for size, far, (low, high), window in sides):
        raise ValueError("the kernel is larger than the padded input")
    spatial = _SPATIAL[-count:]
    made = lax.conv_general_dilated(
        input if input.ndim == weight.ndim else input[None],
        weight,
        stride,
        padding,
        lhs_dilation=apart,
        rhs_dilation=dilation,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
        preferred_element_type=compute_type(input.dtype),
    )
    if bias is not None:
        made = made + to(bias, made.dtype).reshape(-1, *[1] * count)
    return to(made if input.ndim == weight.ndim else made[0], input.dtype)


def _direct(count: int) -> None:
    def lowered(
        input: Array,
        weight: Array,
        bias: Array | None = None,
        stride: Sequence[int] = (1,) * count,
        padding: Sequence[int] = (0,) * count,
        dilation: Sequence[int] = (1,) * count,
        groups: int = 1,
    ) -> Array:
        if weight.ndim != count + 2:
            raise ValueError(f"a weight of {weight.ndim} dimensions")
        margins = [(size, size) for size in _sizes("padding", padding, count, 0)]
        strides, dilations = _sizes("stride", stride, count, 1), _sizes("dilation", dilation, count, 1)
        return _convolution(input, weight, bias, strides, margins, dilations, groups)

    lowers(f"conv{count}d.default")(lowered)


for _count in (1, 2, 3):
    _direct(_count)


def _named_padding(count: int) -> None:
    def lowered(
        input: Array,
        weight: Array,
        bias: Array | None = None,
        stride: Sequence[int] = (1,) * count,
        padding: str = "valid",
        dilation: Sequence[int] = (1,) * count,
        groups: int = 1,
    ) -> Array:
        """`same` lays the odd element of its padding after the picture."""
        if weight.ndim != count + 2:
            raise ValueError(f"a weight of {weight.ndim} dimensions")
        strides, dilations = _sizes("stride", stride, count, 1), _sizes("dilation", dilation, count, 1)
        margins = [(0, 0)] * count
        if padding == "same":
            if strides != [1] * count:
                raise ValueError("padding 'same' is for a stride of 1")
            totals = [d * (size - 1) for d, size in zip(dilations, weight.shape[2:], strict=True)]
            margins = [(total // 2, total - total // 2) for total in totals]
        return _convolution(input, weight, bias, strides, margins, dilations, groups)

    lowers(f"conv{count}d.padding")(lowered)


for _count in (1, 2, 3):
    _named_padding(_count)


def _transposed(count: int) -> None:
    """A convolution over the input, spread out by its stride, with the flipped kernel."""

    def lowered(
        input: Array,
        weight: Array,
        bias: Array | None = None,
        stride: Sequence[int] = (1,) * count,
        padding: Sequence[int] = (0,) * count,
        output_padding: Sequence[int] = (0,) * count,
        groups: int = 1,
        dilation: Sequence[int] = (1,) * count,
    ) -> Array:
        """A convolution over the input spread out by its stride, with the kernel turned around."""
        if weight.ndim != count + 2 or groups < 1 or weight.shape[0] % groups:
            raise ValueError(f"a weight of shape {list(weight.shape)} in {groups} groups")
        strides, dilations = _sizes("stride", stride, count, 1), _sizes("dilation", dilation, count, 1)
        margins = _sizes("padding", padding, count, 0)
        extra = _sizes("output_padding", output_padding, count, 0)
        if any(more >= max(s, d) for more, s, d in zip(extra, strides, dilations, strict=True)):
            raise ValueError("the output padding must be below the stride or the dilation")
        reach = [d * (size - 1) for d, size in zip(dilations, weight.shape[2:], strict=True)]
        around = [(r - m, r - m + more) for r, m, more in zip(reach, margins, extra, strict=True)]
        turned = jnp.flip(weight, tuple(range(2, weight.ndim)))
        grouped = turned.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        swapped = jnp.swapaxes(grouped, 1, 2).reshape(-1, weight.shape[0] // groups, *weight.shape[2:])
        return _convolution(input, swapped, bias, [1] * count, around, dilations, groups, strides)

    lowers(f"conv_transpose{count}d.{'input' if count > 1 else 'default'}")(lowered)


for _count in (1, 2, 3):
    _transposed(_count)
