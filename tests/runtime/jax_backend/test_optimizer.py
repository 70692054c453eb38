from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from torch import nn

from farflung.runtime.jax_backend.optimizer import Stepper
from farflung.runtime.optimizer import SGD, AdamW, Constant, Optimizer, WarmupCosine
from farflung.runtime.torch_backend.optimizer import build, set_learning_rate

STEPS = 100
SHAPES = [(7, 5), (64,), ()]
DECLARED: list[Optimizer] = [
    AdamW(lr=1e-2),
    AdamW(lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3, schedule=WarmupCosine(10, 90)),
    AdamW(lr=0.1, weight_decay=0.0, schedule=Constant(warmup_steps=5)),
    SGD(lr=0.05),
    SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    SGD(lr=0.02, momentum=0.8, nesterov=True, weight_decay=0.1, schedule=WarmupCosine(5, 60, 0.2)),
    SGD(lr=0.02, momentum=0.9, dampening=0.3),
]


def both(
    declared: Optimizer, skipped: frozenset[tuple[int, int]] = frozenset(), scale: float = 1.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Parameters after the same steps with the same gradients; `skipped` have none: (step, parameter)."""
    draw = np.random.default_rng(3)
    begin = [draw.standard_normal(shape, np.float32) for shape in SHAPES]
    theirs = [nn.Parameter(torch.tensor(array)) for array in begin]
    built = build(declared, theirs)
    stepper = Stepper(declared, [jax.ShapeDtypeStruct(shape, np.float32) for shape in SHAPES])
    ours: list[object] = [array.copy() for array in begin]
    for step in range(STEPS):
        gradients = [draw.standard_normal(shape, np.float32) * 0.1 for shape in SHAPES]
        has = [(step, at) not in skipped for at in range(len(SHAPES))]
        for at, parameter in enumerate(theirs):
            parameter.grad = torch.tensor(gradients[at]).mul_(scale) if has[at] else None
        set_learning_rate(built, declared, step)
        built.step()
        ours = list(stepper.step(ours, gradients, has, step, scale))
    return [(np.asarray(a), p.detach().numpy()) for a, p in zip(ours, theirs, strict=True)]


def require_equal(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        scale = max(float(np.abs(theirs).max()), 1e-3)
        assert float(np.abs(ours - theirs).max()) / scale < 1e-6


@pytest.mark.parametrize("declared", DECLARED, ids=lambda d: type(d).__name__)
def test_a_hundred_steps_end_where_torchs_do(declared: Optimizer) -> None:
    require_equal(both(declared))


@pytest.mark.parametrize("declared", [DECLARED[0], DECLARED[4]], ids=["adamw", "sgd"])
def test_parameters_without_a_gradient_stay_and_count_their_own_steps(declared: Optimizer) -> None:
    skipped = frozenset({(0, 0), (1, 0), (7, 1), (8, 1), (50, 2)})
    require_equal(both(declared, skipped))


def test_gradients_are_scaled_before_they_count() -> None:
    require_equal(both(DECLARED[4], scale=0.37))
