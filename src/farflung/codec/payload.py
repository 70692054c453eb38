"""Payloads: parts that are written one after the other, and a reader that trusts none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from farflung.errors import CodecError

Item = TypeVar("Item", bound=np.generic)
Payload: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Part:
    """Bytes of a payload, made of items of `item_bytes` each: who compresses further looks at these."""

    data: memoryview
    item_bytes: int

    @staticmethod
    def of(array: NDArray[np.generic]) -> Part:
        """The memory of a contiguous array, little endian."""
        return Part(array.reshape(-1).view(np.uint8).data, array.itemsize)

    @staticmethod
    def raw(data: Payload) -> Part:
        """Bytes of no particular structure."""
        return Part(memoryview(data).cast("B"), 1)


class Reader:
    """Takes a payload apart from its beginning."""

    def __init__(self, payload: Payload) -> None:
        self._left = memoryview(payload).cast("B")

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._left)

    def take(self, dtype: type[Item] | np.dtype[Item], count: int) -> NDArray[Item]:
        """The next `count` items: a view, which need not be aligned.

        Raises
        ------
        CodecError
            Fewer are there.
        """
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self.bytes(size), dtype)

    def bytes(self, size: int) -> memoryview:
        """The next `size` bytes; CodecError if fewer are there."""
        if not 0 <= size <= len(self._left):
            raise CodecError(
                f"a payload ends {size - self.left} bytes too early: it was cut or is another tensor's"
            )
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def rest(self) -> memoryview:
        """All that is left."""
        return self.bytes(self.left)

    def end(self) -> None:
        """Raise CodecError if anything is left."""
        if self.left:
            raise CodecError(f"a payload goes on for {self.left} bytes after its end: it is another tensor's")
