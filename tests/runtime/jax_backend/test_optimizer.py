from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim._muon import _zeropower_via_newtonschulz

from farflung.runtime.jax_backend.optimizer import Stepper
from farflung.runtime.jax_backend.rules import orthogonal
from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Group, Lion, Muon, Optimizer
from farflung.runtime.optimizers.schedules import Constant, WarmupCosine
from farflung.runtime.parity.optimizers import build, set_learning_rate

STEPS = 100
SHAPES = [(7, 5), (64,), (), (6, 11), (3, 4, 5)]
NAMES = ["a.weight", "a.bias", "scale", "b.weight", "c.weight"]
DECLARED: list[Optimizer] = [
    AdamW(lr=1e-2),
    AdamW(lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3, schedule=WarmupCosine(10, 90)),
    AdamW(lr=0.1, weight_decay=0.0, schedule=Constant(warmup_steps=5)),
    SGD(lr=0.05),
    SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    SGD(lr=0.02, momentum=0.8, nesterov=True, weight_decay=0.1, schedule=WarmupCosine(5, 60, 0.2)),
    SGD(lr=0.02, momentum=0.9, dampening=0.3),
    AdamW(lr=1e-2, weight_decay=0.3, no_decay="auto"),
    Lion(lr=1e-3, weight_decay=0.3, schedule=Constant(warmup_steps=5)),
    Adafactor(lr=0.05, weight_decay=0.1),
    Adafactor(lr=0.5, eps=(1e-4, 1e-2), d=2.0, beta2_decay=-0.5),
]
MUON: list[Optimizer] = [
    Muon(lr=0.02, others=AdamW(lr=0.01, weight_decay=0.1)),
    Muon(lr=0.02, others=AdamW(lr=0.01), nesterov=False, adjust_lr_fn="match_rms_adamw", ns_steps=3),
]


def both(
    declared: Optimizer, skipped: frozenset[tuple[int, int]] = frozenset(), scale: float = 1.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Parameters after the same steps with the same gradients; `skipped` have none: (step, parameter)."""
    draw = np.random.default_rng(3)
    begin = [draw.standard_normal(shape, np.float32) for shape in SHAPES]
    theirs = [nn.Parameter(torch.tensor(array)) for array in begin]
    built = build(declared, zip(NAMES, theirs, strict=True))
    stepper = Stepper(declared, [jax.ShapeDtypeStruct(shape, np.float32) for shape in SHAPES], NAMES)
    ours: list[object] = [array.copy() for array in begin]
    for step in range(STEPS):
        gradients = [draw.standard_normal(shape, np.float32) * 0.1 for shape in SHAPES]
        has = [(step, at) not in skipped for at in range(len(SHAPES))]
        for at, parameter in enumerate(theirs):
            parameter.grad = torch.tensor(gradients[at]).mul_(scale) if has[at] else None
        set_learning_rate(built, step)
        built.step()
        ours = list(stepper.step(ours, gradients, has, step, scale))
    return [(np.asarray(a), p.detach().numpy()) for a, p in zip(ours, theirs, strict=True)]


def require_equal(pairs: list[tuple[np.ndarray, np.ndarray]], tolerance: float = 1e-6) -> None:
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        scale = max(float(np.abs(theirs).max()), 1e-3)
        assert float(np.abs(ours - theirs).max()) / scale < tolerance


@pytest.mark.parametrize("declared", DECLARED, ids=lambda d: type(d).__name__)
def test_a_hundred_steps_end_where_torchs_do(declared: Optimizer) -> None:
    require_equal(both(declared))


@pytest.mark.parametrize("declared", MUON, ids=["original", "match_rms_adamw"])
def test_a_hundred_steps_of_muon_end_where_torchs_do_but_for_bfloat16(declared: Optimizer) -> None:
    """The iteration runs in bfloat16, whose roundings differ; what AdamW updates is as close as ever."""
    pairs = both(declared)
    is_matrix = [len(shape) == 2 for shape in SHAPES]
    require_equal([pair for pair, matrix in zip(pairs, is_matrix, strict=True) if not matrix])
    require_equal([pair for pair, matrix in zip(pairs, is_matrix, strict=True) if matrix], 0.02)


def test_the_orthogonal_of_a_matrix_is_torchs_but_for_bfloat16() -> None:
    draw = np.random.default_rng(3)
    for shape in ((16, 16), (40, 8), (8, 40), (1, 5)):
        matrix = draw.standard_normal(shape).astype(np.float32)
        ours = np.asarray(orthogonal(Muon(lr=0.1, others=AdamW(lr=0.1)), jnp.asarray(matrix)), np.float32)
        theirs = _zeropower_via_newtonschulz(torch.tensor(matrix), (3.4445, -4.7750, 2.0315), 5, 1e-7)
        assert np.abs(ours - theirs.float().numpy()).max() < 0.02
        lengths = np.linalg.svd(ours, compute_uv=False)
        assert lengths.min() > 0.4 and lengths.max() < 1.4


def test_parameters_go_by_their_names() -> None:
    groups = (Group("a.*", lr_scale=0.1), Group(("scale", "b.*"), weight_decay=0.5))
    require_equal(both(AdamW(lr=1e-2, no_decay=("*.bias", "c.*"), groups=groups)))


@pytest.mark.parametrize(
    "declared", [DECLARED[0], DECLARED[4], DECLARED[9]], ids=["adamw", "sgd", "adafactor"]
)
def test_parameters_without_a_gradient_stay_and_count_their_own_steps(declared: Optimizer) -> None:
    skipped = frozenset({(0, 0), (1, 0), (7, 1), (8, 1), (50, 2)})
    require_equal(both(declared, skipped))


def test_gradients_are_scaled_before_they_count() -> None:
    require_equal(both(DECLARED[4], scale=0.37))
