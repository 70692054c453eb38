"""Matrices as integer codes with a scale for each block: the layout, and how values become codes.

A row of a matrix is cut into blocks of 64 neighbours. A block is stored as its scale, a float32 in little
endian, followed by its codes:

* `int8`: a code of 8 bits, from -127 to 127, times the scale is the value. The scale is the block's largest
  magnitude over 127 (arXiv 2305.14314, equations 1 and 2, with the quantization constant inverted).
* `nf4`, NormalFloat of 4 bits: a code names one of 16 levels, which times the scale is the value; two codes
  make a byte, the first in its low half. The scale is the block's largest magnitude (QLoRA, arXiv 2305.14314,
  section 3 and appendix E; scales are not quantized again).

So a value takes 8.5 or 4.5 bits. A row's bytes follow one another, and so do rows: how a matrix is cut into
rows does not change its bytes, as long as rows are whole blocks.

Quantizing needs only quotients and comparisons of float32, and dequantizing one product. A block whose scale
would be below 2^-120 has scale 0 and the codes of zero. So numbers below the smallest normal one, 2^-126, are
nearest to zero in any other block, and no code stands for one: every machine makes the same bytes of the same
values, and the same values of the same bytes, also one that counts such numbers as zero (flush-to-zero).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from farflung.errors import WeightsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QuantizedFormat = Literal["int8", "nf4"]
FORMATS: tuple[str, ...] = get_args(QuantizedFormat)

BLOCK = 64
"""Values of a block."""

LAYOUT = 1
"""Version of the bytes that values become. Raise it with every change of them."""

SCALE_BYTES = 4
SMALLEST_SCALE = 2.0**-120
"""A block with a smaller scale is zero.

Numbers below 2^-126 are then less than 1/64 of a scale, which is nearest to zero in both formats, and no
level times a scale is below 2^-126.
"""
_CODE_BITS = {"int8": 8, "nf4": 4}

NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, in the range from -1 to 1: arXiv 2305.14314, equation 4, appendix E."""

_CHUNK = 2**16
"""Values that are quantized at a time, so that temporary arrays stay in a cache."""


class NotFiniteError(WeightsError):
    """Values are infinite or not a number, so they have no codes."""


def block_bytes(form: str) -> int:
    """Bytes of one block: its scale and its codes."""
    return SCALE_BYTES + BLOCK * _CODE_BITS[form] // 8


def quantized_bytes(values: int, form: str) -> int:
    """Bytes of so many values, a multiple of `BLOCK`."""
    return values // BLOCK * block_bytes(form)


def values_in(size: int, form: str) -> int:
    """How many values so many bytes hold."""
    return size // block_bytes(form) * BLOCK


def quantize(values: NDArray[np.float32], form: str, out: NDArray[np.uint8]) -> None:
    """Write the blocks of `values` into `out`.

    Parameters
    ----------
    values
        float32 [n], where n is a multiple of `BLOCK`.
    out
        uint8 [quantized_bytes(n, form)], contiguous.

    Raises
    ------
    NotFiniteError
        A value is infinite or not a number.
    """
    blocks = out.reshape(-1, block_bytes(form))
    rows = values.reshape(-1, BLOCK)
    step = _CHUNK // BLOCK
    for start in range(0, len(rows), step):
        _quantize_chunk(rows[start : start + step], form, blocks[start : start + step])


def _quantize_chunk(rows: NDArray[np.float32], form: str, out: NDArray[np.uint8]) -> None:
    import numpy as np

    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise NotFiniteError("it has values that are infinite or not a number, which have no code")
    steps = np.float32(127 if form == "int8" else 1)
    # It is the dividend that is compared: what divides to less than a normal number depends on the machine.
    scales = np.where(largest >= steps * np.float32(SMALLEST_SCALE), largest, np.float32(0)) / steps
    out[:, :SCALE_BYTES] = scales.astype("<f4").view(np.uint8)
    parts = np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0)
    if form == "int8":
        np.clip(np.rint(parts, out=parts), -127, 127, out=parts)
        out[:, SCALE_BYTES:] = parts.astype(np.int8).view(np.uint8)
    else:
        codes = _nearest_levels(parts)
        out[:, SCALE_BYTES:] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def _nearest_levels(parts: NDArray[np.float32]) -> NDArray[np.uint8]:
    """For each value the number of the nearest level; halfway between two, the lower one."""
    import numpy as np

    levels = np.array(NF4_LEVELS, np.float32)
    codes = np.zeros(parts.shape, np.uint8)
    for halfway in (levels[1:] + levels[:-1]) / np.float32(2):
        codes += parts > halfway
    return codes
