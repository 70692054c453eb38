"""Integers near zero in little more than their entropy: several per byte, then Huffman coding.

zstandard encodes bytes without repetitions by Huffman's code, which spends at least one bit on each. So the
fewer distinct values there are, the more of them share a byte, where the code also uses correlations between
neighbours. Numbers come in planes, (planes, n): neighbouring planes share a byte, so that all work runs along
contiguous rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.floats import PIECE, Float32
from farflung.codec.encoding.payload import Part, Reader
from farflung.codec.encoding.zstd import compress, decompress
from farflung.errors import CodecError

Integers = Float32
"""Integers as floats, which is exact: those larger than 2^24 were floats before."""

_HEADER = struct.Struct("<BIII")
_PER_BYTE = {1: 5, 2: 3, 3: 2, 7: 2, 127: 1}
"""For magnitudes up to the key, how many numbers share a byte. The key itself means: that or more."""
PLANES = 30
"""With this many planes, every byte is full."""
_SAMPLE = 2**12
"""About this many numbers from the middle are encoded with several radii; the shortest is used for all."""
_TRIED_RADII = 3
_BYTE = 255
_MOST = 2**30


def write(planes: Integers) -> list[Part]:
    """Encode the numbers, (planes, n), as parts of a payload."""
    length = planes.shape[1]
    sampled = min(length, -(-_SAMPLE // max(1, len(planes))))
    sample = planes[:, (length - sampled) // 2 :][:, :sampled]
    usual = float(np.abs(sample).mean()) if sample.size else 0.0
    radii = [radius for radius in _PER_BYTE if radius >= min(usual, max(_PER_BYTE))][:_TRIED_RADII]
    radius = min(radii, key=lambda radius: sum(len(part.data) for part in _parts(sample, radius)))
    return _parts(planes, radius)


def read(reader: Reader, planes: int, length: int) -> Integers:
    """The (planes, length) numbers that `write` encoded.

    Raises
    ------
    CodecError
        The bytes are not such numbers.
    """
    radius, body_bytes, low_bytes, high_count = _HEADER.unpack(reader.bytes(_HEADER.size))
    if radius not in _PER_BYTE:
        raise CodecError(f"a payload packs numbers up to {radius}, which no codec does: it is damaged")
    packed = _decompress(reader.bytes(body_bytes), -(-planes // _PER_BYTE[radius]) * length)
    near = _unpack(packed, radius, planes, length)
    count = sum(len(_ends(piece, radius)) for _, piece in _pieces(near))
    low = _decompress(reader.bytes(low_bytes), count)
    high = reader.take(np.uint32, high_count)
    if np.count_nonzero(low == _BYTE) != high_count or high.max(initial=0) > _MOST:
        raise CodecError("the parts of a payload do not match: it is damaged")
    integers = near.astype(np.float32)
    for start, piece in _pieces(near):
        ends = _ends(piece, radius)
        far, low = low[: len(ends)].astype(np.float32), low[len(ends) :]
        larger = np.flatnonzero(far == _BYTE)
        far[larger], high = high[: len(larger)], high[len(larger) :]
        far += radius
        integers.reshape(-1)[start + ends] = np.copysign(far, piece[ends])
    return integers


def _parts(planes: Integers, radius: int) -> list[Part]:
    near = np.clip(planes, -radius, radius).astype(np.int8)
    far = np.abs(planes.reshape(-1)[_ends(near.reshape(-1), radius)]) - radius
    body = _compress(_pack(near, radius))
    low = _compress(np.minimum(far, _BYTE).astype(np.uint8))
    high = far[far >= _BYTE].astype(np.uint32)
    header = _HEADER.pack(radius, len(body), len(low), len(high))
    return [Part.raw(header), Part.raw(body), Part.raw(low), Part.of(high)]


def _pieces(near: NDArray[np.int8]) -> Iterator[tuple[int, NDArray[np.int8]]]:
    """The start and contents of each piece, flat; positions of large numbers take 8 bytes each."""
    flat = near.reshape(-1)
    return ((start, flat[start : start + PIECE]) for start in range(0, len(flat), PIECE))


def _ends(piece: NDArray[np.int8], radius: int) -> NDArray[np.intp]:
    """Positions of the numbers that mean "that or more"."""
    return np.flatnonzero((piece == radius) | (piece == -radius))


def _pack(near: NDArray[np.int8], radius: int) -> NDArray[np.uint8]:
    """Digits to the base of 2 `radius` + 1, as many in a byte as fit; padded with 0."""
    count, base = _PER_BYTE[radius], np.uint8(2 * radius + 1)
    digits = (near + np.int8(radius)).view(np.uint8)
    packed = digits[::count].copy()
    power = base
    for place in range(1, count):
        some = digits[place::count]
        packed[: len(some)] += some * power
        packed[len(some) :] += np.uint8(radius) * power
        power *= base
    return packed


def _unpack(packed: NDArray[np.uint8], radius: int, planes: int, length: int) -> NDArray[np.int8]:
    near = np.empty((planes, length), np.int8)
    body = packed.tobytes()
    for place, table in enumerate(_tables(radius)):
        some = near[place :: _PER_BYTE[radius]]
        some[:] = np.frombuffer(body.translate(table), np.int8)[: some.size].reshape(some.shape)
    return near


@cache
def _tables(radius: int) -> tuple[bytes, ...]:
    """For each place in a byte, the number of each byte value there; the largest for impossible ones."""
    base = 2 * radius + 1
    places = [np.arange(256) // base**place % base for place in range(_PER_BYTE[radius])]
    return tuple(np.minimum(place - radius, radius).astype(np.int8).tobytes() for place in places)


def _compress(data: NDArray[np.uint8]) -> bytes:
    return compress(data.reshape(-1).data)


def _decompress(body: memoryview, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(decompress(body, size, "a part of a payload's numbers"), np.uint8)
