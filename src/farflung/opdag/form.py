"""Of what kind and shape the tensors are that cross between two segments, microbatch by microbatch."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

from farflung.opdag.graph import ITEM_BYTES, DTypeName, ValueType

CODABLE = ("float32", "float16", "bfloat16")


class Form(NamedTuple):
    """One value's element type, and its shape for a microbatch."""

    dtype: DTypeName
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value_type: ValueType, batch: int) -> Self:
        """The form of a value for microbatches of `batch` samples."""
        return cls(value_type.dtype, value_type.shape_at(batch))

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)

    @property
    def features(self) -> int:
        """Of images the channels, else the last dimension."""
        if not self.shape:
            return 1
        return self.shape[1] if len(self.shape) >= 4 else self.shape[-1]

    @property
    def width(self) -> int:
        """The last dimension, at least 1."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """How many rows of that width."""
        return self.elements // self.width

    @property
    def element_bytes(self) -> int:
        """What each takes."""
        return ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """What they take as they are."""
        return self.elements * self.element_bytes

    @property
    def is_codable(self) -> bool:
        """Whether codecs write such tensors."""
        return self.dtype in CODABLE and self.elements > 0
