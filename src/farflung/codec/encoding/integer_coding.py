"""Whole numbers near zero in little more than their entropy: several to a byte, Huffman's code over bytes.

zstandard writes bytes that do not repeat in Huffman's code, which spends at least one bit on each. So the
fewer values there are, the more of them share a byte; and neighbours that do tell of each other. Numbers come
as planes, (planes, n): neighbouring planes share a byte, so that all work goes along contiguous rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.floats import PIECE, Float32
from farflung.codec.encoding.payload import Part, Reader
from farflung.codec.encoding.zstd import expanded, pressed
from farflung.errors import CodecError

Wholes = Float32
"""Whole numbers as floats, which are exact: those that are larger than 2^24 were floats before."""

_HEADER = struct.Struct("<BIII")
_TOGETHER = {1: 5, 2: 3, 3: 2, 7: 2, 127: 1}
"""Of magnitudes up to the key, so many share a byte. The key itself says: that or more."""
PLANES = 30
"""Of so many planes none has to share a byte with nothing."""
_LOOK = 2**12
"""About this many numbers from the middle are encoded with several radii; the shortest is used for all."""
_WAYS = 3
_BYTE = 255
_MOST = 2**30


def write(planes: Wholes) -> list[Part]:
    """The numbers, (planes, n), as parts of a payload."""
    length = planes.shape[1]
    look = min(length, -(-_LOOK // max(1, len(planes))))
    sample = planes[:, (length - look) // 2 :][:, :look]
    usual = float(np.abs(sample).mean()) if sample.size else 0.0
    ways = [radius for radius in _TOGETHER if radius >= min(usual, max(_TOGETHER))][:_WAYS]
    radius = min(ways, key=lambda radius: sum(len(part.data) for part in _parts(sample, radius)))
    return _parts(planes, radius)


def read(reader: Reader, planes: int, length: int) -> Wholes:
    """The (planes, length) numbers that `write` wrote.

    Raises
    ------
    CodecError
        What is there is something else.
    """
    radius, body_bytes, low_bytes, high_count = _HEADER.unpack(reader.bytes(_HEADER.size))
    if radius not in _TOGETHER:
        raise CodecError(f"a payload packs numbers up to {radius}, which is none of its ways: it is damaged")
    packed = _expanded(reader.bytes(body_bytes), -(-planes // _TOGETHER[radius]) * length)
    near = _apart(packed, radius, planes, length)
    count = sum(len(_ends(piece, radius)) for _, piece in _pieces(near))
    low = _expanded(reader.bytes(low_bytes), count)
    high = reader.take(np.uint32, high_count)
    if np.count_nonzero(low == _BYTE) != high_count or high.max(initial=0) > _MOST:
        raise CodecError("the numbers of a payload do not fit together: it is damaged")
    wholes = near.astype(np.float32)
    for start, piece in _pieces(near):
        ends = _ends(piece, radius)
        far, low = low[: len(ends)].astype(np.float32), low[len(ends) :]
        larger = np.flatnonzero(far == _BYTE)
        far[larger], high = high[: len(larger)], high[len(larger) :]
        far += radius
        wholes.reshape(-1)[start + ends] = np.copysign(far, piece[ends])
    return wholes


def _parts(planes: Wholes, radius: int) -> list[Part]:
    near = np.clip(planes, -radius, radius).astype(np.int8)
    far = np.abs(planes.reshape(-1)[_ends(near.reshape(-1), radius)]) - radius
    body = _pressed(_together(near, radius))
    low = _pressed(np.minimum(far, _BYTE).astype(np.uint8))
    high = far[far >= _BYTE].astype(np.uint32)
    header = _HEADER.pack(radius, len(body), len(low), len(high))
    return [Part.raw(header), Part.raw(body), Part.raw(low), Part.of(high)]


def _pieces(near: NDArray[np.int8]) -> Iterator[tuple[int, NDArray[np.int8]]]:
    """Where each piece begins, flat, and what it has: of numbers that say more, places take 8 bytes each."""
    flat = near.reshape(-1)
    return ((start, flat[start : start + PIECE]) for start in range(0, len(flat), PIECE))


def _ends(piece: NDArray[np.int8], radius: int) -> NDArray[np.intp]:
    """Where the numbers say that or more."""
    return np.flatnonzero((piece == radius) | (piece == -radius))


def _together(near: NDArray[np.int8], radius: int) -> NDArray[np.uint8]:
    """Digits to the base of 2 `radius` + 1, as many in a byte as fit; what is missing is 0."""
    count, base = _TOGETHER[radius], np.uint8(2 * radius + 1)
    digits = (near + np.int8(radius)).view(np.uint8)
    packed = digits[::count].copy()
    power = base
    for place in range(1, count):
        some = digits[place::count]
        packed[: len(some)] += some * power
        packed[len(some) :] += np.uint8(radius) * power
        power *= base
    return packed


def _apart(packed: NDArray[np.uint8], radius: int, planes: int, length: int) -> NDArray[np.int8]:
    near = np.empty((planes, length), np.int8)
    body = packed.tobytes()
    for place, table in enumerate(_tables(radius)):
        some = near[place :: _TOGETHER[radius]]
        some[:] = np.frombuffer(body.translate(table), np.int8)[: some.size].reshape(some.shape)
    return near


@cache
def _tables(radius: int) -> tuple[bytes, ...]:
    """For each place in a byte the number that every byte has there; one that cannot be has the largest."""
    base = 2 * radius + 1
    places = [np.arange(256) // base**place % base for place in range(_TOGETHER[radius])]
    return tuple(np.minimum(place - radius, radius).astype(np.int8).tobytes() for place in places)


def _pressed(data: NDArray[np.uint8]) -> bytes:
    return pressed(data.reshape(-1).data)


def _expanded(body: memoryview, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(expanded(body, size, "a part of a payload's numbers"), np.uint8)
