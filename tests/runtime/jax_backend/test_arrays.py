from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from farflung.opdag.form import Form
from farflung.opdag.graph import BatchSize, Constant, DTypeName, ValueType
from farflung.runtime.jax_backend import arrays
from farflung.runtime.jax_backend.backend import JaxBackend


@pytest.mark.parametrize("size", [1, 63, 64, 4097])
def test_memory_is_aligned_and_writable(size: int) -> None:
    buffer = JaxBackend().allocate(size)
    assert len(buffer) == size
    assert buffer.nbytes == size
    assert not buffer.readonly
    assert np.frombuffer(buffer, np.uint8).ctypes.data % arrays.ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("name", arrays.DTYPES)
def test_bytes_travel_unchanged(name: DTypeName) -> None:
    backend = JaxBackend()
    dtype = arrays.DTYPES[name]
    sent = jnp.asarray(np.arange(6).reshape(2, 3) % 2, dtype)
    data = backend.memory(sent)
    buffer = backend.allocate(len(data))
    buffer[:] = data
    came = backend.array(buffer, Form.of(ValueType(name, [BatchSize(1), 3]), 2))
    assert came.dtype == dtype
    assert np.array_equal(np.asarray(sent), came)
    assert bytes(backend.memory(came)) == bytes(data)


def test_memory_that_is_filled_later_is_seen_as_it_is_then() -> None:
    buffer = arrays.allocate(16)
    array = arrays.over(buffer, Form("float32", (4,)))
    buffer[:] = np.arange(4, dtype=np.float32).tobytes()
    assert np.array_equal(np.asarray(jax.device_put(array)), [0, 1, 2, 3])


def test_bytes_outlive_the_array_that_they_are_of() -> None:
    array = jax.jit(lambda x: x * 2)(jnp.arange(1000.0))
    data = arrays.memory(array)
    expected = bytes(data)
    del array
    gc.collect()
    for _ in range(5):
        jax.block_until_ready(jnp.ones(1000) * 3)
    assert bytes(data) == expected


def test_views_in_another_order_are_written_row_by_row() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3).T
    assert bytes(arrays.memory(array)) == np.array([0, 3, 1, 4, 2, 5], np.int16).tobytes()


@pytest.mark.parametrize("shape", [[], [0], [2, 0, 3]])
def test_empty_and_scalar_arrays_have_their_bytes(shape: list[int]) -> None:
    kind = ValueType("float32", list(shape))
    size = kind.bytes(1)
    buffer = arrays.allocate(size) if size else memoryview(bytearray())
    array = arrays.over(buffer, Form.of(kind, 1))
    assert array.shape == tuple(shape)
    assert len(arrays.memory(array)) == size


def test_a_constant_is_what_its_bytes_say() -> None:
    constant = Constant("bfloat16", [2], np.array([1.5, -2], arrays.DTYPES["bfloat16"]).tobytes())
    assert [float(number) for number in arrays.constant_array(constant)] == [1.5, -2.0]
