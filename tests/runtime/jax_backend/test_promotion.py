from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from farflung.runtime.jax_backend.arrays import DTYPES
from farflung.runtime.jax_backend.promotion import result_type

NUMBERS = [True, 2, 0.5]
KINDS: list[Any] = [*NUMBERS, *((name, shape) for name in DTYPES for shape in ((), (2,)))]


def tensor(kind: Any) -> Any:
    if not isinstance(kind, tuple):
        return kind
    return torch.zeros(kind[1], dtype=getattr(torch, kind[0]))


def array(kind: Any) -> Any:
    if not isinstance(kind, tuple):
        return kind
    return jnp.zeros(kind[1], DTYPES[kind[0]])


@pytest.mark.parametrize("first", KINDS, ids=str)
def test_two_operands_have_torchs_common_type(first: Any) -> None:
    for second in KINDS:
        if isinstance(first, tuple) or isinstance(second, tuple):
            theirs = str(torch.result_type(tensor(first), tensor(second))).removeprefix("torch.")
            assert result_type(array(first), array(second)) == DTYPES[theirs], second  # type: ignore[index]


def test_three_operands_are_joined_class_by_class() -> None:
    """As in `clamp`, where two numbers may meet a tensor."""
    for name in DTYPES:
        for numbers in combinations_with_replacement(NUMBERS, 2):
            both = result_type(jnp.zeros(2, DTYPES[name]), *numbers)
            alone = [result_type(jnp.zeros(2, DTYPES[name]), number) for number in numbers]
            assert both in alone
            assert np.dtype(both).itemsize >= max(one.itemsize for one in alone) or both == np.float32
