"""Quantisers for normally distributed numbers: which levels there are, and how they stand in bytes.

The levels are Lloyd's and Max's (Max, "Quantizing for Minimum Distortion", 1960), rounded to whole numbers
up to 127, so that whoever adds up a hundred of them in float32 makes no rounding error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from farflung.codec.bits import packed
from farflung.codec.floats import Float32

_LARGEST = 127
_POSITIVE = {
    1: (0.7978846,),
    2: (0.4527800, 1.5104176),
    3: (0.2450942, 0.7560053, 1.3439093, 2.1519458),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180795, 2.0690172, 2.7326358),
}
_DISTORTION = {1: 0.3634, 2: 0.1175, 3: 0.03455, 4: 0.009501}
_PLANES = {1: (1,), 2: (2,), 3: (1, 2), 4: (4,)}
"""Bits of a code in each plane of bytes; where there are two, their levels are multiplied."""
_FINE = {1: 15.8, 2: 15.8, 3: 14.7, 4: 14.3}
"""By these numbers become bytes: of 64, none exceeds 8 deviations, and these cost the least error."""
_MAGIC = np.float32(1.5 * 2**23 + 128)


class Quantiser:
    """Levels as whole numbers, symmetrical about zero; `unit` of them are one standard deviation."""

    def __init__(self, bits: int) -> None:
        self.unit = _LARGEST / _POSITIVE[bits][-1]
        positive = np.rint(np.array(_POSITIVE[bits]) * self.unit)
        self.smallest, self.largest = float(positive[0]), float(positive[-1])
        self.distortion = _DISTORTION[bits]
        self.fine = np.float32(_FINE[bits])
        self._widths = _PLANES[bits]
        plane_levels = _levels(positive, len(self._widths))
        self._tables = [
            _byte_table(levels, width) for levels, width in zip(plane_levels, self._widths, strict=True)
        ]
        numbers = (np.arange(256) - 128) * (self.unit / float(self.fine))
        self._codes = _fine_codes(numbers, plane_levels)
        self._chosen = _coded_levels(self._codes, plane_levels)

    def planes(self, elements: int) -> list[NDArray[np.uint8]]:
        """Memory for the codes of so many elements, a multiple of 8."""
        return [np.empty(elements * width // 8, np.uint8) for width in self._widths]

    def write(self, numbers: Float32, planes: Sequence[NDArray[np.uint8]], start: int) -> None:
        """Store the codes of `numbers`, the tensor's from element `start` on.

        `numbers` are flat, `fine` times standard deviations and below 127. They become the levels chosen.
        """
        # A number becomes a byte first, and a table makes that a code.
        numbers += _MAGIC
        fine = bytearray(numbers.view(np.uint32).astype(np.uint8))
        for codes, plane, width in zip(self._codes, planes, self._widths, strict=True):
            coded = np.frombuffer(fine.translate(codes), np.uint8)
            at = start * width // 8
            plane[at : at + len(fine) * width // 8] = packed(coded, width)
        np.copyto(numbers, np.frombuffer(fine.translate(self._chosen), np.int8))

    def read(self, planes: Sequence[NDArray[np.uint8]], start: int, into: Float32) -> None:
        """Fill `into`, flat, with the levels of the elements from `start` on."""
        coded = [
            plane[start * width // 8 : (start + len(into)) * width // 8]
            for plane, width in zip(planes, self._widths, strict=True)
        ]
        _look_up(self._tables[0], coded[0], into)
        for table, codes in zip(self._tables[1:], coded[1:], strict=True):
            factors = np.empty_like(into)
            _look_up(table, codes, factors)
            into *= factors


@cache
def quantiser(bits: int) -> Quantiser:
    """The quantiser of so many bits, made once."""
    return Quantiser(bits)


def _levels(positive: NDArray[np.float64], planes: int) -> list[NDArray[np.float64]]:
    """The levels that a code stands for, plane by plane: all of them, or signs and magnitudes."""
    if planes == 1:
        return [np.concatenate((-positive[::-1], positive))]
    return [np.array([-1.0, 1.0]), positive]


def _fine_codes(numbers: NDArray[np.floating], plane_levels: Sequence[NDArray[np.float64]]) -> list[bytes]:
    """For each plane the code of every byte, which stands for one of `numbers`."""
    if len(plane_levels) == 1:
        return [_nearest(numbers, plane_levels[0])]
    signs, magnitudes = plane_levels
    return [_nearest(np.sign(numbers + 0.5), signs), _nearest(np.abs(numbers), magnitudes)]


def _coded_levels(codes: Sequence[bytes], plane_levels: Sequence[NDArray[np.float64]]) -> bytes:
    """For every byte the level that its codes stand for, as int8."""
    chosen = np.ones(256)
    for coded, levels in zip(codes, plane_levels, strict=True):
        chosen *= levels[np.frombuffer(coded, np.uint8)]
    return chosen.astype(np.int8).tobytes()


def _nearest(numbers: NDArray[np.floating], levels: NDArray[np.float64]) -> bytes:
    return np.abs(numbers[:, None] - levels).argmin(axis=1).astype(np.uint8).tobytes()


def _byte_table(levels: NDArray[np.float64], width: int) -> Float32:
    """(256, 8 / width): the levels of all codes in a byte."""
    shifts = np.arange(0, 8, width)
    return levels[(np.arange(256)[:, None] >> shifts) & (2**width - 1)].astype(np.float32)


def _look_up(table: Float32, codes: NDArray[np.uint8], into: Float32) -> None:
    np.take(table, codes, axis=0, out=into.reshape(-1, table.shape[1]), mode="clip")
