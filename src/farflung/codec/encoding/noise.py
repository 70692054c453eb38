"""Random signs and roundings from a seed: a table once for each tensor, and a window of it for each piece.

Whole tensors of fresh random numbers cost more than all else that a codec does. A window that begins
anywhere in a table gives every element a fair draw of its own; draws are shared between pieces, which no
mean over elements of one piece, steps or microbatches notices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.floats import PIECE, Float32

_STEPS = 2**16
_WINDOWS = 2**14
"""So many places in a table there are to begin at."""


class Noise:
    """Draws for the pieces of one tensor; two with the same seed give the same ones on every machine."""

    def __init__(self, seed: int, elements: int) -> None:
        # PCG64 and the integers it gives are covered by NumPy's promise that streams stay as they are.
        self._random = np.random.PCG64(seed)
        # One piece needs no windows, and tensors are as small as a gradient's kept elements.
        self._size = elements if elements <= PIECE else PIECE + _WINDOWS
        self._table: Float32 | None = None

    def signs(self, count: int) -> Float32:
        """`count` times 1 or -1."""
        if self._table is None:
            bits = np.unpackbits(self._raw(64).view(np.uint8), count=self._size, bitorder="little")
            self._table = bits.astype(np.float32)
            self._table *= 2
            self._table -= 1
        return self._window(self._table, count)

    def dither(self, count: int) -> Float32:
        """`count` numbers evenly between -1/2 and 1/2, both excluded, in steps of 2^-16."""
        if self._table is None:
            self._table = self._raw(4).view(np.uint16)[: self._size].astype(np.float32)
            self._table += np.float32(0.5) - _STEPS // 2
            self._table /= _STEPS
        return self._window(self._table, count)

    def _raw(self, draws: int) -> NDArray[np.uint64]:
        """Bits for a table, where each word makes so many draws."""
        return np.asarray(self._random.random_raw(-(-self._size // draws)), np.uint64)

    def _window(self, table: Float32, count: int) -> Float32:
        places = len(table) - count + 1
        at = int(self._random.random_raw()) % places if places > 1 else 0
        return table[at : at + count]
