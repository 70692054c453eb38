"""Floating-point arrays as codecs see them: flat, in float32 and piece by piece, which keeps work in cache.

NumPy has no bfloat16, so an array of uint16 is one: the upper halves of float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from farflung.errors import CodecError

PIECE = 2**16
"""Elements worked on at once: 256 KiB in float32."""

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]
Float32 = NDArray[np.float32]
Bfloat16Bits = NDArray[np.uint16]

_NAMES = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16", np.dtype(np.uint16): "bfloat16"}
_QUIET_NAN, _INFINITY = 0x7FC0, 0x7F80
_MOST_FLOAT16 = np.float32(65504)


def flat(array: Floats) -> Floats:
    """The elements in row-major order, contiguous; a view where that can be.

    Raises
    ------
    CodecError
        The elements are none that a codec may change.
    """
    if array.dtype not in _NAMES:
        raise CodecError(
            f"a codec got {array.dtype}, expected float32, float16 or (as uint16) bfloat16: "
            "integers, masks and float64 travel as they are"
        )
    return cast(Floats, np.ascontiguousarray(array).reshape(-1))


def flat_target(into: Floats) -> Floats:
    """A view of the array that is decoded into, flat.

    Raises
    ------
    CodecError
        It cannot be written to, or is no row-major whole.
    """
    if into.dtype not in _NAMES or not into.flags.c_contiguous or not into.flags.writeable:
        raise CodecError("a tensor is decoded into a contiguous, writable float32, float16 or bfloat16 array")
    return into.reshape(-1)


def pieces(elements: Floats, block: int) -> Iterator[tuple[int, Float32]]:
    """Where each piece begins and its float32; the last one is filled up with zeros to whole blocks.

    `block` divides `PIECE`. A piece may be a view of `elements`, or memory that the next piece needs.
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
    """Where each piece begins and memory for its float32, in whole blocks; stored once it was filled."""
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
    """The same numbers in float32."""
    if elements.dtype == np.uint16:
        np.left_shift(elements, 16, out=into.view(np.uint32), dtype=np.uint32, casting="unsafe")
    else:
        np.copyto(into, elements)


def as_float32(elements: Floats) -> Float32:
    """The same numbers in float32: the array itself, where that is what it holds."""
    if elements.dtype == np.float32:
        return cast(Float32, elements)
    wide = np.empty(elements.shape, np.float32)
    widen(elements, wide)
    return wide


def narrow(numbers: Float32, into: Floats) -> None:
    """The nearest numbers of the other type; float32 is copied. Finite numbers stay finite in float16."""
    if into.dtype == np.uint16:
        to_bfloat16(numbers, cast(Bfloat16Bits, into))
    elif into.dtype == np.float16:
        np.copyto(into, np.clip(numbers, -_MOST_FLOAT16, _MOST_FLOAT16), casting="same_kind")
        if (infinite := np.isinf(numbers)).any():
            into[infinite] = numbers[infinite]
    else:
        np.copyto(into, numbers)


def to_bfloat16(numbers: Float32, into: Bfloat16Bits) -> bool:
    """Round to the nearest bfloat16, to even in the middle; whether all of them are finite there."""
    words = numbers.view(np.uint32)
    rounded = words >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += words
    rounded >>= 16
    np.copyto(into, rounded, casting="unsafe")
    if int((into & 0x7FFF).max(initial=0)) < _INFINITY:
        return True
    into[np.isnan(numbers)] = _QUIET_NAN  # of which the carry may have made another number
    return False


def all_finite(elements: Floats) -> bool:
    """Whether there is neither an infinity nor a NaN."""
    return all(bool(np.isfinite(piece).all()) for _, piece in pieces(elements, 1))
