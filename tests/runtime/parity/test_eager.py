"""Eager training, the reference of a run, seeds the random ops that a captured graph has, and no others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from farflung.runtime.parity.eager import SeededRandomOps


def drawn(*attentions: dict[str, float | bool]) -> Tensor:
    """The masks of two dropouts after calls of attention, with numbers for as many random ops as draw."""
    query = torch.ones(1, 1, 4, 8)
    draws = sum(bool(given.get("dropout_p")) for given in attentions)
    with SeededRandomOps(0, [*range(100, 100 + draws), 7, 8]):
        for given in attentions:
            F.scaled_dot_product_attention(query, query, query, **given)  # type: ignore[arg-type]
        return torch.cat([F.dropout(torch.ones(64), 0.5) for _ in range(2)])


@pytest.mark.parametrize("causal", [{}, {"is_causal": True}], ids=["all see all", "causal"])
@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.0}, {"dropout_p": 0.3}], ids=str)
def test_attention_takes_a_number_only_if_it_has_dropout(
    causal: dict[str, bool], dropout: dict[str, float]
) -> None:
    assert torch.equal(drawn(), drawn({**causal, **dropout}))


def turned(values: Tensor) -> Tensor:
    """The same values, with memory that runs along columns."""
    return values.t().contiguous().t()


def test_numbers_are_drawn_in_rows_whatever_the_memory() -> None:
    def dropped(values: Tensor) -> Tensor:
        with SeededRandomOps(0, [7]):
            return F.dropout(values, 0.5)

    values = torch.randn(4, 16)
    assert not turned(values).is_contiguous()
    assert torch.equal(dropped(values), dropped(turned(values)))
