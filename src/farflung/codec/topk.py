"""The elements of largest magnitude and where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated

import numpy as np
from msgspec import Meta

from farflung.codec import indices
from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.blocked import Blocked
from farflung.codec.context import Context
from farflung.codec.dense import Bfloat16
from farflung.codec.floats import Floats, as_float32, narrow
from farflung.codec.largest import largest, largest_in_rows
from farflung.codec.mask import Mask
from farflung.codec.payload import Reader

Values = Bfloat16 | Blocked


class TopK(Lossy, frozen=True, tag="topk"):
    """A `share` of the elements, the largest; all others are zero at the other end.

    Attributes
    ----------
    share
        Of the tensor, or of each row, rounded up to whole elements.
    rows
        Take the share of each row: of the elements with the same place in all dimensions but the last.
    values
        How what is kept is written.
    """

    share: Annotated[float, Meta(gt=0, le=1)]
    rows: bool = False
    values: Values = Bfloat16()

    def declared(self) -> Declared:
        """See `Codec`."""
        inner = self.values.declared()
        bits = self.share * (inner.bits + index_bits(self.share))
        worst = (
            math.hypot(math.sqrt(1 - self.share), inner.worst_error) if self.share < 1 else inner.worst_error
        )
        usual = math.hypot(_left_out(self.share) ** 0.5, inner.usual_error)
        seconds = (1.25 if self.rows else 0.4) + 5.8 * self.share, 0.06 + 3.9 * self.share
        return Declared(bits, worst, usual, 1 / seconds[0], 1 / seconds[1])

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        positions = self._choose(elements, shape)
        # NaN and infinity are the largest of all, so if there are any, some were chosen.
        values = self.values.encode(as_float32(elements[positions]), context)
        if values.exact == "not finite":
            return None
        parts = indices.write(positions, len(elements))
        return Encoded((*parts, *values.parts), Mask.of(positions, len(elements)))

    def _choose(self, elements: Floats, shape: Sequence[int]) -> np.ndarray:
        if not self.rows or len(shape) < 2:
            return largest(elements, self._count(len(elements)))
        return largest_in_rows(elements, shape[-1], self._count(shape[-1]))

    def _count(self, elements: int) -> int:
        return math.ceil(self.share * elements)

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        positions = indices.read(reader, len(elements))
        mask = Mask.of(positions, len(elements))
        scatter(self.values, reader, positions, elements, context)
        return mask


def scatter(
    values: Values, reader: Reader, positions: np.ndarray, elements: Floats, context: Context
) -> None:
    """Read one value for each position from all that is left, and zero everything else."""
    kept = np.empty(len(positions), np.float32)
    values.decode(reader.rest(), kept, context)
    elements.fill(0)
    if elements.dtype == np.float32:
        elements[positions] = kept
        return
    narrowed = np.empty(len(kept), elements.dtype)
    narrow(kept, narrowed)
    elements[positions] = narrowed


def index_bits(share: float) -> float:
    """Bits that say where one kept element is, at random places: coded gaps, or a bit for every place."""
    if share >= 1:
        return 1.0
    widths = range(32)
    coded = min(width + 1 / (1 - (1 - share) ** (2**width)) for width in widths)
    return min(coded, 1 / share)


def _left_out(share: float) -> float:
    """The share of a normal distribution's variance that lies in its smallest magnitudes."""
    if share >= 1:
        return 0.0
    edge = NormalDist().inv_cdf(1 - share / 2)
    return 1 - share - 2 * edge * NormalDist().pdf(edge)
