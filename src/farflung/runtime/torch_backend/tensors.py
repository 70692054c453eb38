"""Tensors and their bytes: element types by name, and memory that TLS can decrypt into."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from farflung.opdag.form import Form
from farflung.opdag.graph import Constant, DTypeName

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


def constant_tensor(constant: Constant) -> Tensor:
    """A copy of a graph's constant."""
    dtype = DTYPES[constant.dtype]
    if not constant.data:
        return torch.empty(constant.shape, dtype=dtype)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.shape)


def allocate(size: int) -> memoryview:
    """Fresh memory from torch, aligned to 64 bytes, which kernels need to give repeatable bits."""
    return memory(torch.empty(size, dtype=torch.uint8))


def over(buffer: memoryview, form: Form) -> Tensor:
    """The tensor in `buffer`, sharing its memory."""
    return _shaped(buffer, DTYPES[form.dtype], form.shape)


def like(buffer: memoryview, tensor: Tensor) -> Tensor:
    """The tensor in `buffer`, sharing its memory, in the shape and element type of another."""
    return _shaped(buffer, tensor.dtype, tensor.shape)


def _shaped(buffer: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def memory(array: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, as a flat view that shares its memory.

    The caller must not change the tensor until the view's bytes have been sent or filled.
    """
    # A single element is contiguous with any stride (an expanded one has 0), but `view` refuses that.
    flat = array.detach().as_strided((array.numel(),), (1,)).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def copied(tensor: Tensor) -> memoryview:
    """The bytes of a copy of a CPU tensor, row-major."""
    return memory(tensor.clone(memory_format=torch.contiguous_format))


def sendable(tensor: Tensor, live: bool) -> memoryview:
    """The bytes of a CPU tensor, row-major: of a copy, or, if `live`, of itself where it is contiguous."""
    return memory(outgoing(tensor)) if live else copied(tensor)


def outgoing(tensor: Tensor) -> Tensor:
    """A computed value as it is sent: detached and contiguous."""
    return tensor.detach().contiguous()
