"""Random signs and roundings from a seed: one table per tensor, and a window of it per piece.

Drawing fresh random numbers for whole tensors would cost more than everything else that a codec does. A
window at a random place of a table gives every element a fair draw of its own. Pieces share draws, which does
not affect any mean over the elements of one piece, steps or microbatches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.floats import PIECE, Float32

_STEPS = 2**16
_WINDOWS = 2**14
"""Number of places in a table at which a window may begin."""


class Windows(NamedTuple):
    """All draws of a tensor: those of its n-th piece begin at `starts[n]` of the table."""

    table: Float32
    starts: NDArray[np.int64]


class Noise:
    """Random draws for the pieces of one tensor; equal seeds give equal draws on every machine."""

    def __init__(self, seed: int, elements: int) -> None:
        # NumPy guarantees that PCG64's integer stream never changes.
        self._random = np.random.PCG64(seed)
        # One piece needs no windows, and tensors can be as small as a gradient's selected elements.
        self._size = elements if elements <= PIECE else PIECE + _WINDOWS
        self._table: Float32 | None = None

    def signs(self, count: int) -> Float32:
        """`count` values, each 1 or -1."""
        table = self._sign_table()
        return table[self._start(count) :][:count]

    def dither(self, count: int) -> Float32:
        """`count` numbers uniform between -1/2 and 1/2, both excluded, in steps of 2^-16."""
        table = self._dither_table()
        return table[self._start(count) :][:count]

    def sign_windows(self, elements: int) -> Windows:
        """What `signs` returns for the pieces of a tensor of `elements`, all at once."""
        return Windows(self._sign_table(), self._starts(elements))

    def dither_windows(self, elements: int) -> Windows:
        """What `dither` returns for the pieces of a tensor of `elements`, all at once."""
        return Windows(self._dither_table(), self._starts(elements))

    def _sign_table(self) -> Float32:
        if self._table is None:
            bits = np.unpackbits(self._raw(64).view(np.uint8), count=self._size, bitorder="little")
            self._table = bits.astype(np.float32)
            self._table *= 2
            self._table -= 1
        return self._table

    def _dither_table(self) -> Float32:
        if self._table is None:
            self._table = self._raw(4).view(np.uint16)[: self._size].astype(np.float32)
            self._table += np.float32(0.5) - _STEPS // 2
            self._table /= _STEPS
        return self._table

    def _raw(self, draws: int) -> NDArray[np.uint64]:
        """Random bits for a table, where each word makes `draws` draws."""
        return np.asarray(self._random.random_raw(-(-self._size // draws)), np.uint64)

    def _starts(self, elements: int) -> NDArray[np.int64]:
        sizes = (min(PIECE, elements - start) for start in range(0, elements, PIECE))
        return np.array([self._start(size) for size in sizes], np.int64)

    def _start(self, count: int) -> int:
        places = self._size - count + 1
        return int(self._random.random_raw()) % places if places > 1 else 0
