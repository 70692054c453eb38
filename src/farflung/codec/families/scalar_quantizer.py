"""Evenly spaced levels with one distance for the whole tensor, and an entropy code.

At equal error, an even quantiser with an entropy code needs fewer bits than the best levels of equal length
(a quarter to a third of a bit less for normally distributed numbers), and the more so the rarer large numbers
are. With one distance for all, rows that hardly matter, such as the gradients of tokens that the model
expected, need hardly any bits.

With subtractive dither (Roberts, "Picture Coding Using Pseudo-Random Noise", 1962) both ends add the same
random numbers. The error is then uniformly distributed and independent of the tensor, so the mean over many
draws is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated

import numpy as np
from msgspec import Meta

from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.context import Context, Mask
from farflung.codec.encoding import integer_coding
from farflung.codec.encoding.floats import Float32, Floats, as_float32, narrow, pieces
from farflung.codec.encoding.noise import Noise
from farflung.codec.encoding.payload import Part, Reader
from farflung.errors import CodecError

_LEAST, _MOST = 1e-30, 1e30
_OFFSETS = 8


class ScalarQuantizer(Lossy, frozen=True, tag="even"):
    """The nearest multiple of a distance: `step` times the root of the tensor's mean square.

    Attributes
    ----------
    dithered
        Subtract fresh dither, for gradients; without it equal numbers are always encoded equally.
    """

    step: Annotated[float, Meta(ge=0.01, le=8)]
    dithered: bool = False

    def declared(self) -> Declared:
        """See `Codec`; bits are those of normally distributed numbers."""
        usual = self.step / math.sqrt(12)
        return Declared(max(_normal_bits(self.step, self.dithered), 0.3), self.step / 2, usual, 0.33, 0.56)

    def levels(self, numbers: Float32, context: Context) -> tuple[float, integer_coding.Integers] | None:
        """The distance and the level of every number, in the shape of `numbers`; None if one is not finite.

        `numbers` must be contiguous.
        """
        flat_numbers = numbers.reshape(-1)
        squares = sum(float(np.vdot(piece, piece)) for _, piece in pieces(flat_numbers, 1))
        size = math.sqrt(squares / max(1, len(flat_numbers)))
        if not size < _MOST:
            return None
        distance = np.float32(size * self.step)
        levels = np.zeros(len(flat_numbers), np.float32)
        if distance <= _LEAST:
            return 0.0, levels.reshape(numbers.shape)
        noise = self._noise(context, len(flat_numbers))
        for start, piece in pieces(flat_numbers, 1):
            scaled = np.divide(piece, distance, out=levels[start : start + len(piece)])
            if noise:
                scaled += noise.dither(len(piece))
            np.rint(scaled, out=scaled)
        return float(distance), levels.reshape(numbers.shape)

    def values(self, levels: integer_coding.Integers, context: Context) -> Float32:
        """Replace the contiguous levels by the values they represent, in units of the distance."""
        if noise := self._noise(context, levels.size):
            for _, piece in pieces(levels.reshape(-1), 1):
                piece -= noise.dither(len(piece))
        return levels

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        # Neighbouring elements go to neighbouring planes.
        coded = self.levels(as_float32(elements), context)
        if coded is None:
            return None
        distance, levels = coded
        planes = (
            np.pad(levels, (0, -len(levels) % integer_coding.PLANES)).reshape(-1, integer_coding.PLANES).T
        )
        return Encoded((Part.of(np.array([distance], np.float32)), *integer_coding.write(planes)))

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        distance = require_distance(float(reader.take(np.float32, 1)[0]))
        planes = integer_coding.read(
            reader, integer_coding.PLANES, -(-len(elements) // integer_coding.PLANES)
        )
        levels = planes.T.reshape(-1)[: len(elements)]
        numbers = self.values(levels, context)
        numbers *= np.float32(distance)
        narrow(numbers, elements)
        return None

    def _noise(self, context: Context, elements: int) -> Noise | None:
        return Noise(context.seed, elements) if self.dithered else None


def require_distance(distance: float) -> float:
    """The distance itself; CodecError if it is not a possible one."""
    if not 0 <= distance < _MOST:
        raise CodecError(f"a payload has the distance {distance} between levels: it is damaged")
    return distance


def _normal_bits(step: float, dithered: bool) -> float:
    """Entropy of the levels of normally distributed numbers, averaged over all dither."""
    normal, far = NormalDist(), math.ceil(6 / step) + 1
    offsets = [(n + 0.5) / _OFFSETS - 0.5 for n in range(_OFFSETS)] if dithered else [0.0]
    shares = [
        sum(normal.cdf((k + 0.5 - o) * step) - normal.cdf((k - 0.5 - o) * step) for o in offsets)
        / len(offsets)
        for k in range(-far, far + 1)
    ]
    return -sum(share * math.log2(share) for share in shares if share > 0)
