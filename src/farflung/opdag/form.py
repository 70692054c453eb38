"""Element type and shape of the tensors that cross between two segments in each microbatch."""

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
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def features(self) -> int:
        """Number of features: channels for images, else the last dimension."""
        if not self.shape:
            return 1
        return self.shape[1] if len(self.shape) >= 4 else self.shape[-1]

    @property
    def width(self) -> int:
        """The last dimension, at least 1."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """Number of rows of that width."""
        return self.elements // self.width

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the uncompressed tensor."""
        return self.elements * self.element_bytes

    @property
    def is_codable(self) -> bool:
        """Whether codecs can encode such tensors."""
        return self.dtype in CODABLE and self.elements > 0
