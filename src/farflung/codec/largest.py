"""The largest magnitudes of a tensor, exactly, and most of the time without looking at more than they need.

A sample says above which magnitude a few more lie than are wanted; only these are looked at closely. The
answer is that of a full sort, with the first of equal ones, whatever the sample said: it decides only how
long it takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.codec.floats import PIECE, Floats

Positions = NDArray[np.int64]
Keys = NDArray[np.unsignedinteger]

_SAMPLE = 2**15
_DEVIATIONS = 4
"""So many standard deviations more than wanted are expected above the sampled magnitude."""


def largest(elements: Floats, count: int) -> Positions:
    """Where the `count` largest magnitudes are, ascending; never zeros. NaN exceeds infinity."""
    if count >= len(elements):
        return np.flatnonzero(keys(elements))
    positions, magnitudes = _above(elements, _floor(elements, count))
    if len(positions) < count:
        positions, magnitudes = _above(elements, 1)
    if len(positions) <= count:
        return positions
    return positions[_first_largest(magnitudes, count)]


def largest_in_rows(elements: Floats, width: int, count: int) -> Positions:
    """The same in each row of `width` elements, `count` at most of each."""
    if count >= width:
        return np.flatnonzero(keys(elements))
    found = []
    rows = max(1, PIECE // width)
    for start in range(0, len(elements), rows * width):
        magnitudes = keys(elements[start : start + rows * width]).reshape(-1, width)
        found.append(np.flatnonzero(_rows_first_largest(magnitudes, count)) + start)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def keys(elements: Floats) -> Keys:
    """Unsigned integers in the order of the magnitudes."""
    if elements.dtype == np.float32:
        return elements.view(np.uint32) & np.uint32(0x7FFFFFFF)
    return elements.view(np.uint16) & np.uint16(0x7FFF)


def _floor(elements: Floats, count: int) -> int:
    """A key that `count` elements reach, and few more."""
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
    """Where the keys are at least `floor`, and these keys."""
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
    """Which are the `count` largest of more; of equal ones the first."""
    least = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    kept = magnitudes > least
    kept[np.flatnonzero(magnitudes == least)[: count - np.count_nonzero(kept)]] = True
    return kept


def _rows_first_largest(magnitudes: Keys, count: int) -> NDArray[np.bool_]:
    width = magnitudes.shape[1]
    least = np.partition(magnitudes, width - count, axis=1)[:, width - count, None]
    kept = magnitudes >= np.maximum(least, 1)
    crowded = np.flatnonzero(np.count_nonzero(kept, axis=1) > count)
    for row in crowded:
        kept[row] = _first_largest(magnitudes[row], count)
    return kept
