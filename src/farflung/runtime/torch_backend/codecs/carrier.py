"""Tensors on a device as codecs take them; see `runtime.carrier`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from farflung.codec import Coder, Context, Encoded, Mask, Recipe
from farflung.codec.encoding.payload import Payload
from farflung.opdag.form import Form
from farflung.runtime.carrier import Allocate
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.codecs.codec import TensorCoder, tensor_coder
from farflung.runtime.torch_backend.codecs.tensors import to_device, to_host
from farflung.runtime.torch_backend.crossing import Leaving
from farflung.runtime.torch_backend.tensors import flat


class TensorCarrier:
    """See `runtime.carrier.Carrier`: tensors on `device`. Codecs that it lacks work on copies on the host.

    What leaves a device with streams is a `Leaving`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def coder(self, recipe: Recipe, width: int) -> TensorCoder | CopyingCoder:
        return tensor_coder(recipe) or CopyingCoder(recipe.coder(width))

    def array(self, tensor: Tensor | Leaving, form: Form) -> Tensor:
        return tensor.to_codec() if isinstance(tensor, Leaving) else tensor

    def memory(self, tensor: Tensor | Leaving) -> memoryview:
        return tensor.memory() if isinstance(tensor, Leaving) else tensors.memory(tensor)

    def allocate(self, form: Form, allocate: Allocate) -> Tensor:
        return torch.empty(form.shape, dtype=tensors.DTYPES[form.dtype], device=self._device)


class CopyingCoder:
    """A coder for NumPy arrays that is given tensors."""

    def __init__(self, on_host: Coder) -> None:
        self.on_host = on_host

    def encode(self, tensor: Tensor, context: Context) -> Encoded:
        """See `codec.Coder`."""
        return self.on_host.encode(to_host(flat(tensor)).reshape(tensor.shape), context)

    def decode(self, payload: Payload, into: Tensor, context: Context) -> Mask | None:
        """See `codec.Coder`; `into` is contiguous."""
        copied = np.empty_like(to_host(torch.empty(0, dtype=into.dtype)), shape=tuple(into.shape))
        mask = self.on_host.decode(payload, copied, context)
        flat(into).view(torch.uint8).copy_(to_device(copied.reshape(-1).view(np.uint8), into.device))
        return mask
