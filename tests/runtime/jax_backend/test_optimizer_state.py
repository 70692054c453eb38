"""Optimizer state goes from JAX to JAX with the same bits, and to PyTorch and back."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from tests.support.by_hand import ByHand, State, numbers
from torch import nn

from farflung.errors import GraphError
from farflung.runtime.backend import AnyBackend
from farflung.runtime.jax_backend.arrays import DTYPES
from farflung.runtime.jax_backend.backend import JaxBackend
from farflung.runtime.jax_backend.optimizer import Stepper
from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Group, Lion, Optimizer
from farflung.runtime.optimizers.schedules import Constant
from farflung.runtime.optimizers.slots import EMA, STEP
from farflung.runtime.parity.steps import parameter_difference
from farflung.runtime.state import StateKey
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.optimizers.update import Update
from farflung.runtime.torch_backend.tensors import copied

torch.set_num_threads(1)
JAX, TORCH = JaxBackend(), TorchBackend()
DECLARED: dict[str, Optimizer] = {
    "adamw": AdamW(lr=0.01, weight_decay=0.1, schedule=Constant(warmup_steps=3)),
    "sgd": SGD(lr=0.05, weight_decay=0.1),
    "dampening": SGD(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov": SGD(lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    "lion": Lion(lr=0.001, weight_decay=0.1, groups=(Group("*bias", lr_scale=0.5),)),
    "adafactor": Adafactor(lr=0.05, weight_decay=0.1, no_decay="auto"),
    "averaged": AdamW(lr=0.01, weight_decay=0.1, ema=0.75),
    "averaged-sgd": SGD(lr=0.05, ema=0.25),
}
each_optimizer = pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
both_kinds_of_slots = pytest.mark.parametrize(
    "declared",
    [
        pytest.param(optimizer, id=name, marks=[] if name in ("adamw", "nesterov") else [pytest.mark.full])
        for name, optimizer in DECLARED.items()
    ],
)
"""For whole models; `test_slots_of_any_parameter_mean_the_same_to_both` has every optimizer."""
WAYS: dict[str, tuple[AnyBackend, AnyBackend]] = {"jax to torch": (JAX, TORCH), "torch to jax": (TORCH, JAX)}


BETWEEN_USES = (6,)
"""Cuts the model `shared-module` between the two uses of its shared layer."""


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 2])
@both_kinds_of_slots
def test_new_runners_of_the_same_cut_go_on_with_the_same_bits(declared: Optimizer, before: int) -> None:
    undisturbed, other = (ByHand("chain", JAX, 2, declared) for _ in range(2))
    undisturbed.steps(0, before)
    other.steps(7, 9)  # whatever it did before is gone
    state = undisturbed.state()
    other.restore(state)
    assert other.state() == state
    assert other.steps(before, before + 3) == undisturbed.steps(before, before + 3)
    assert other.state() == undisturbed.state()


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["shared-module", "batch-norm", "frozen", pytest.param("gpt-dropout", marks=pytest.mark.full)]
)
def test_new_runners_of_a_model_go_on_with_the_same_bits(name: str) -> None:
    cut = BETWEEN_USES if name == "shared-module" else 2
    undisturbed, other = (ByHand(name, JAX, cut, DECLARED["adamw"], samples=8) for _ in range(2))
    undisturbed.steps(0, 2)
    other.restore(undisturbed.state())
    assert other.steps(2, 4) == undisturbed.steps(2, 4)
    assert other.state() == undisturbed.state()


def require_close(ours: State, theirs: State) -> None:
    assert ours.keys() == theirs.keys()
    assert all(ours[key] == theirs[key] for key in ours if key.slot == STEP)
    pair = ({str(key): t for key, t in numbers(state).items()} for state in (ours, theirs))
    assert parameter_difference(*pair)[0] < 1e-4


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [0, 2])
@both_kinds_of_slots
def test_a_run_goes_on_in_another_framework_and_another_cut(
    declared: Optimizer, before: int, way: str
) -> None:
    here, there = WAYS[way]
    undisturbed, other = ByHand("chain", here, 2, declared), ByHand("chain", there, 3, declared)
    undisturbed.steps(0, before)
    state = undisturbed.state()
    other.restore(state)
    assert other.state() == state
    ours, theirs = other.steps(before, before + 3), undisturbed.steps(before, before + 3)
    assert ours == pytest.approx(theirs, rel=1e-5)
    require_close(other.state(), undisturbed.state())


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["batch-norm", "shared-module"])
def test_a_model_goes_on_in_another_framework(name: str, way: str) -> None:
    cut = BETWEEN_USES if name == "shared-module" else 2
    undisturbed, other = (ByHand(name, one, cut, DECLARED["nesterov"], samples=8) for one in WAYS[way])
    undisturbed.steps(0, 2)
    other.restore(undisturbed.state())
    ours, theirs = other.steps(2, 4), undisturbed.steps(2, 4)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_segment_that_borrows_a_parameter_reads_the_restored_one() -> None:
    """Before its first step it does not know whose the parameter is."""
    run, other = (ByHand("shared-module", JAX, BETWEEN_USES, DECLARED["sgd"]) for _ in range(2))
    held = [entry.name for runner in run.runners for entry in runner.segment.inputs if entry.trainable]
    assert len(held) > len(set(held))
    run.step(0)
    other.restore(run.state())
    assert other.step(1) == run.step(1)


SHAPES = [(7, 5), (64,), (), (0, 3)]


@pytest.mark.cases(8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("before", [0, 1, 3])
@each_optimizer
def test_slots_of_any_parameter_mean_the_same_to_both(declared: Optimizer, before: int, dtype: str) -> None:
    """Some have had no gradient yet, others fewer updates than steps."""
    draw = np.random.default_rng(3)
    begin = [draw.standard_normal(shape) for shape in SHAPES]
    stepper = Stepper(declared, [jax.ShapeDtypeStruct(shape, DTYPES[dtype]) for shape in SHAPES])  # type: ignore[index]
    theirs = [nn.Parameter(torch.tensor(array).to(getattr(torch, dtype))) for array in begin]
    ours = [_array(parameter, dtype) for parameter in theirs]
    update = Update(declared, theirs)
    for step in range(before + 3):
        if step == before:  # each goes on from what the other made
            mine = [stepper.slots(at) for at in range(len(SHAPES))]
            others = [update.slots(at) for at in range(len(SHAPES))]
            sizes = [
                [{slot: len(data) for slot, data in one.items()} for one in all] for all in (mine, others)
            ]
            assert sizes[0] == sizes[1]
            stepper.restore(others)
            update.restore(mine)
        has = [(step + at) % 3 > 0 for at in range(len(SHAPES))]
        for parameter, given in zip(theirs, has, strict=True):
            gradient = torch.tensor(draw.standard_normal(tuple(parameter.shape)) * 0.1).to(parameter.dtype)
            parameter.grad = gradient if given else None
        gradients = [_array(p if p.grad is None else p.grad, dtype) for p in theirs]
        update.step(step)
        ours = list(stepper.step(ours, gradients, has, step, 1.0))
    for at, (made, expected) in enumerate(zip(ours, theirs, strict=True)):
        reference = expected.detach().double().numpy()
        found = np.asarray(made).astype(np.float64)
        assert np.allclose(found, reference, rtol=0, atol=2e-2 if dtype == "bfloat16" else 2e-6)
        averages = [one[EMA] for one in (stepper.slots(at), update.slots(at)) if EMA in one]
        kinds = (np.frombuffer(data, DTYPES[dtype]).astype(np.float64) for data in averages)  # type: ignore[index]
        if declared.ema is not None:
            assert np.allclose(*kinds, rtol=0, atol=3e-2 if dtype == "bfloat16" else 2e-6)


def _array(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    data = np.frombuffer(copied(tensor.detach()), DTYPES[dtype])  # type: ignore[index]
    return data.reshape(tuple(tensor.shape))


def test_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    run = ByHand("chain", JAX, 1, DECLARED["adamw"])
    run.step(0)
    state = run.state()
    wrong = {k: memoryview(bytearray(d)) for k, d in state.items() if k != StateKey("layers.0.weight", STEP)}
    run.step(1)
    after = run.state()
    with pytest.raises(GraphError, match=r"optimizer state of 'layers.0.weight' does not fit AdamW"):
        run.runners[0].restore(wrong)
    assert run.state() == after
