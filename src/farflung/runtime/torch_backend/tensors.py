"""Tensors and their bytes: element types by name, and memory that TLS can decrypt into."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from farflung.opdag.form import Form
from farflung.opdag.graph import Constant, DTypeName
from farflung.runtime.torch_backend.device import HOST

DTYPES: dict[DTypeName, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def constant_tensor(constant: Constant, device: torch.device = HOST) -> Tensor:
    """A copy of a graph's constant."""
    dtype = DTYPES[constant.dtype]
    if not constant.data:
        return torch.empty(constant.shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.shape).to(device)


def allocate(size: int) -> memoryview:
    """Fresh memory from torch, aligned to 64 bytes, which kernels need to give repeatable bits."""
    return memory(torch.empty(size, dtype=torch.uint8))


def over(buffer: memoryview, form: Form) -> Tensor:
    """The tensor in `buffer`, sharing its memory."""
    return shaped(buffer, DTYPES[form.dtype], form.shape)


def like(buffer: memoryview, tensor: Tensor) -> Tensor:
    """The tensor in `buffer`, in the shape and element type of another, and on its device.

    It shares the buffer's memory if that is the device's.
    """
    return shaped(buffer, tensor.dtype, tensor.shape).to(tensor.device)


def flat(tensor: Tensor) -> Tensor:
    """The elements in row-major order, detached; a view if possible."""
    # A single element is contiguous with any stride, but `view` to another type refuses that.
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))


def shaped(buffer: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The tensor of this element type and shape in `buffer`, sharing its memory."""
    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def memory(array: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, as a flat view: of its own memory on the CPU, else of a copy.

    The caller must not change the tensor until the view's bytes have been sent or filled.
    """
    array = array.detach().cpu()
    # A single element is contiguous with any stride (an expanded one has 0), but `view` refuses that.
    elements = array.as_strided((array.numel(),), (1,)).view(torch.uint8)
    return memoryview(elements.numpy())  # type: ignore[arg-type]


def copied(tensor: Tensor) -> memoryview:
    """The bytes of a copy of a tensor, row-major."""
    return memory(tensor.to("cpu", copy=True, memory_format=torch.contiguous_format))


def sendable(tensor: Tensor, live: bool) -> memoryview:
    """The bytes of a tensor, row-major: of a copy, or, if `live`, of itself where it is contiguous."""
    return memory(outgoing(tensor)) if live else copied(tensor)


def outgoing(tensor: Tensor) -> Tensor:
    """A computed value as it is sent: detached and contiguous."""
    return tensor.detach().contiguous()
