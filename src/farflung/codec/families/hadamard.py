"""1 to 4 bits per element of a randomly rotated tensor: DRIVE and EDEN for blocks of 64.

Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation" (NeurIPS 2021) and "EDEN:
Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning" (ICML 2022). Random
signs and a Hadamard transform make the elements of a block nearly normally distributed, so one quantiser fits
all. The scale is chosen such that the mean over all signs is the tensor itself.

That is proven for uniformly random rotations. Signs and one transform come close: over 1600 draws there was
no bias at 3 and 4 bits; at 2 bits it was 1 % of a block with the tails of a Laplace distribution and 3 % if
few elements dominate (cubes of normal numbers), at 1 bit 2 % and 16 %.

The levels are Lloyd's and Max's (Max, "Quantizing for Minimum Distortion", 1960) for normally distributed
numbers, rounded to integers up to 127, so that adding up a hundred of them in float32 is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.context import Context, Mask
from farflung.codec.encoding.floats import PIECE, Bfloat16Bits, Float32, Floats, pieces, places, to_bfloat16
from farflung.codec.encoding.noise import Noise
from farflung.codec.encoding.payload import Part, Reader, packed, read_scales

_LARGEST = 127
_POSITIVE = {
    1: (0.7978846,),
    2: (0.4527800, 1.5104176),
    3: (0.2450942, 0.7560053, 1.3439093, 2.1519458),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180795, 2.0690172, 2.7326358),
}
_DISTORTION = {1: 0.3634, 2: 0.1175, 3: 0.03455, 4: 0.009501}
_PLANES = {1: (1,), 2: (2,), 3: (1, 2), 4: (4,)}
"""Bits of a code in each plane of bytes; with two planes, their levels are multiplied."""
_FINE = {1: 15.8, 2: 15.8, 3: 14.7, 4: 14.3}
"""Factors that turn numbers into bytes: within 64 elements none exceeds 8 deviations, and these factors give
the least error.
"""
MAGIC = np.float32(1.5 * 2**23 + 128)


class Quantiser:
    """Levels as integers, symmetrical about zero; `unit` of them are one standard deviation.

    Attributes
    ----------
    fine
        Factor that turns standard deviations into bytes.
    widths
        Bits of a code in each plane.
    tables
        For each plane, (256, 8 / width): the levels of all codes in a byte.
    codes
        For each plane, the code of every byte.
    chosen
        For every byte, the level of its codes, as int8.
    """

    def __init__(self, bits: int) -> None:
        self.unit = _LARGEST / _POSITIVE[bits][-1]
        positive = np.rint(np.array(_POSITIVE[bits]) * self.unit)
        self.smallest, self.largest = float(positive[0]), float(positive[-1])
        self.distortion = _DISTORTION[bits]
        self.fine = np.float32(_FINE[bits])
        self.widths = _PLANES[bits]
        plane_levels = _levels(positive, len(self.widths))
        self.tables = [
            _byte_table(levels, width) for levels, width in zip(plane_levels, self.widths, strict=True)
        ]
        numbers = (np.arange(256) - 128) * (self.unit / float(self.fine))
        self.codes = _fine_codes(numbers, plane_levels)
        self.chosen = _coded_levels(self.codes, plane_levels)

    def planes(self, elements: int) -> list[NDArray[np.uint8]]:
        """Memory for the codes of this many elements, a multiple of 8."""
        return [np.empty(elements * width // 8, np.uint8) for width in self.widths]

    def write(self, numbers: Float32, planes: Sequence[NDArray[np.uint8]], start: int) -> None:
        """Store the codes of `numbers`, which begin at element `start` of the tensor.

        `numbers` are flat, `fine` times standard deviations and below 127. They are replaced by their levels.
        """
        # A number is first converted to a byte, and then by a table to a code.
        numbers += MAGIC
        fine = bytearray(numbers.view(np.uint32).astype(np.uint8))
        for codes, plane, width in zip(self.codes, planes, self.widths, strict=True):
            coded = np.frombuffer(fine.translate(codes), np.uint8)
            at = start * width // 8
            plane[at : at + len(fine) * width // 8] = packed(coded, width)
        np.copyto(numbers, np.frombuffer(fine.translate(self.chosen), np.int8))

    def read(self, planes: Sequence[NDArray[np.uint8]], start: int, into: Float32) -> None:
        """Fill `into`, flat, with the levels of the elements from `start`."""
        coded = [
            plane[start * width // 8 : (start + len(into)) * width // 8]
            for plane, width in zip(planes, self.widths, strict=True)
        ]
        _look_up(self.tables[0], coded[0], into)
        for table, codes in zip(self.tables[1:], coded[1:], strict=True):
            factors = np.empty_like(into)
            _look_up(table, codes, factors)
            into *= factors


@cache
def quantiser(bits: int) -> Quantiser:
    """The quantiser for this many bits, created once."""
    return Quantiser(bits)


def _levels(positive: NDArray[np.float64], planes: int) -> list[NDArray[np.float64]]:
    """The levels of the codes, by plane: all of them, or signs and magnitudes."""
    if planes == 1:
        return [np.concatenate((-positive[::-1], positive))]
    return [np.array([-1.0, 1.0]), positive]


def _fine_codes(numbers: NDArray[np.floating], plane_levels: Sequence[NDArray[np.float64]]) -> list[bytes]:
    """For each plane, the code of every byte, which represents one of `numbers`."""
    if len(plane_levels) == 1:
        return [_nearest(numbers, plane_levels[0])]
    signs, magnitudes = plane_levels
    return [_nearest(np.sign(numbers + 0.5), signs), _nearest(np.abs(numbers), magnitudes)]


def _coded_levels(codes: Sequence[bytes], plane_levels: Sequence[NDArray[np.float64]]) -> bytes:
    """For every byte, the level of its codes, as int8."""
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


BLOCK = 64
_FIXED_SEED = 1
_GBPS = {1: (0.65, 1.55), 2: (0.7, 1.35), 3: (0.6, 1.1), 4: (0.7, 1.2)}
LEAST = np.float32(1e-37)


class Hadamard(Lossy, frozen=True, tag="hadamard"):
    """Blocks of 64, rotated, with a bfloat16 scale and `bits` per element.

    Attributes
    ----------
    fresh
        Draw new signs for each context. Gradients need that: with fixed signs the same error occurs at
        every step and adds up.
    unbiased
        Use the scale with which the mean over all signs is the tensor itself; else the one with the least
        error. Use the former for gradients, the latter for activations.
    """

    bits: Literal[1, 2, 3, 4] = 4
    fresh: bool = True
    unbiased: bool = True

    def declared(self) -> Declared:
        """See `Codec`."""
        levels = quantiser(self.bits)
        spread = BLOCK * (levels.largest / levels.smallest) ** 2
        worst = 1.25 * spread**0.5 if self.unbiased else 1.01
        usual = (levels.distortion / (1 - levels.distortion) if self.unbiased else levels.distortion) ** 0.5
        return Declared(self.bits + 16 / BLOCK, worst, usual, *_GBPS[self.bits])

    def noise(self, context: Context, elements: int) -> Noise:
        """The random signs of a tensor of `elements`, a multiple of 64."""
        return Noise(context.seed if self.fresh else _FIXED_SEED, elements)

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        levels, blocks = quantiser(self.bits), -(-len(elements) // BLOCK)
        planes = levels.planes(blocks * BLOCK)
        noise = self.noise(context, blocks * BLOCK)
        scratch = np.empty((2, min(PIECE, blocks * BLOCK)), np.float32)
        squares, products, lengths = np.empty((3, blocks), np.float32)
        for start, piece in pieces(elements, BLOCK):
            rotated, numbers = scratch[:, : len(piece)]
            np.multiply(piece, noise.signs(len(piece)), out=numbers)
            np.matmul(_rows(numbers), _rotation(), out=_rows(rotated))
            at = slice(start // BLOCK, (start + len(piece)) // BLOCK)
            _products(rotated, rotated, squares[at])
            inverses = levels.fine * BLOCK**0.5 / np.sqrt(np.maximum(squares[at], LEAST))
            np.multiply(_rows(rotated), inverses[:, None], out=_rows(numbers))
            levels.write(numbers, planes, start)
            _products(rotated, numbers, products[at])
            if not self.unbiased:
                _products(numbers, numbers, lengths[at])
        scales = _scales(squares, products, None if self.unbiased else lengths)
        return None if scales is None else Encoded((Part.of(scales), *map(Part.of, planes)))

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        levels, blocks = quantiser(self.bits), -(-len(elements) // BLOCK)
        scales = read_scales(reader, blocks)
        planes = [reader.take(np.uint8, len(plane)) for plane in levels.planes(blocks * BLOCK)]
        noise = self.noise(context, blocks * BLOCK)
        scratch = np.empty(min(PIECE, blocks * BLOCK), np.float32)
        for start, place in places(elements, BLOCK):
            numbers = scratch[: len(place)]
            levels.read(planes, start, numbers)
            # Levels are integers, so these sums are exact in any order, on any machine.
            np.matmul(_rows(numbers), _rotation(), out=_rows(place))
            _rows(place)[:] *= scales[start // BLOCK : (start + len(place)) // BLOCK, None]
            place *= noise.signs(len(place))
        return None


def _rows(numbers: Float32) -> Float32:
    return numbers.reshape(-1, BLOCK)


def _products(one: Float32, other: Float32, into: Float32) -> None:
    """Scalar products, block by block."""
    np.einsum("ij,ij->i", _rows(one), _rows(other), out=into)


def _scales(squares: Float32, products: Float32, lengths: Float32 | None) -> Bfloat16Bits | None:
    """The factors of the levels of each block, in bfloat16; None if a block is too large to be squared.

    `squares` are those of the rotated block, `products` those with its levels, and `lengths` the squares of
    the levels. With `lengths` the scale is the one with the least error, otherwise the unbiased one.
    """
    if not np.isfinite(squares).all():
        return None
    # Blocks too small to be squared count as zero.
    squares[squares < LEAST] = 0
    if lengths is None:
        scales = squares / (np.maximum(products, LEAST) * BLOCK)
    else:
        scales = products / (lengths * BLOCK)
    stored = np.empty(len(scales), np.uint16)
    return stored if to_bfloat16(scales, stored) else None


@cache
def _rotation() -> Float32:
    """The Hadamard matrix of Sylvester's construction: symmetric, and its square is 64 times the identity."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < BLOCK:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.ascontiguousarray(matrix)
