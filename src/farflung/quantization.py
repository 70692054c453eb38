"""Matrices as integer codes with a scale for each block: the layout, and how values become codes.

A row of a matrix is cut into blocks of neighbours. A block is stored as its scale, in little endian, followed
by its codes:

* `int8`, blocks of 64: a code of 8 bits, from -127 to 127, times the scale is the value. The scale is a
  float32, the block's largest magnitude over 127 (arXiv 2305.14314, equations 1 and 2, with the quantization
  constant inverted).
* `nf4`, blocks of 32: a code names one of the 16 levels of NormalFloat (QLoRA, arXiv 2305.14314, section 3
  and appendix E), which times the scale is the value; two codes make a byte, the first in its low half. The
  scale is a bfloat16, which may be negative, because the levels differ below and above zero. It is not the
  block's largest magnitude as in QLoRA, but that of some near it with the least sum of squared errors.

So a value takes 8.5 or 4.5 bits. A row's bytes follow one another, and so do rows: how a matrix is cut into
rows does not change its bytes, as long as rows are whole blocks.

Quantizing needs only quotients, products, sums in a fixed order and comparisons of float32, and dequantizing
one product. A block whose scale would be below 2^-120 has scale 0 and the codes of zero. So numbers below the
smallest normal one, 2^-126, are nearest to zero in any other block, and no code stands for one: every machine
makes the same bytes of the same values, and the same values of the same bytes, also one that counts such
numbers as zero (flush-to-zero).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from farflung.errors import WeightsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

QuantizedFormat = Literal["int8", "nf4"]
FORMATS: tuple[str, ...] = get_args(QuantizedFormat)

BLOCKS = {"int8": 64, "nf4": 32}
"""Values of a block."""

LAYOUT = 2
"""Version of the bytes that values become. Raise it with every change of them."""

SCALE_BYTES = {"int8": 4, "nf4": 2}
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

_SHARES = (0.98, 0.9, 0.82, 1.06)
"""Scales of nf4 that are tried, in parts of the largest magnitude and with both signs.

On normal values they have an error of 0.0062, beside 0.0076 of the largest magnitude alone, and 0.0060 of
twice as many."""
_SMALLEST_NORMAL = 2.0**-126
_SMALLEST_PART = 2.0**-40
"""Parts of a largest magnitude below this count as zero for the error, so that no square is below 2^-126."""
_LARGEST_BFLOAT16 = 0x7F7F

_CHUNK = 2**16
"""Values that are quantized at a time, so that temporary arrays stay in a cache."""


class NotFiniteError(WeightsError):
    """Values are infinite or not a number, so they have no codes."""


def block_bytes(form: str) -> int:
    """Bytes of one block: its scale and its codes."""
    return SCALE_BYTES[form] + BLOCKS[form] * _CODE_BITS[form] // 8


def quantized_bytes(values: int, form: str) -> int:
    """Bytes of so many values, a multiple of `BLOCKS[form]`."""
    return values // BLOCKS[form] * block_bytes(form)


def values_in(size: int, form: str) -> int:
    """How many values so many bytes hold."""
    return size // block_bytes(form) * BLOCKS[form]


def quantize(values: Floats, form: str, out: Bytes) -> None:
    """Write the blocks of `values` into `out`.

    Parameters
    ----------
    values
        float32 [n], where n is a multiple of `BLOCKS[form]`.
    out
        uint8 [quantized_bytes(n, form)], contiguous.

    Raises
    ------
    NotFiniteError
        A value is infinite or not a number.
    """
    blocks = out.reshape(-1, block_bytes(form))
    rows = values.reshape(-1, BLOCKS[form])
    quantize_chunk = _int8_chunk if form == "int8" else _nf4_chunk
    step = _CHUNK // BLOCKS[form]
    for start in range(0, len(rows), step):
        quantize_chunk(rows[start : start + step], blocks[start : start + step])


def _largest(rows: Floats) -> Floats:
    """The largest magnitude of each block, [blocks, 1]."""
    import numpy as np

    largest: Floats = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise NotFiniteError("it has values that are infinite or not a number, which have no code")
    return largest


def _int8_chunk(rows: Floats, out: Bytes) -> None:
    import numpy as np

    largest, steps = _largest(rows), np.float32(127)
    # It is the dividend that is compared: what divides to less than a normal number depends on the machine.
    scales = np.where(largest >= steps * np.float32(SMALLEST_SCALE), largest, np.float32(0)) / steps
    out[:, :4] = scales.astype("<f4").view(np.uint8)
    parts = np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0)
    np.clip(np.rint(parts, out=parts), -127, 127, out=parts)
    out[:, 4:] = parts.astype(np.int8).view(np.uint8)


def _nf4_chunk(rows: Floats, out: Bytes) -> None:
    """Try each scale, and keep the best of each block; of equally good ones, the first."""
    import numpy as np

    largest = _largest(rows)
    is_zero = largest < np.float32(2 * SMALLEST_SCALE)  # twice, since a scale may be a bit smaller
    divisors: Floats = np.where(is_zero, np.float32(1), largest)
    parts: Floats = rows / divisors
    is_small = is_zero | (np.abs(rows) < np.float32(_SMALLEST_NORMAL))
    parts[is_small | (np.abs(parts) < np.float32(_SMALLEST_PART))] = 0
    best = np.full((len(rows), 1), np.inf, np.float32)
    codes, scales = np.empty(rows.shape, np.uint8), np.zeros((len(rows), 1), np.uint16)
    for share in (sign * one for one in _SHARES for sign in (1.0, -1.0)):
        with np.errstate(over="ignore"):
            stored = _bfloat16(largest * np.float32(share))
        relative: Floats = np.where(is_zero, np.float32(share), _widened(stored) / divisors)
        tried = _nearest_levels(parts / relative)
        error = _sum_of_squares(parts - np.array(NF4_LEVELS, np.float32)[tried] * relative)
        is_better = error < best
        np.copyto(best, error, where=is_better)
        np.copyto(scales, stored, where=is_better & ~is_zero)
        np.copyto(codes, tried, where=is_better)
    out[:, :2] = scales.astype("<u2").view(np.uint8)
    out[:, 2:] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def _bfloat16(values: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16 as its bits, halfway to the even one; at most the largest finite one."""
    import numpy as np

    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    sign, size = rounded & np.uint32(0x8000), rounded & np.uint32(0x7FFF)
    return (sign | np.minimum(size, np.uint32(_LARGEST_BFLOAT16))).astype(np.uint16)


def _widened(bits: NDArray[np.uint16]) -> Floats:
    import numpy as np

    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _sum_of_squares(rows: Floats) -> Floats:
    """[blocks, 1]; added in a fixed order, because NumPy's own depends on the machine."""
    squares = rows * rows
    while (half := squares.shape[1] // 2) > 0:
        squares = squares[:, :half] + squares[:, half:]
    return squares


def _nearest_levels(parts: Floats) -> Bytes:
    """For each value the number of the nearest level; halfway between two, the lower one."""
    import numpy as np

    levels = np.array(NF4_LEVELS, np.float32)
    codes = np.zeros(parts.shape, np.uint8)
    for halfway in (levels[1:] + levels[:-1]) / np.float32(2):
        codes += parts > halfway
    return codes
