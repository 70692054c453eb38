from __future__ import annotations

import contextlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.arrays import tensors, wide

from farflung.codec import Blocked, Context, Masked, TopK
from farflung.codec.context import Mask
from farflung.codec.encoding import indices
from farflung.codec.encoding.floats import Floats, flat
from farflung.codec.encoding.payload import Reader
from farflung.codec.families.topk import index_bits, largest, largest_in_rows
from farflung.errors import CodecError


def by_sorting(array: np.ndarray, count: int) -> np.ndarray:
    """The positions of the largest magnitudes, of equal ones the first, never zeros."""
    order = np.argsort(-np.abs(array), kind="stable")[:count]
    return np.sort(order[array[order] != 0])


@given(array=tensors(), share=st.floats(0.001, 1))
@settings(max_examples=200)
def test_the_largest_are_those_of_a_sort(array: Floats, share: float) -> None:
    elements, numbers = flat(array), wide(array)
    count = max(1, int(share * len(elements)))
    np.testing.assert_array_equal(largest(elements, count), by_sorting(numbers, count))


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("kind", ["normal", "tied", "sparse", "sorted", "constant"])
def test_the_sample_never_changes_the_selection(kind: str, share: float) -> None:
    random = np.random.default_rng(4)
    array = random.standard_normal(200_003).astype(np.float32)
    if kind == "tied":
        array = np.rint(array)
    elif kind == "sparse":
        array[random.random(len(array)) < 0.999] = 0
    elif kind == "sorted":
        array = np.sort(np.abs(array))
    elif kind == "constant":
        array[:] = 1
    count = int(share * len(array))
    np.testing.assert_array_equal(largest(array, count), by_sorting(array, count))


@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 90),
    share=st.floats(0.01, 1),
    tied=st.booleans(),
    seed=st.integers(0, 999),
)
def test_rows_keep_their_own_largest(rows: int, width: int, share: float, tied: bool, seed: int) -> None:
    array = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    array = np.rint(array) if tied else array
    count = max(1, int(share * width))
    expected = [by_sorting(row, count) + number * width for number, row in enumerate(array)]
    found = largest_in_rows(array.reshape(-1), width, count)
    np.testing.assert_array_equal(found, np.concatenate(expected))


@given(size=st.integers(1, 3000), share=st.floats(0, 1), seed=st.integers(0, 999), clustered=st.booleans())
@settings(max_examples=200)
def test_indices_come_back(size: int, share: float, seed: int, clustered: bool) -> None:
    random = np.random.default_rng(seed)
    chosen = random.random(size) < share
    chosen = np.sort(chosen) if clustered else chosen
    positions = np.flatnonzero(chosen)
    payload = b"".join(part.data for part in indices.write(positions, size))
    reader = Reader(payload)
    np.testing.assert_array_equal(indices.read(reader, size), positions)
    assert reader.left == 0
    assert len(payload) <= 12 + -(-size // 8)
    np.testing.assert_array_equal(Mask.of(positions, size).positions, positions)


@pytest.mark.parametrize(("share", "width"), [(1.0, 31), (1 / 4, 31), (1 / 31, 31), (1.0, 0), (0.99, 0)])
def test_damaged_indices_are_not_unpacked_to_many_times_the_tensor(share: float, width: int) -> None:
    elements = 20_000
    count = int(share * elements)
    header = np.array([count, count, width], "<u4").tobytes()
    payload = header + bytes(-(-count * width // 8)) + b"\xff" * -(-count // 8)
    tracemalloc.start()
    try:
        with contextlib.suppress(CodecError):
            indices.read(Reader(payload), elements)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8 * 4 * elements


@pytest.mark.parametrize("share", [0.001, 0.01, 0.03, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7])
def test_indices_at_random_places_take_within_5_percent_of_their_entropy(share: float) -> None:
    size = 2_000_000
    positions = np.flatnonzero(np.random.default_rng(1).random(size) < share)
    bits = 8 * sum(len(part.data) for part in indices.write(positions, size))
    stored = len(positions) / size
    entropy = -size * (stored * np.log2(stored) + (1 - stored) * np.log2(1 - stored))
    limit = 1.05 if share <= 0.5 else size / entropy + 0.001  # a bit for each place
    assert bits <= limit * entropy
    assert bits / len(positions) == pytest.approx(index_bits(stored), rel=0.01)


def test_a_gradient_travels_where_its_activation_did_without_indices() -> None:
    random = np.random.default_rng(0)
    activation, gradient = random.standard_normal((2, 64, 256)).astype(np.float32)
    forward, backward = TopK(0.1), Masked(0.1, Blocked(8))
    encoded = forward.encode(activation, Context(seed=1))
    read = np.empty_like(activation)
    mask = forward.decode(encoded.joined(), read, Context(seed=1))
    assert encoded.mask is not None and mask is not None
    np.testing.assert_array_equal(mask.positions, encoded.mask.positions)
    np.testing.assert_array_equal(mask.positions, np.flatnonzero(read))

    payload = backward.encode(gradient, Context(seed=2, mask=mask)).joined()
    headers, blocks = 16, -(-mask.count // 256)
    assert len(payload) == headers + blocks * (256 + 2)
    got = np.empty_like(gradient)
    backward.decode(payload, got, Context(seed=2, mask=encoded.mask))
    stored = read != 0
    assert not got[~stored].any()
    np.testing.assert_allclose(got[stored], gradient[stored], atol=0.03)


def test_a_gradient_that_the_mask_would_hide_stops_a_run_that_diverged() -> None:
    gradient = np.zeros((4, 100), np.float32)
    gradient[1, 1] = np.nan
    mask = Mask.of(np.array([0, 7]), 400)
    assert Masked().encode(gradient, Context(mask=mask)).exact == "not finite"


def test_a_mask_of_another_tensor_is_refused() -> None:
    with pytest.raises(CodecError, match="mask of an activation of 9"):
        Masked().encode(np.ones(10, np.float32), Context(mask=Mask.of(np.array([1]), 9)))


def test_masks_take_little_memory() -> None:
    assert Mask.of(np.arange(0, 10**6, 100), 10**6).nbytes == 40_000
    assert Mask.of(np.arange(0, 10**6, 3), 10**6).nbytes == 125_000
