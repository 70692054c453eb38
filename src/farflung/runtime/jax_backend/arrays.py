"""Arrays and their bytes: element types by name, and memory that links fill and kernels can use.

Received values are NumPy views of the link's memory, computed ones are `jax.Array`s; the compiled functions
accept both. So nothing is copied on a CPU, memory that is filled after it was given a shape (a job's state)
is read when it is used, and a GPU gets its data when it needs it.

Importing this file configures the whole process: 64-bit types exist, as in PyTorch, and a float32 product is
computed in float32, where GPUs would round its factors to TF32.
"""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np

from farflung.opdag.form import Form
from farflung.opdag.graph import Constant, DTypeName, ValueType

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")
# Otherwise a thread of XLA ends a program, and may free its inputs only while the next program runs.
jax.config.update("jax_cpu_enable_async_dispatch", False)

AnyArray = jax.Array | np.ndarray

ALIGNMENT_BYTES = 64  # XLA uses memory without a copy only if it is aligned like this

DTYPES: dict[DTypeName, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


def allocate(size: int) -> memoryview:
    """`size` bytes of fresh, aligned memory."""
    room = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGNMENT_BYTES
    return memoryview(room[start : start + size])  # type: ignore[arg-type]


def over(buffer: memoryview, form: Form) -> np.ndarray:
    """The array in `buffer`, sharing its memory."""
    flat: np.ndarray = np.frombuffer(buffer, DTYPES[form.dtype])
    return flat.reshape(form.shape)


def memory(array: AnyArray) -> memoryview:
    """The bytes of an array, as a flat view; no copy if the device shares its memory with the host.

    JAX arrays never change, and the view keeps them alive.
    """
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def sendable(array: AnyArray, live: bool) -> memoryview:
    """The bytes of a copy of an array, or, if `live`, of itself where the device shares the host's memory."""
    return memory(array if live else np.array(array, copy=True))


def constant_array(constant: Constant) -> np.ndarray:
    """A copy of a graph's constant."""
    return np.frombuffer(bytearray(constant.data), DTYPES[constant.dtype]).reshape(constant.shape)


def shape_of(value_type: ValueType, batch: int) -> jax.ShapeDtypeStruct:
    """Shape and element type without memory."""
    return jax.ShapeDtypeStruct(value_type.shape_at(batch), DTYPES[value_type.dtype])
