"""Bit sums: one flipped bit is always seen, where sums of squares may not see it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farflung.runtime.bit_sums import BITS, bit_sum
from farflung.runtime.torch_backend.optimizers.update import square_sums, words_of

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@given(st.sampled_from(sorted(WORDS)), st.data())
def test_one_flipped_bit_changes_it(size: int, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.integers(0, 2 ** (8 * size) - 1), min_size=1, max_size=20))
    array = np.array(words, WORDS[size])
    at, bit = data.draw(st.integers(0, len(words) - 1)), data.draw(st.integers(0, 8 * size - 1))
    other = array.copy()
    other[at] ^= WORDS[size](1 << bit)
    assert 0 <= bit_sum(array) < 2**BITS
    assert bit_sum(array) != bit_sum(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_does_not_depend_on_how_a_tensor_lies_in_memory(dtype: torch.dtype) -> None:
    tensor = torch.arange(12, dtype=dtype).reshape(3, 4)
    assert bit_sum(words_of(tensor.t())) == bit_sum(words_of(tensor))
    assert bit_sum(words_of(tensor.t().contiguous())) == bit_sum(words_of(tensor))
    assert bit_sum(words_of(torch.zeros(0, dtype=dtype))) == 0


def test_it_sees_a_low_bit_that_sums_of_squares_do_not() -> None:
    gradient = torch.tensor([1.0, 3e-6])
    other = gradient.clone()
    other.view(torch.int32)[1] ^= 1
    assert square_sums([gradient]) == square_sums([other]) and not torch.equal(gradient, other)
    assert bit_sum(words_of(gradient)) != bit_sum(words_of(other))
