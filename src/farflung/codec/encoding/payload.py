"""Payloads: parts written one after another, and a reader that checks every bound.

Also the bfloat16 scales of blocks, and small integers and flags in as few bytes as possible, the first one in
the lowest bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.floats import Bfloat16Bits, Float32
from farflung.errors import CodecError

Item = TypeVar("Item", bound=np.generic)
Payload: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Part:
    """Bytes of a payload, made of items of `item_bytes` each, which tells a further compressor their
    structure.
    """

    data: memoryview
    item_bytes: int

    @staticmethod
    def of(array: NDArray[np.generic]) -> Part:
        """The memory of a contiguous array, little endian."""
        return Part(array.reshape(-1).view(np.uint8).data, array.itemsize)

    @staticmethod
    def raw(data: Payload) -> Part:
        """Bytes without a particular structure."""
        return Part(memoryview(data).cast("B"), 1)


class Reader:
    """Reads a payload from its beginning."""

    def __init__(self, payload: Payload) -> None:
        self._left = memoryview(payload).cast("B")

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self._left)

    def take(self, dtype: type[Item] | np.dtype[Item], count: int) -> NDArray[Item]:
        """The next `count` items: a view, which need not be aligned.

        Raises
        ------
        CodecError
            Fewer are left.
        """
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self.bytes(size), dtype)

    def bytes(self, size: int) -> memoryview:
        """The next `size` bytes; CodecError if fewer are left."""
        if not 0 <= size <= len(self._left):
            raise CodecError(
                f"a payload ends {size - self.left} bytes too early: it was cut or belongs to another tensor"
            )
        data, self._left = self._left[:size], self._left[size:]
        return data

    def rest(self) -> memoryview:
        """Everything that is left."""
        return self.bytes(self.left)

    def end(self) -> None:
        """Raise CodecError if anything is left."""
        if self.left:
            raise CodecError(f"a payload has {self.left} extra bytes: it belongs to another tensor")


def as_scales(bits: Bfloat16Bits) -> Float32:
    """Scales converted to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_scales(reader: Reader, count: int) -> Float32:
    """The next `count` scales; CodecError if one is not finite."""
    scales = as_scales(reader.take(np.uint16, count))
    if not np.isfinite(scales).all():
        raise CodecError("a payload has scales that are not finite: it is damaged")
    return scales


Bytes = NDArray[np.uint8]

_WORDS = {2: np.uint32, 4: np.uint16}


def packed(codes: Bytes, bits: int) -> Bytes:
    """Contiguous `codes` of 1, 2 or 4 bits each, 8 / `bits` to a byte; their number must fill the last byte.

    `codes` of 2 and 4 bits are overwritten.
    """
    if bits == 1:
        return np.packbits(codes, bitorder="little")
    words = codes.view(_WORDS[bits])
    # The lowest byte of a word collects the codes of its other bytes; the rest of the word is dropped.
    if bits == 2:
        words |= words >> 12
    words |= words >> (8 - bits)
    return words.astype(np.uint8)


def to_bits(positions: NDArray[np.int64], size: int) -> Bytes:
    """A bit for each of `size` places, set at `positions`."""
    flags = np.zeros(size, np.bool_)
    flags[positions] = True
    return np.packbits(flags, bitorder="little")


def from_bits(bits: Bytes, size: int) -> NDArray[np.int64]:
    """The positions of the first `size` bits that are set, ascending."""
    return np.flatnonzero(np.unpackbits(bits, count=size, bitorder="little").view(np.bool_))


def byte_count(bits: int) -> int:
    """The bytes needed for that many bits."""
    return -(-bits // 8)
