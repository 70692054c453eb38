"""Blocks of integers that share a scale: 8 bits for a low error at a quarter of the bytes, or 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.context import Context, Mask
from farflung.codec.encoding.floats import PIECE, Float32, Floats, pieces, places
from farflung.codec.encoding.noise import Noise
from farflung.codec.encoding.payload import Part, Reader, as_scales, packed, read_scales

BLOCKS = {8: 256, 4: 128}
"""Elements that share a scale. With 8 bits, blocks of 128 would make errors 7 % smaller and encoding a tenth
slower.
"""
MAGIC = np.float32(1.5 * 2**23)
"""A float32 of this size has units in its lowest bits: adding it rounds, and its lowest byte is the integer.
"""
MOST = np.float32(1e38)
LEAST_SCALE = np.float32(2**-120)
SHRINK = np.float32(1 - 2**-10)
"""Keeps the largest magnitude below the largest integer, however products round."""


class Blocked(Lossy, frozen=True, tag="blocked"):
    """Blocks of 256 as integers between -127 and 127 (of 128 between -7 and 7), times a bfloat16 scale.

    Attributes
    ----------
    stochastic
        Round up or down at random, so that the mean over many roundings is exact. For gradients; it
        increases the error of a single tensor.
    """

    bits: Literal[4, 8] = 8
    stochastic: bool = False

    def declared(self) -> Declared:
        """See `Codec`."""
        step = (1 + 2**-7) / (self.levels * (1 - 2**-10))
        worst = step * self.block**0.5 / (1 if self.stochastic else 2)
        usual = {8: 0.0070, 4: 0.118}[self.bits] * (2**0.5 if self.stochastic else 1)
        encode_gbps = {8: 2.7, 4: 1.9}[self.bits] - (0.3 if self.stochastic else 0)
        return Declared(self.bits + 16 / self.block, worst, usual, encode_gbps, {8: 5.5, 4: 3.4}[self.bits])

    @property
    def block(self) -> int:
        """Elements that share a scale."""
        return BLOCKS[self.bits]

    @property
    def levels(self) -> int:
        """The largest integer."""
        return 2 ** (self.bits - 1) - 1

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        block = self.block
        blocks = -(-len(elements) // block)
        scales = np.empty(blocks, np.uint16)
        codes = np.empty(blocks * block * self.bits // 8, np.uint8)
        noise = Noise(context.seed, blocks * block) if self.stochastic else None
        scratch = np.empty(min(PIECE, blocks * block), np.float32)
        for start, piece in pieces(elements, block):
            numbers = scratch[: len(piece)]
            at = slice(start // block, (start + len(piece)) // block)
            inverses = _scales(np.abs(piece, out=numbers).reshape(-1, block), self.levels, scales[at])
            if inverses is None:
                return None
            np.multiply(piece.reshape(-1, block), inverses[:, None], out=numbers.reshape(-1, block))
            if noise:
                numbers += noise.dither(len(piece))
            self._pack(numbers, codes[start * self.bits // 8 : (start + len(piece)) * self.bits // 8])
        return Encoded((Part.of(scales), Part.of(codes)))

    def _pack(self, numbers: Float32, codes: NDArray[np.uint8]) -> None:
        if self.bits == 8:
            numbers += MAGIC
            np.copyto(codes, numbers.view(np.uint32), casting="unsafe")
        else:
            numbers += MAGIC + 8
            codes[:] = packed(numbers.view(np.uint32).astype(np.uint8), 4)

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        block = self.block
        blocks = -(-len(elements) // block)
        scales = read_scales(reader, blocks)
        codes = reader.take(np.uint8, blocks * block * self.bits // 8)
        for start, place in places(elements, block):
            coded = codes[start * self.bits // 8 : (start + len(place)) * self.bits // 8]
            self._unpack(coded, place)
            numbers = place.reshape(-1, block)
            numbers *= scales[start // block : start // block + len(numbers), None]
        return None

    def _unpack(self, coded: NDArray[np.uint8], place: Float32) -> None:
        if self.bits == 8:
            np.copyto(place, coded.view(np.int8))
        else:
            np.take(_NIBBLES, coded, axis=0, out=place.reshape(-1, 2), mode="clip")


_NIBBLES = np.stack(np.divmod(np.arange(256), 16)[::-1], axis=1).astype(np.float32) - 8
"""For each byte, the integers in its lower and upper half."""


def _scales(magnitudes: Float32, levels: int, into: NDArray[np.uint16]) -> Float32 | None:
    """Store a bfloat16 scale for each block; returns the factors to multiply by, None if a block is too
    large.
    """
    # Magnitudes order like their bits (NaN last), and NumPy finds the largest integer faster.
    bits = np.maximum.reduce(magnitudes.view(np.int32), axis=1)
    largest = bits.view(np.float32)
    if not largest.max() < MOST:
        return None
    scales = largest / (levels * SHRINK)
    # Rounded up, so that no element exceeds the levels; scales too small to invert become zero.
    np.copyto(into, (scales.view(np.uint32) >> 16) + 1, casting="unsafe")
    into[scales < LEAST_SCALE] = 0
    with np.errstate(divide="ignore"):
        return np.where(into, np.float32(1) / as_scales(into), np.float32(0))
