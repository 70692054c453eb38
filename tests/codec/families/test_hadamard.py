from __future__ import annotations

import numpy as np
import pytest

from farflung.codec import Blocked, Context, Hadamard
from farflung.codec.base import Codec
from farflung.codec.families.hadamard import quantiser


def mean_of_reads(codec: Codec, array: np.ndarray, count: int) -> np.ndarray:
    total = np.zeros(array.shape)
    for seed in range(count):
        read = np.empty_like(array)
        codec.decode(codec.encode(array, Context(seed)).joined(), read, Context(seed))
        total += read
    return total / count


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_mean_over_fresh_signs_is_the_tensor_itself(bits: int) -> None:
    array = np.random.default_rng(0).laplace(size=(4, 128)).astype(np.float32)
    codec, draws = Hadamard(bits), 400  # type: ignore[arg-type]
    error = np.linalg.norm(mean_of_reads(codec, array, draws) - array) / np.linalg.norm(array)
    # Of unbiased estimates, independent of each other, the mean's error falls with the root of their number.
    assert error < 1.5 * codec.declared().usual_error / draws**0.5 + 2**-9


def test_under_fixed_signs_the_same_error_is_made_again() -> None:
    array = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    codec = Hadamard(2, fresh=False)
    one, many = mean_of_reads(codec, array, 1), mean_of_reads(codec, array, 50)
    np.testing.assert_allclose(one, many, rtol=1e-6)


def test_the_least_error_is_less_than_that_of_the_unbiased_scale() -> None:
    array = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    errors = [
        np.linalg.norm(mean_of_reads(Hadamard(2, unbiased=unbiased), array, 1) - array)
        for unbiased in (True, False)
    ]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("codec", [Blocked(4, stochastic=True), Blocked(8, stochastic=True)])
def test_the_mean_over_stochastic_roundings_is_the_tensor_itself(codec: Blocked) -> None:
    array = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    error = np.linalg.norm(mean_of_reads(codec, array, 400) - array) / np.linalg.norm(array)
    assert error < 1.3 * codec.declared().usual_error / 20


def test_decoding_does_not_depend_on_the_order_of_sums() -> None:
    """Both ends must read the same bits, and matrix products add up in another order on another machine."""
    levels = quantiser(4)
    planes = levels.planes(1280)
    planes[0][:] = np.random.default_rng(0).integers(0, 256, len(planes[0]))
    numbers = np.empty(1280, np.float32)
    levels.read(planes, 0, numbers)
    assert (numbers == np.rint(numbers)).all()
    assert np.abs(numbers).max() * 128 < 2**24


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_levels_are_the_nearest_ones(bits: int) -> None:
    levels = quantiser(bits)
    numbers = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    planes, chosen = levels.planes(len(numbers)), np.empty_like(numbers)
    written = np.clip(numbers, -8, 8) * levels.fine
    levels.write(written, planes, 0)
    levels.read(planes, 0, chosen)
    np.testing.assert_array_equal(written, chosen)
    distortion = np.mean((numbers - chosen / levels.unit) ** 2)
    there_are = np.unique(chosen) / levels.unit
    nearest = there_are[np.abs(numbers[:, None] - there_are).argmin(axis=1)]
    assert distortion <= 1.03 * np.mean((numbers - nearest) ** 2)
    assert distortion == pytest.approx(levels.distortion, rel=0.05)
