"""Whole numbers near zero in little more than their entropy: several to a byte, Huffman's code over bytes.

zstandard writes bytes that do not repeat in Huffman's code, which spends at least one bit on each. So the
fewer values there are, the more of them share a byte; and neighbours that do tell of each other.
"""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
import zstandard
from numpy.typing import NDArray

from farflung.codec.payload import Part, Reader
from farflung.errors import CodecError

Wholes = NDArray[np.int32]

_HEADER = struct.Struct("<BIII")
_TOGETHER = {1: 5, 2: 3, 3: 2, 7: 2, 127: 1}
"""Of magnitudes up to the key, so many share a byte. The key itself says: that or more."""
_LOOK = 2**14
"""So many numbers from the middle are written in several ways, and the shortest is taken for all."""
_WAYS = 3
_BYTE = 255


def write(wholes: Wholes) -> list[Part]:
    """The numbers, flat, as parts of a payload."""
    middle = (len(wholes) - _LOOK) // 2 if len(wholes) > _LOOK else 0
    sample = wholes[middle : middle + _LOOK]
    usual = float(np.abs(sample).mean()) if len(sample) else 0.0
    ways = [radius for radius in _TOGETHER if radius >= min(usual, max(_TOGETHER))][:_WAYS]
    radius = min(ways, key=lambda radius: sum(len(part.data) for part in _parts(sample, radius)))
    return _parts(wholes, radius)


def _parts(wholes: Wholes, radius: int) -> list[Part]:
    near = (np.clip(wholes, -radius, radius) + radius).astype(np.uint8)
    sizes = np.abs(wholes)
    far = sizes[sizes >= radius] - radius
    body = _pressed(_together(near, radius))
    low = _pressed(np.minimum(far, _BYTE).astype(np.uint8))
    high = far[far >= _BYTE].astype(np.uint32)
    header = _HEADER.pack(radius, len(body), len(low), len(high))
    return [Part.raw(header), Part.raw(body), Part.raw(low), Part.of(high)]


def read(reader: Reader, count: int) -> Wholes:
    """`count` numbers that `write` wrote.

    Raises
    ------
    CodecError
        What is there is something else.
    """
    radius, body_bytes, low_bytes, high_count = _HEADER.unpack(reader.bytes(_HEADER.size))
    if radius not in _TOGETHER:
        raise CodecError(f"a payload packs numbers up to {radius}, which is none of its ways: it is damaged")
    bytes_of_near = -(-count // _TOGETHER[radius])
    packed = _expanded(reader.bytes(body_bytes), bytes_of_near)
    wholes = np.take(_apart(radius), packed, axis=0).reshape(-1)[:count].astype(np.int32)
    beyond = np.flatnonzero(np.abs(wholes) == radius)
    low = _expanded(reader.bytes(low_bytes), len(beyond)).astype(np.int64)
    high = reader.take(np.uint32, high_count)
    if np.count_nonzero(low == _BYTE) != high_count or high.max(initial=0) > 2**30:
        raise CodecError("the numbers of a payload do not fit together: it is damaged")
    low[low == _BYTE] = high
    wholes[beyond] += (np.sign(wholes[beyond]) * low).astype(np.int32)
    return wholes


def _together(near: NDArray[np.uint8], radius: int) -> NDArray[np.uint8]:
    """Digits to the base of 2 `radius` + 1, as many in a byte as fit."""
    count, base = _TOGETHER[radius], 2 * radius + 1
    if count == 1:
        return near
    if left := -len(near) % count:
        near = np.append(near, np.full(left, radius, np.uint8))
    digits = near.reshape(-1, count)
    packed = digits[:, count - 1].copy()
    for place in reversed(range(count - 1)):
        packed *= np.uint8(base)
        packed += digits[:, place]
    return packed


@cache
def _apart(radius: int) -> NDArray[np.int8]:
    """(256, numbers in a byte): what every byte says; one that cannot be says the largest."""
    count, base = _TOGETHER[radius], 2 * radius + 1
    places = np.arange(256)[:, None] // base ** np.arange(count)
    return np.minimum(places % base - radius, radius).astype(np.int8)


def _pressed(data: NDArray[np.uint8]) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data.data)


def _expanded(body: memoryview, size: int) -> NDArray[np.uint8]:
    """`size` bytes; memory is taken only for a body that says the same."""
    try:
        if zstandard.frame_content_size(body) != size:
            raise CodecError(f"the numbers of a payload are not those of {size} bytes: it is damaged")
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(body, max_output_size=size), np.uint8)
    except zstandard.ZstdError as error:
        raise CodecError(f"the numbers of a payload cannot be expanded ({error}): it is damaged") from error
