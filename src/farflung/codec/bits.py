"""Small integers and flags in as few bytes as they take; the first one in the lowest bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_WORDS = {2: np.uint32, 4: np.uint16}


def packed(codes: Bytes, bits: int) -> Bytes:
    """Contiguous `codes` of 1, 2 or 4 bits each, 8 / `bits` to a byte; their number must fill the last byte.

    `codes` of 2 and 4 bits are used up.
    """
    if bits == 1:
        return np.packbits(codes, bitorder="little")
    words = codes.view(_WORDS[bits])
    # The lowest byte of a word gathers what its other bytes say; the rest of the word is dropped.
    if bits == 2:
        words |= words >> 12
    words |= words >> (8 - bits)
    return words.astype(np.uint8)


def to_bits(positions: NDArray[np.int64], size: int) -> Bytes:
    """A bit for each of `size` places, set at `positions`."""
    flags = np.zeros(size, np.bool_)
    flags[positions] = True
    return np.packbits(flags, bitorder="little")


def from_bits(bits: Bytes, size: int) -> NDArray[np.int64]:
    """Where the first `size` bits are set, ascending."""
    return np.flatnonzero(np.unpackbits(bits, count=size, bitorder="little").view(np.bool_))


def byte_count(bits: int) -> int:
    """Bytes that hold so many bits."""
    return -(-bits // 8)
