"""Evenly spaced levels: what each end promises, how few bits it takes, and what hostile bytes get."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.codec import Context, ScalarQuantizer
from farflung.codec.encoding import integer_coding
from farflung.codec.encoding.payload import Reader
from farflung.errors import CodecError

SIZE = 40_000


def normal(seed: int = 0, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def read(codec: ScalarQuantizer, payload: bytes, array: np.ndarray, context: Context) -> np.ndarray:
    into = np.empty_like(array)
    codec.decode(payload, into, context)
    return into


@pytest.mark.parametrize("dithered", [False, True])
@pytest.mark.parametrize("step", [0.05, 0.5, 1.0, 2.0])
def test_no_element_is_further_away_than_half_a_step(step: float, dithered: bool) -> None:
    array, codec, context = 3 * normal(), ScalarQuantizer(step, dithered), Context(seed=5)
    got = read(codec, codec.encode(array, context).joined(), array, context)
    distance = step * float(np.sqrt(np.mean(array**2)))
    assert np.abs(got - array).max() <= distance / 2 * (1 + 1e-4)


@pytest.mark.parametrize("dithered", [False, True])
@pytest.mark.parametrize("step", [0.3, 0.7, 1.0, 1.5, 2.5])
def test_normal_numbers_take_the_bits_that_are_declared(step: float, dithered: bool) -> None:
    array, codec = normal(size=2**20), ScalarQuantizer(step, dithered)
    bits = 8 * codec.encode(array, Context(seed=1)).nbytes / len(array)
    assert bits == pytest.approx(codec.declared().bits, rel=0.05)


@pytest.mark.parametrize("step", [0.5, 1.5])
def test_the_error_of_a_dithered_tensor_is_as_declared_and_no_part_of_it(step: float) -> None:
    array, codec, context = normal(), ScalarQuantizer(step, dithered=True), Context(seed=2)
    error = read(codec, codec.encode(array, context).joined(), array, context) - array
    assert np.linalg.norm(error) / np.linalg.norm(array) == pytest.approx(
        codec.declared().usual_error, rel=0.02
    )
    assert abs(float(error @ array)) / (np.linalg.norm(error) * np.linalg.norm(array)) < 4 / math.sqrt(SIZE)


def test_the_mean_over_many_draws_is_the_tensor() -> None:
    array, codec = normal(size=512), ScalarQuantizer(2.0, dithered=True)
    draws = 400
    total = np.zeros(512)
    for seed in range(draws):
        context = Context(seed=seed)
        total += read(codec, codec.encode(array, context).joined(), array, context)
    error = total / draws - array
    assert np.linalg.norm(error) / np.linalg.norm(array) < 1.3 * codec.declared().usual_error / math.sqrt(
        draws
    )


def test_tensors_with_rare_large_values_take_fewer_bits() -> None:
    heavy = normal() ** 3
    codec = ScalarQuantizer(0.5)
    assert codec.encode(heavy).nbytes < 0.7 * codec.encode(normal()).nbytes


@pytest.mark.parametrize("array", [np.zeros(100, np.float32), np.full(3, 1e-35, np.float32)])
def test_nothing_stays_nothing(array: np.ndarray) -> None:
    codec = ScalarQuantizer(1.0, dithered=True)
    context = Context(seed=3)
    assert not np.abs(read(codec, codec.encode(array, context).joined(), array, context)).max() > 1e-18


def planes(numbers: np.ndarray, count: int = 7) -> np.ndarray:
    """Rows of one plane each, filled up with zeros."""
    return np.pad(numbers, (0, -len(numbers) % count)).reshape(-1, count).T


@given(
    st.lists(
        st.one_of(st.integers(-3, 3), st.integers(-400, 400), st.integers(-(2**24), 2**24)), max_size=200
    )
)
def test_integers_are_decoded_exactly(numbers: list[int]) -> None:
    given_ = planes(np.array(numbers, np.float32))
    payload = b"".join(part.data for part in integer_coding.write(given_))
    reader = Reader(payload)
    assert np.array_equal(integer_coding.read(reader, *given_.shape), given_)
    assert reader.left == 0


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0, 3.0])
def test_integers_take_little_more_than_their_entropy(spread: float) -> None:
    numbers = np.rint(normal(size=2**18) * spread)
    bits = (
        8
        * sum(len(part.data) for part in integer_coding.write(planes(numbers, integer_coding.PLANES)))
        / len(numbers)
    )
    shares = np.unique(numbers, return_counts=True)[1] / len(numbers)
    least = 1 / 5  # a bit for a byte, and a byte for five
    assert bits < max(least, -float((shares * np.log2(shares)).sum())) * 1.04 + 0.01


@given(st.binary(max_size=80))
def test_damaged_numbers_are_refused_or_as_many_as_asked(data: bytes) -> None:
    try:
        numbers = integer_coding.read(Reader(data), 5, 10)
    except CodecError:
        return
    assert numbers.shape == (5, 10)


def test_numbers_that_all_say_more_take_no_more_memory_than_usual_ones() -> None:
    size = 2**20
    hostile = np.where(normal(size=size) < 0, -1, 1).astype(np.float32).reshape(16, -1)
    payload = b"".join(part.data for part in integer_coding._parts(hostile, radius=1))
    tracemalloc.start()
    numbers = integer_coding.read(Reader(payload), *hostile.shape)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(numbers, hostile)
    assert most / size < 9


def test_cut_and_changed_payloads_are_refused_or_read() -> None:
    array, codec, context = normal(size=1000), ScalarQuantizer(0.7, dithered=True), Context(seed=4)
    payload = codec.encode(array, context).joined()
    random = np.random.default_rng(0)
    for cut in range(0, len(payload), 7):
        with pytest.raises(CodecError):
            read(codec, payload[:cut], array, context)
    for _ in range(300):
        damaged = bytearray(payload)
        damaged[random.integers(len(damaged))] ^= 1 << random.integers(8)
        try:
            read(codec, bytes(damaged), array, context)
        except CodecError:
            pass
