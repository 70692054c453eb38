"""Positions of the elements that were sent: Golomb-Rice coded gaps, or a bitmap if that is smaller.

Golomb, "Run-length encodings" (1966); Rice and Plaunt (1971). A gap is a quotient, in unary, and a remainder
of fixed width. All remainders precede all quotients, so that both are read and written as arrays.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.payload import Part, Reader, byte_count, from_bits, to_bits
from farflung.errors import CodecError

Positions = NDArray[np.int64]

_HEADER = np.dtype([("count", "<u4"), ("unary_bits", "<u4"), ("width", "<u4")])
_BITMAP = 32
"""Stands for the width of remainders if the positions are a bitmap."""
MOST_ELEMENTS = 2**31


class _Shape(msgspec.Struct, frozen=True):
    """The length of the coded gaps: `count` remainders of `width` bits, then `unary_bits`."""

    count: int
    unary_bits: int
    width: int

    @property
    def bytes(self) -> int:
        return byte_count(self.count * self.width) + byte_count(self.unary_bits)


def write(positions: Positions, elements: int) -> list[Part]:
    """Encode ascending positions in a tensor of `elements`.

    Raises
    ------
    CodecError
        The tensor has more than 2^31 elements.
    """
    if elements > MOST_ELEMENTS:
        raise CodecError(f"a tensor of {elements} elements is too large for TopK: at most {MOST_ELEMENTS}")
    gaps = np.diff(positions, prepend=-1)
    gaps -= 1
    shape = _shortest(gaps, elements)
    if shape.bytes >= byte_count(elements):
        return [_header(_Shape(len(positions), 0, _BITMAP)), Part.of(to_bits(positions, elements))]
    return [_header(shape), Part.of(_remainders(gaps, shape.width)), Part.of(_unary(gaps >> shape.width))]


def read(reader: Reader, elements: int) -> Positions:
    """The positions that `write` encoded, ascending and within the tensor.

    Raises
    ------
    CodecError
        They cannot be positions in a tensor of that many elements.
    """
    count, unary_bits, width = (int(number) for number in reader.take(_HEADER, 1)[0])
    if count > elements:
        raise _damaged(f"{count} of {elements} elements")
    if width == _BITMAP:
        positions = from_bits(reader.take(np.uint8, byte_count(elements)), elements)
        if len(positions) != count:
            raise _damaged(f"{len(positions)} elements, expected {count}")
        return positions
    # `write` never uses gaps that are longer than a bitmap; unpacked, such gaps could fill the memory.
    coded_bytes = _Shape(count, unary_bits, width).bytes
    if width > _BITMAP or unary_bits > count + (elements >> width) or coded_bytes >= byte_count(elements):
        raise _damaged(f"{count} gaps in {unary_bits} bits and remainders of {width}")
    remainders = _read_remainders(reader, count, width)
    gaps = _read_unary(reader, count, unary_bits)
    gaps <<= width
    gaps += remainders
    gaps += 1
    positions = np.cumsum(gaps, out=gaps)
    positions -= 1
    if count and positions[-1] >= elements:
        raise _damaged(f"an element at {positions[-1]} of {elements}")
    return positions


def _shortest(gaps: Positions, elements: int) -> _Shape:
    """The shortest shape; its width is close to the logarithm of the mean gap."""
    count = len(gaps)
    if not count:
        return _Shape(0, 0, 0)
    guess = max(0, int(math.log2(max(1.0, 0.69 * elements / count))))
    widths = range(max(0, guess - 1), guess + 2)
    shapes = [_Shape(count, int((gaps >> width).sum()) + count, width) for width in widths]
    return min(shapes, key=lambda shape: shape.bytes)


def _header(shape: _Shape) -> Part:
    return Part.of(np.array([(shape.count, shape.unary_bits, shape.width)], _HEADER))


def _remainders(gaps: Positions, width: int) -> NDArray[np.uint8]:
    bits = np.empty((len(gaps), width), np.bool_)
    for bit in range(width):
        bits[:, bit] = (gaps >> bit) & 1
    return np.packbits(bits.reshape(-1), bitorder="little")


def _read_remainders(reader: Reader, count: int, width: int) -> Positions:
    coded = reader.take(np.uint8, byte_count(count * width))
    bits = np.unpackbits(coded, count=count * width, bitorder="little").reshape(count, width)
    remainders = np.zeros(count, np.int64)
    for bit in range(width):
        remainders |= bits[:, bit].astype(np.int64) << bit
    return remainders


def _unary(quotients: Positions) -> NDArray[np.uint8]:
    """That many zeros and a one for each quotient; `quotients` are overwritten."""
    quotients += 1
    ends = np.cumsum(quotients, out=quotients)
    ends -= 1
    return to_bits(ends, int(ends[-1]) + 1 if len(ends) else 0)


def _read_unary(reader: Reader, count: int, bits: int) -> Positions:
    ends = from_bits(reader.take(np.uint8, byte_count(bits)), bits)
    if len(ends) != count or (count and ends[-1] != bits - 1):
        raise _damaged(f"{len(ends)} gaps, expected {count}")
    return np.diff(ends, prepend=-1) - 1


def _damaged(what: str) -> CodecError:
    return CodecError(f"a payload lists {what}: it is damaged or belongs to another tensor")
