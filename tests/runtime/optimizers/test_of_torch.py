"""Someone who gives one of torch's optimizers reads what to declare instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.localhost.jobs import job
from torch import nn

import farflung
from farflung.errors import JobError
from farflung.runtime.optimizers.of_torch import declared_instead

LAYER = nn.Linear(2, 2)
CASES: list[tuple[Any, str]] = [
    (torch.optim.AdamW(LAYER.parameters(), lr=3e-4), "farflung.AdamW(lr=0.0003)"),
    (
        torch.optim.AdamW(LAYER.parameters(), lr=torch.tensor(0.5), betas=(0.9, 0.95), weight_decay=0.1),
        "farflung.AdamW(lr=0.5, betas=(0.9, 0.95), weight_decay=0.1)",
    ),
    (torch.optim.Adam(LAYER.parameters(), lr=1e-3), "farflung.AdamW(lr=0.001, weight_decay=0)"),
    (
        torch.optim.SGD(LAYER.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        "farflung.SGD(lr=0.1, momentum=0.9, nesterov=True)",
    ),
    (torch.optim.Adafactor(LAYER.parameters(), lr=0.01), "farflung.Adafactor(lr=0.01)"),
    (
        torch.optim.Muon([LAYER.weight], lr=0.02, momentum=0.9),
        "farflung.Muon(lr=0.02, momentum=0.9, others=farflung.AdamW(lr=...))",
    ),
    (
        torch.optim.Muon([LAYER.weight], lr=0.02, adjust_lr_fn="match_rms_adamw"),
        "farflung.Muon(lr=0.02, adjust_lr_fn='match_rms_adamw', others=farflung.AdamW(lr=...))",
    ),
    (
        torch.optim.SGD([{"params": [LAYER.weight]}, {"params": [LAYER.bias], "lr": 1.0}], lr=0.1),
        "farflung.SGD(lr=0.1, groups=(farflung.Group(...), ...))",
    ),
]


@pytest.mark.parametrize(("given", "declared"), CASES)
def test_the_declaration_has_the_numbers_of_what_was_given(given: Any, declared: str) -> None:
    assert declared_instead(given) == declared


@pytest.mark.parametrize(
    "given",
    [
        torch.optim.Adam(LAYER.parameters(), lr=1e-3, weight_decay=0.1),
        torch.optim.AdamW(LAYER.parameters(), lr=1e-3, amsgrad=True),
        torch.optim.RMSprop(LAYER.parameters(), lr=1e-3),
    ],
)
def test_an_optimizer_without_an_equal_one_gets_the_list_of_all(given: Any) -> None:
    declared = declared_instead(given)
    assert declared is not None and "Lion" in declared


def test_a_job_with_one_of_torch_is_refused_in_one_line() -> None:
    for given, declared in CASES[:1]:
        with pytest.raises(JobError) as raised:
            job(optimizer=given)
        assert "optimizer is a torch.optim.Optimizer (AdamW)" in str(raised.value)
        assert str(raised.value).endswith(f"write optimizer={declared}") and "\n" not in str(raised.value)
    assert declared_instead(farflung.AdamW(lr=1.0)) is None and declared_instead(0.1) is None
