"""Floating-point arrays as codecs process them: flat, in float32, in pieces that fit the cache.

NumPy has no bfloat16, so arrays of uint16 represent it: the upper halves of float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from farflung.errors import CodecError

PIECE = 2**16
"""Elements processed at once: 256 KiB in float32."""

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]
Float32 = NDArray[np.float32]
Bfloat16Bits = NDArray[np.uint16]

_NAMES = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16", np.dtype(np.uint16): "bfloat16"}
_QUIET_NAN, _INFINITY = 0x7FC0, 0x7F80
MOST_FLOAT16 = np.float32(65504)


def flat(array: Floats) -> Floats:
    """The elements in row-major order, contiguous; a view if possible.

    Raises
    ------
    CodecError
        The element type is not one that codecs handle.
    """
    if array.dtype not in _NAMES:
        raise CodecError(
            f"expected float32, float16 or (as uint16) bfloat16, found {array.dtype}: send integers, masks "
            "and float64 without a codec"
        )
    return cast(Floats, np.ascontiguousarray(array).reshape(-1))


def flat_target(into: Floats) -> Floats:
    """A flat view of the array to decode into.

    Raises
    ------
    CodecError
        It is read-only or not contiguous.
    """
    if into.dtype not in _NAMES or not into.flags.c_contiguous or not into.flags.writeable:
        raise CodecError("expected a contiguous, writable float32, float16 or bfloat16 array to decode into")
    return into.reshape(-1)


def pieces(elements: Floats, block: int) -> Iterator[tuple[int, Float32]]:
    """The start of each piece and its float32 numbers; the last piece is padded with zeros to whole blocks.

    `block` divides `PIECE`. A piece may be a view of `elements`, or memory that the next piece reuses.
    """
    scratch = np.empty(0, np.float32)
    for start in range(0, len(elements), PIECE):
        piece = elements[start : start + PIECE]
        padded = -(-len(piece) // block) * block
        if piece.dtype == np.float32 and padded == len(piece):
            yield start, cast(Float32, piece)
            continue
        if len(scratch) != padded:
            scratch = np.zeros(padded, np.float32)
        widen(piece, scratch[: len(piece)])
        yield start, scratch


def places(into: Floats, block: int) -> Iterator[tuple[int, Float32]]:
    """The start of each piece and memory for its float32 numbers, in whole blocks; stored once filled."""
    scratch = np.empty(0, np.float32)
    for start in range(0, len(into), PIECE):
        place = into[start : start + PIECE]
        padded = -(-len(place) // block) * block
        if place.dtype == np.float32 and padded == len(place):
            yield start, cast(Float32, place)
            continue
        if len(scratch) != padded:
            scratch = np.empty(padded, np.float32)
        yield start, scratch
        narrow(scratch[: len(place)], place)


def widen(elements: Floats, into: Float32) -> None:
    """Convert the numbers to float32."""
    if elements.dtype == np.uint16:
        np.left_shift(elements, 16, out=into.view(np.uint32), dtype=np.uint32, casting="unsafe")
    else:
        np.copyto(into, elements)


def as_float32(elements: Floats) -> Float32:
    """The numbers in float32; the array itself if it has that type."""
    if elements.dtype == np.float32:
        return cast(Float32, elements)
    wide = np.empty(elements.shape, np.float32)
    widen(elements, wide)
    return wide


def narrow(numbers: Float32, into: Floats) -> None:
    """Convert to the nearest numbers of the other type; float32 is copied. Finite numbers stay finite in
    float16.
    """
    if into.dtype == np.uint16:
        to_bfloat16(numbers, cast(Bfloat16Bits, into))
    elif into.dtype == np.float16:
        np.copyto(into, np.clip(numbers, -MOST_FLOAT16, MOST_FLOAT16), casting="same_kind")
        if (infinite := np.isinf(numbers)).any():
            into[infinite] = numbers[infinite]
    else:
        np.copyto(into, numbers)


def to_bfloat16(numbers: Float32, into: Bfloat16Bits) -> bool:
    """Round to the nearest bfloat16, ties to even; returns whether all are finite."""
    words = numbers.view(np.uint32)
    rounded = words >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += words
    rounded >>= 16
    np.copyto(into, rounded, casting="unsafe")
    if int((into & 0x7FFF).max(initial=0)) < _INFINITY:
        return True
    into[np.isnan(numbers)] = _QUIET_NAN  # the carry may have turned a NaN into a number
    return False


def all_finite(elements: Floats) -> bool:
    """Whether the elements contain neither infinity nor NaN."""
    return all(bool(np.isfinite(piece).all()) for _, piece in pieces(elements, 1))
