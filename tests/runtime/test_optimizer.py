from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farflung.runtime.optimizer import (
    SGD,
    AdamW,
    Constant,
    Optimizer,
    WarmupCosine,
    learning_rate,
)
from farflung.runtime.torch_backend.optimizer import build, set_learning_rate

rates = st.floats(0, 10)
below_one = st.floats(0, 1, exclude_max=True)
schedules = st.builds(Constant, st.integers(0, 100)) | st.builds(
    WarmupCosine, st.integers(0, 100), st.integers(101, 1000), st.floats(0, 1)
)
optimizers = st.builds(
    AdamW, lr=rates, betas=st.tuples(below_one, below_one), weight_decay=rates, schedule=schedules
) | st.builds(SGD, lr=rates, momentum=below_one, dampening=below_one, weight_decay=rates, schedule=schedules)


@settings(max_examples=50)
@given(optimizers)
def test_a_declaration_travels_unchanged(optimizer: Optimizer) -> None:
    wire = msgspec.msgpack.encode(optimizer)
    assert msgspec.msgpack.decode(wire, type=Optimizer) == optimizer


@settings(max_examples=50)
@given(schedules, st.integers(0, 5000))
def test_no_schedule_leaves_the_declared_rate_behind(schedule: Constant | WarmupCosine, step: int) -> None:
    least = schedule.minimum_ratio if isinstance(schedule, WarmupCosine) else 1.0
    ratio = schedule.ratio(step)
    assert 0 < ratio <= 1 or least == 0
    if step >= schedule.warmup_steps:
        assert ratio >= least - 1e-12


def test_a_constant_rate_rises_and_stays() -> None:
    optimizer = AdamW(lr=0.3, schedule=Constant(warmup_steps=2))
    assert [learning_rate(optimizer, step) for step in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.3])
    assert learning_rate(AdamW(lr=0.3), 0) == 0.3


def test_a_cosine_rises_falls_to_its_minimum_and_stays_there() -> None:
    optimizer = SGD(lr=1.0, schedule=WarmupCosine(warmup_steps=4, total_steps=104, minimum_ratio=0.2))
    rate = [learning_rate(optimizer, step) for step in range(200)]
    assert rate[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rate[54] == pytest.approx(0.6)
    assert rate[104:] == pytest.approx([0.2] * 96)
    assert all(after <= before for before, after in pairwise(rate[4:]))


CASES: list[tuple[Optimizer, Any, dict[str, Any]]] = [
    (AdamW(lr=0.1), torch.optim.AdamW, {"lr": 0.1}),
    (
        AdamW(lr=0.1, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.5),
        torch.optim.AdamW,
        {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.5},
    ),
    (SGD(lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    (
        SGD(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    ),
]


@pytest.mark.parametrize(("declared", "of_torch", "numbers"), CASES)
def test_built_optimizers_step_like_torchs_own(
    declared: Optimizer, of_torch: Any, numbers: dict[str, Any]
) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    steppers = [build(declared, [ours]), of_torch([theirs], **numbers)]
    for step in range(5):
        for parameter in (ours, theirs):
            parameter.grad = torch.linspace(step, 1, 7)
        for stepper in steppers:
            stepper.step()
    assert torch.equal(ours, theirs)


def test_the_built_optimizer_follows_the_schedule() -> None:
    declared = AdamW(lr=1.0, schedule=Constant(warmup_steps=3))
    built = build(declared, [nn.Parameter(torch.zeros(1))])
    assert built.param_groups[0]["lr"] == 0.25
    set_learning_rate(built, declared, 2)
    assert built.param_groups[0]["lr"] == 0.75


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.1", None, True])
@pytest.mark.parametrize("field", ["lr", "eps", "weight_decay"])
def test_numbers_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be a finite number, at least 0, found"):
        AdamW(**({"lr": 0.1} | {field: value}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamW(lr=0.1, betas=(0.9, 1.0)), r"betas must be .* at least 0 and below 1, found 1\.0"),
        (lambda: AdamW(lr=0.1, betas=0.9), r"betas must be a tuple of two numbers, found 0\.9"),  # type: ignore[arg-type]
        (lambda: AdamW(lr=0.1, schedule="cosine"), r"schedule must be farflung\.Constant"),  # type: ignore[arg-type]
        (lambda: SGD(lr=0.1, momentum=1.0), "momentum must be .* below 1"),
        (lambda: SGD(lr=0.1, nesterov=True), "nesterov needs a momentum"),
        (lambda: SGD(lr=0.1, nesterov=True, momentum=0.9, dampening=0.1), "nesterov needs a momentum"),
        (lambda: Constant(warmup_steps=-1), "warmup_steps must be a whole number from 0"),
        (lambda: WarmupCosine(10, 10), "total_steps must be a whole number from 11"),
        (lambda: WarmupCosine(1, 10, 1.5), "minimum_ratio must be .* at most 1"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "AdamW", "lr": -1.0},
        {"type": "AdamW", "lr": math.nan},
        {"type": "AdamW", "lr": 0.1, "betas": [0.9]},
        {"type": "AdamW", "lr": 0.1, "fused": True},
        {"type": "Lion", "lr": 0.1},
        {"type": "SGD", "lr": 0.1, "schedule": {"type": "WarmupCosine", "warmup_steps": 5, "total_steps": 5}},
        {"type": "SGD", "lr": 0.1, "schedule": {"type": "Constant", "warmup_steps": 2**60}},
    ],
)
def test_optimizers_from_a_peer_are_held_to_the_same_ranges(sent: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Optimizer)
