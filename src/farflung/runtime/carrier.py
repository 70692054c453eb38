"""What codecs read and fill: the bytes of a tensor in the host's memory, or the tensor on its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from farflung.codec import Coder, Context, Encoded, Mask, Recipe
from farflung.codec.encoding.floats import Floats
from farflung.codec.encoding.payload import Payload
from farflung.opdag.form import Form

Allocate: TypeAlias = Callable[[int], memoryview]

_DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}


class ArrayCoder(Protocol):
    """A `codec.Coder` for the arrays of a carrier."""

    @property
    def on_host(self) -> Coder:
        """The coder for NumPy arrays, with the same state."""

    def encode(self, array: Any, context: Context) -> Encoded:
        """See `codec.Coder`."""

    def decode(self, payload: Payload, into: Any, context: Context) -> Mask | None:
        """See `codec.Coder`."""


class Carrier(Protocol):
    """Tensors as an executor's neighbours pass them on; called on the codec thread only."""

    def coder(self, recipe: Recipe, width: int) -> ArrayCoder:
        """A new coder of that recipe for tensors whose last dimension is `width`."""

    def array(self, tensor: Any, form: Form) -> Any:
        """The tensor as its coder takes it."""

    def memory(self, tensor: Any) -> memoryview:
        """The bytes of a tensor, row-major; it must not change until they are sent."""

    def allocate(self, form: Form, allocate: Allocate) -> Any:
        """A tensor for a coder to fill."""


class HostCoder:
    """A coder for NumPy arrays, as it is."""

    def __init__(self, coder: Coder) -> None:
        self.on_host = coder
        self.encode = coder.encode
        self.decode = coder.decode


class HostMemory:
    """Tensors as their bytes in the host's memory."""

    def coder(self, recipe: Recipe, width: int) -> HostCoder:
        return HostCoder(recipe.coder(width))

    def array(self, tensor: memoryview, form: Form) -> Floats:
        return over(tensor, form)

    def memory(self, tensor: memoryview) -> memoryview:
        return tensor

    def allocate(self, form: Form, allocate: Allocate) -> memoryview:
        return allocate(form.nbytes)


def over(memory: memoryview, form: Form) -> Floats:
    """The array in these bytes, sharing their memory; bfloat16 as uint16."""
    return np.frombuffer(memory, _DTYPES[form.dtype]).reshape(form.shape)
