"""The elements of largest magnitude with their positions (`TopK`), and gradients at the same positions
(`Masked`).

A sample estimates a magnitude that slightly more elements exceed than are wanted; only those are examined
closely. The result is always that of a full sort, with the first of equal elements; the sample only affects
how long it takes.

`Masked` sends a gradient at the elements of its activation that were sent, which is the exact gradient of the
network with the mask in it. It sends no positions, because both ends have the mask from `TopK`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.context import Context, Mask
from farflung.codec.encoding import indices
from farflung.codec.encoding.floats import PIECE, Floats, all_finite, as_float32, narrow
from farflung.codec.encoding.payload import Reader
from farflung.codec.families.blocked import Blocked
from farflung.codec.families.dense import Bfloat16
from farflung.errors import CodecError

Positions = NDArray[np.int64]
Keys = NDArray[np.unsignedinteger]

_SAMPLE = 2**15
_DEVIATIONS = 4
"""The sampled magnitude is chosen so that this many standard deviations more elements than wanted are
expected above it.
"""


def largest(elements: Floats, count: int) -> Positions:
    """The positions of the `count` largest magnitudes, ascending; never of zeros. NaN exceeds infinity."""
    if count >= len(elements):
        return np.flatnonzero(keys(elements))
    positions, magnitudes = _above(elements, _floor(elements, count))
    if len(positions) < count:
        positions, magnitudes = _above(elements, 1)
    if len(positions) <= count:
        return positions
    return positions[_first_largest(magnitudes, count)]


def largest_in_rows(elements: Floats, width: int, count: int) -> Positions:
    """The same in each row of `width` elements, with at most `count` per row."""
    if count >= width:
        return np.flatnonzero(keys(elements))
    found = []
    rows = max(1, PIECE // width)
    for start in range(0, len(elements), rows * width):
        magnitudes = keys(elements[start : start + rows * width]).reshape(-1, width)
        found.append(np.flatnonzero(_rows_first_largest(magnitudes, count)) + start)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def keys(elements: Floats) -> Keys:
    """Unsigned integers that order like the magnitudes."""
    if elements.dtype == np.float32:
        return elements.view(np.uint32) & np.uint32(0x7FFFFFFF)
    return elements.view(np.uint16) & np.uint16(0x7FFF)


def _floor(elements: Floats, count: int) -> int:
    """A key that at least `count` elements reach, and few more."""
    if len(elements) <= 2 * _SAMPLE:
        return 1
    random = np.random.Generator(np.random.PCG64(count))
    sample = keys(elements[random.integers(0, len(elements), _SAMPLE)])
    expected = _SAMPLE * count / len(elements)
    rank = int(expected + _DEVIATIONS * expected**0.5) + 1
    if rank >= _SAMPLE:
        return 1
    return max(1, int(np.partition(sample, _SAMPLE - rank)[_SAMPLE - rank]))


def _above(elements: Floats, floor: int) -> tuple[Positions, Keys]:
    """The positions of keys of at least `floor`, and these keys."""
    positions: list[Positions] = []
    magnitudes: list[Keys] = []
    for start in range(0, len(elements), PIECE):
        piece = keys(elements[start : start + PIECE])
        found = np.flatnonzero(piece >= piece.dtype.type(floor))
        magnitudes.append(piece[found])
        found += start
        positions.append(found)
    return np.concatenate(positions), np.concatenate(magnitudes)


def _first_largest(magnitudes: Keys, count: int) -> NDArray[np.bool_]:
    """Flags of the `count` largest; the first ones among equals."""
    least = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    selected = magnitudes > least
    selected[np.flatnonzero(magnitudes == least)[: count - np.count_nonzero(selected)]] = True
    return selected


def _rows_first_largest(magnitudes: Keys, count: int) -> NDArray[np.bool_]:
    width = magnitudes.shape[1]
    least = np.partition(magnitudes, width - count, axis=1)[:, width - count, None]
    selected = magnitudes >= np.maximum(least, 1)
    crowded = np.flatnonzero(np.count_nonzero(selected, axis=1) > count)
    for row in crowded:
        selected[row] = _first_largest(magnitudes[row], count)
    return selected


Values = Bfloat16 | Blocked


class TopK(Lossy, frozen=True, tag="topk"):
    """The largest elements, a `share` of all; the others are zero at the receiver.

    Attributes
    ----------
    share
        Of the tensor, or of each row, rounded up to whole elements.
    rows
        Select the share in each row: elements that differ only in the last dimension.
    values
        The codec for the selected elements.
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
        # NaN and infinity are the largest, so if there are any, some were selected.
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
    """Decode a value for each position from the rest of the payload, and set everything else to zero."""
    selected = np.empty(len(positions), np.float32)
    values.decode(reader.rest(), selected, context)
    elements.fill(0)
    if elements.dtype == np.float32:
        elements[positions] = selected
        return
    narrowed = np.empty(len(selected), elements.dtype)
    narrow(selected, narrowed)
    elements[positions] = narrowed


def index_bits(share: float) -> float:
    """Bits for the position of one selected element at random places: coded gaps, or a bitmap."""
    if share >= 1:
        return 1.0
    widths = range(32)
    coded = min(width + 1 / (1 - (1 - share) ** (2**width)) for width in widths)
    return min(coded, 1 / share)


def _left_out(share: float) -> float:
    """The share of a normal distribution's variance in its smallest magnitudes."""
    if share >= 1:
        return 0.0
    edge = NormalDist().inv_cdf(1 - share / 2)
    return 1 - share - 2 * edge * NormalDist().pdf(edge)


class Masked(Lossy, frozen=True, tag="masked"):
    """The elements at `context.mask`; all of them without a mask, since all of the activation was sent.

    `share` is that of the corresponding `TopK`, for `declared`.
    """

    share: float = 1.0
    values: Values = Blocked(4, stochastic=True)

    def declared(self) -> Declared:
        """See `Codec`; errors are those of the gradient in the masked network."""
        inner = self.values.declared()
        seconds = 0.45 + 0.6 * self.share, 0.31 + 0.5 * self.share
        return Declared(
            self.share * inner.bits, inner.worst_error, inner.usual_error, 1 / seconds[0], 1 / seconds[1]
        )

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        # Hidden elements may be infinite too, and a run that diverged must be noticed.
        if not all_finite(elements):
            return None
        selected = elements[mask_positions(context.mask, len(elements))]
        values = self.values.encode(as_float32(selected), context)
        return None if values.exact == "not finite" else Encoded(values.parts, context.mask)

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        positions = mask_positions(context.mask, len(elements))
        scatter(self.values, reader, positions, elements, context)
        return context.mask


def mask_positions(mask: Mask | None, elements: int) -> Positions:
    """The positions of the mask of a tensor of that many elements; all without a mask.

    Raises
    ------
    CodecError
        The mask is of another tensor.
    """
    if mask is None:
        return np.arange(elements)
    if mask.elements != elements:
        raise CodecError(
            f"a gradient of {elements} elements has the mask of an activation of {mask.elements}: "
            "both must be of one value and microbatch"
        )
    return mask.positions
