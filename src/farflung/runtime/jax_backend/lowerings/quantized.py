"""Linear layer and embedding over a quantized matrix; the layer's backward pass dequantizes it once more."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.quantization import BLOCKS, NF4_LEVELS, SCALE_BYTES, block_bytes, values_in
from farflung.runtime.jax_backend.lowering import lowers
from farflung.runtime.jax_backend.lowerings.product import linear
from farflung.runtime.jax_backend.promotion import compute_type, is_floating, to

Array = jax.Array
_LEVELS = np.array(NF4_LEVELS, np.float32)


@lowers("farflung.quantized_linear.default")
def quantized_linear(
    input: Array, weight: Array, format: str, bias: Array | None = None, transposed: bool = False
) -> Array:
    """A linear layer whose matrix is what `weight` stands for, in the type of `input`.

    Raises
    ------
    ValueError
        `weight` has no whole blocks, or does not fit `input`.
    """
    _require_blocks(weight, format)
    if not is_floating(input.dtype) or (bias is not None and bias.ndim != 1):
        raise ValueError(f"a linear layer of {input.dtype}")
    return _linear(input, weight, bias, format, transposed)


@lowers("farflung.quantized_embedding.default")
def quantized_embedding(weight: Array, indices: Array, format: str, dtype: np.dtype) -> Array:
    """Rows of what `weight` stands for; one that is out of range has scales that are not numbers."""
    _require_blocks(weight, format)
    if indices.dtype not in (np.int32, np.int64) or not is_floating(dtype):
        raise ValueError(f"an embedding of {dtype} by {indices.dtype}")
    known = jnp.where(indices < 0, weight.shape[0], indices).reshape(-1)
    rows = jnp.take(weight, known, 0, mode="fill", fill_value=255)
    return _matrix(rows, format, False, dtype).reshape(*indices.shape, values_in(weight.shape[1], format))


def _require_blocks(weight: Array, format: str) -> None:
    if weight.ndim != 2 or weight.dtype != np.uint8 or weight.shape[1] % block_bytes(format):
        raise ValueError(f"a {format} matrix is uint8 of rows of {block_bytes(format)} bytes a block")


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _linear(input: Array, weight: Array, bias: Array | None, format: str, transposed: bool) -> Array:
    return linear(input, _matrix(weight, format, transposed, input.dtype), bias)


def _forward(
    input: Array, weight: Array, bias: Array | None, format: str, transposed: bool
) -> tuple[Array, tuple[Array, Array | None]]:
    return _linear(input, weight, bias, format, transposed), (weight, bias)


def _backward(
    format: str, transposed: bool, kept: tuple[Array, Array | None], gradient: Array
) -> tuple[Array, None, Array | None]:
    weight, bias = kept
    wide = compute_type(gradient.dtype)
    matrix = _matrix(weight, format, transposed, gradient.dtype)
    over = ((gradient.ndim - 1,), (0,)), ((), ())
    of_input = lax.dot_general(gradient, matrix, over, preferred_element_type=wide)
    axes = tuple(range(gradient.ndim - 1))
    of_bias = None if bias is None else to(jnp.sum(to(gradient, wide), axes), gradient.dtype)
    return to(of_input, gradient.dtype), None, of_bias


_linear.defvjp(_forward, _backward)


def _matrix(weight: Array, format: str, transposed: bool, dtype: np.dtype) -> Array:
    """The matrix as [out, in]."""
    rows = weight.shape[0]
    blocks = weight.reshape(rows, -1, block_bytes(format))
    size, float32 = SCALE_BYTES[format], np.dtype(np.float32)
    kind = float32 if size == float32.itemsize else jnp.bfloat16
    scales = to(lax.bitcast_convert_type(blocks[..., :size], kind)[..., None], float32)
    codes = blocks[..., size:]
    if format == "int8":
        levels = to(lax.bitcast_convert_type(codes, np.int8), float32)
    else:
        pairs = jnp.stack([codes & np.uint8(15), codes >> np.uint8(4)], -1)
        levels = jnp.asarray(_LEVELS)[pairs.reshape(*codes.shape[:2], BLOCKS[format])]
    matrix = to((levels * scales).reshape(rows, -1), dtype)
    return matrix.T if transposed else matrix
