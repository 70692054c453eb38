"""Which elements of a tensor were sent, remembered from its forward pass to its backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.codec.bits import from_bits, to_bits

_BITS_A_POSITION = 32


@dataclass(frozen=True, eq=False)
class Mask:
    """Some of `elements` elements, as positions or as a bit for each, whichever takes less memory."""

    elements: int
    count: int
    _kept: NDArray[np.uint8] | NDArray[np.uint32]

    @staticmethod
    def of(positions: NDArray[np.int64], elements: int) -> Mask:
        """The mask with ascending `positions` (row major) of a tensor of `elements`."""
        if len(positions) * _BITS_A_POSITION <= elements:
            return Mask(elements, len(positions), positions.astype(np.uint32))
        return Mask(elements, len(positions), to_bits(positions, elements))

    @property
    def positions(self) -> NDArray[np.int64]:
        """Ascending."""
        if self.count * _BITS_A_POSITION <= self.elements:
            return self._kept.astype(np.int64)
        return from_bits(self._kept.astype(np.uint8, copy=False), self.elements)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self._kept.nbytes
