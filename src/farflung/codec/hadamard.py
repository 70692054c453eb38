"""1 to 4 bits of a tensor that was rotated at random: DRIVE and EDEN for blocks of 64.

Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation" (NeurIPS 2021) and "EDEN:
Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning" (ICML 2022). Random
signs and a Hadamard transform make the elements of a block nearly normally distributed, so one quantiser
fits all; the scale is chosen such that the mean over all signs is the tensor itself.

That is proven for rotations drawn from all there are. Signs and one transform come close: over 1600 draws no
bias was seen at 3 and 4 bits; at 2 bits 1 % of a block with the tails of a Laplace distribution and 3 % where
few elements outweigh the others (cubes of normal numbers), at 1 bit 2 % and 16 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.context import Context
from farflung.codec.floats import PIECE, Float32, Floats, pieces, places, to_bfloat16
from farflung.codec.levels import FINE, Quantiser, quantiser
from farflung.codec.mask import Mask
from farflung.codec.noise import Noise
from farflung.codec.payload import Part, Reader
from farflung.codec.scales import read_scales

BLOCK = 64
_FIXED_SEED = 1
_LEAST = np.float32(1e-37)


class Hadamard(Lossy, frozen=True, tag="hadamard"):
    """Blocks of 64, rotated, with a bfloat16 scale and `bits` for each element.

    Attributes
    ----------
    fresh
        Draw new signs for each context. Gradients need that: under fixed signs the same error is made at
        every step and adds up.
    unbiased
        A scale with which the mean over all signs is the tensor itself; else the one with the least error.
        Gradients want the former, activations the latter.
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
        return Declared(self.bits + 16 / BLOCK, worst, usual, 1.0, 1.0)

    def _noise(self, context: Context, elements: int) -> Noise:
        return Noise(context.seed if self.fresh else _FIXED_SEED, elements)

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        levels, blocks = quantiser(self.bits), -(-len(elements) // BLOCK)
        planes = levels.planes(blocks * BLOCK)
        scales = np.empty(blocks, np.float32)
        noise = self._noise(context, blocks * BLOCK)
        scratch = np.empty((2, min(PIECE, blocks * BLOCK)), np.float32)
        for start, piece in pieces(elements, BLOCK):
            rotated, numbers = scratch[:, : len(piece)]
            np.multiply(piece, noise.signs(len(piece)), out=numbers)
            np.matmul(_rows(numbers), _rotation(), out=_rows(rotated))
            found = self._quantise(rotated, numbers, levels, planes, start)
            if found is None:
                return None
            scales[start // BLOCK : (start + len(piece)) // BLOCK] = found
        stored = np.empty(blocks, np.uint16)
        return Encoded((Part.of(stored), *map(Part.of, planes))) if to_bfloat16(scales, stored) else None

    def _quantise(
        self,
        rotated: Float32,
        numbers: Float32,
        levels: Quantiser,
        planes: Sequence[NDArray[np.uint8]],
        start: int,
    ) -> Float32 | None:
        """Store the codes of rotated blocks; returns their scales, or None if they are too large.

        `numbers` is scratch.
        """
        squares = _products(rotated, rotated)
        if not np.isfinite(squares).all():
            return None
        # What is too small to be squared is taken for zero, and so is its scale then.
        squares[squares < _LEAST] = 0
        deviations = np.sqrt(np.maximum(squares, _LEAST) / BLOCK)
        np.multiply(_rows(rotated), (FINE / deviations)[:, None], out=_rows(numbers))
        levels.write(numbers, planes, start)
        levels.read(planes, start, numbers)
        products = _products(rotated, numbers)
        if self.unbiased:
            return squares / (np.maximum(products, _LEAST) * BLOCK)
        return products / (_products(numbers, numbers) * BLOCK)

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        levels, blocks = quantiser(self.bits), -(-len(elements) // BLOCK)
        scales = read_scales(reader, blocks)
        planes = [reader.take(np.uint8, len(plane)) for plane in levels.planes(blocks * BLOCK)]
        noise = self._noise(context, blocks * BLOCK)
        scratch = np.empty(min(PIECE, blocks * BLOCK), np.float32)
        for start, place in places(elements, BLOCK):
            numbers = scratch[: len(place)]
            levels.read(planes, start, numbers)
            # Levels are whole numbers, so these sums are exact in any order, on any machine.
            np.matmul(_rows(numbers), _rotation(), out=_rows(place))
            _rows(place)[:] *= scales[start // BLOCK : (start + len(place)) // BLOCK, None]
            place *= noise.signs(len(place))
        return None


def _rows(numbers: Float32) -> Float32:
    return numbers.reshape(-1, BLOCK)


def _products(one: Float32, other: Float32) -> Float32:
    """Scalar products, block by block."""
    return np.einsum("ij,ij->i", _rows(one), _rows(other))


@cache
def _rotation() -> Float32:
    """The Hadamard matrix of Sylvester's construction: symmetric, and its square is 64 times the unit."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < BLOCK:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.ascontiguousarray(matrix)
