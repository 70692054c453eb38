"""Forward passes that assert. pytest rewrites `assert` in test modules, and so not here."""

from __future__ import annotations

import torch
from tests.opdag.bodies import Base, error
from torch import Tensor


def truth_of_a_tensor(self: Base, x: Tensor, y: Tensor) -> Tensor:
    assert torch.isfinite(x).all()
    return error(self.first(x), y)


def number_with_words(self: Base, x: Tensor, y: Tensor) -> Tensor:
    assert torch.isfinite(x).all().item(), f"found {x.shape}"
    return error(self.first(x), y)


def over_lines(self: Base, x: Tensor, y: Tensor) -> Tensor:
    assert torch.allclose(
        x,
        x.clone(),
    ), "they differ"
    return error(self.first(x), y)


def decided(self: Base, x: Tensor, y: Tensor) -> Tensor:
    is_large = (x > 3).any().item()
    assert not is_large
    return error(self.first(x), y)


def branch_beside(self: Base, x: Tensor, y: Tensor) -> Tensor:
    if (x > 3).any():
        raise AssertionError
    return error(self.first(x), y)


def kept(self: Base, x: Tensor, y: Tensor) -> Tensor:
    largest = x.abs().max().item()
    assert largest
    return error(self.first(x) * largest, y)
