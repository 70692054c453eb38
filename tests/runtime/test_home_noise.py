"""Noise on what leaves home: who adds it to what, how much, and that it repeats only where it should."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, workers

from farflung.planner import plan_graph
from farflung.plans import FEEDER, Edge, Placement, Plan
from farflung.runtime.home_noise import HomeNoise, noised
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Parcel
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.training import Training

torch.set_num_threads(1)
KEY, OTHER = bytes(32), bytes(range(32))
PLAN = Plan(
    [Placement(at, [worker], 10, 16, 1) for at, worker in enumerate(("home", "a", "b", "home"))],
    [Edge(0, FEEDER, 0, 8, False), *(Edge(at + 1, at, at + 1, 32, True) for at in range(3))],
    2,
    1,
    home=[0, 3],
)
TRAINING = Training(2, 2, 4, SGD(0.1), home_noise=0.5)


def noise(
    secret: bytes = KEY, worker: str = "home", training: Training = TRAINING, job: str = "job-1"
) -> HomeNoise:
    return HomeNoise(secret, worker, PLAN, training, job)


def memory(array: np.ndarray) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def parcel(
    unit: int = 3,
    microbatch: int = 1,
    source: int = 0,
    target: int = 1,
    value: int = 1,
    gradient: bool = False,
) -> Parcel[memoryview]:
    return Parcel(unit, microbatch, source, target, value, gradient, VALUE)


SHAPE = (2, 50, 1001)
VALUE = memory(np.random.default_rng(0).normal(0, 3, SHAPE).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("level", [0.1, 1.0])
def test_the_noise_has_the_deviation_and_the_form_of_gaussian_noise(dtype: str, level: float) -> None:
    clean = np.random.default_rng(1).normal(2, 3, 200_000).astype(dtype)
    found = np.frombuffer(noised(memory(clean), dtype, level, KEY, 20_000), dtype)  # type: ignore[arg-type]
    draws = (found.astype(np.float64) - clean) / (level * np.sqrt(np.square(clean, dtype=np.float64).mean()))
    assert abs(draws.mean()) < 0.01
    assert abs(draws.std() - 1) < 0.01
    assert abs((np.abs(draws) < 1).mean() - 0.6827) < 0.005
    assert abs((np.abs(draws) < 2).mean() - 0.9545) < 0.003
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01


def test_bfloat16_gets_noise_too() -> None:
    clean = torch.randn(50_000).bfloat16()
    data = memory(clean.view(torch.int16).numpy())
    found = torch.frombuffer(bytearray(noised(data, "bfloat16", 1.0, KEY, 500)), dtype=torch.bfloat16)
    assert abs(float((found.float() - clean.float()).std()) - 1) < 0.03


def test_integers_masks_and_zeros_stay_as_they_are() -> None:
    for array, dtype in (
        (np.arange(9), "int64"),
        (np.ones(9, np.bool_), "bool"),
        (np.zeros(9, np.float32), "float32"),
        (np.full(3, np.nan, np.float32), "float32"),
        (np.zeros(0, np.float32), "float32"),
    ):
        assert bytes(noised(memory(array), dtype, 1.0, KEY, max(1, len(array)))) == array.tobytes()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_not_finite_leaves_no_other_without_noise(dtype: str, bad: float) -> None:
    """A stranger can have one sample's gradient become NaN by the activation that it sends."""
    clean = np.random.default_rng(1).normal(2, 3, 5000).astype(dtype)
    clean[17] = bad
    found = np.frombuffer(noised(memory(clean), dtype, 0.5, KEY, 100), dtype)  # type: ignore[arg-type]
    sent = np.delete(clean, 17).astype(np.float64)
    noise = np.delete(found, 17) - sent
    assert np.isfinite(noise).all() and (noise != 0).mean() > 0.99
    assert abs(noise.std() / (0.5 * np.sqrt(np.square(sent).mean())) - 1) < 0.06
    assert found[17] == bad or np.isnan([found[17], bad]).all()


def test_a_row_whose_message_is_made_small_has_noise_of_its_own_size() -> None:
    """A stranger can have the gradients of all samples but one become zero by the activations it sends."""
    clean = np.zeros((64, 500), np.float32)
    clean[7] = np.random.default_rng(1).normal(0, 2, 500)
    found = np.frombuffer(noised(memory(clean), "float32", 0.5, KEY, 500), np.float32).reshape(64, 500)
    noise = found - clean
    assert abs(noise[7].std() / (0.5 * 2) - 1) < 0.15
    others = 0.5 * 2 / np.sqrt(64)  # the message's: rows of zeros do not show which they are
    assert abs(np.delete(noise, 7, axis=0).std() / others - 1) < 0.1


def test_squares_beyond_the_largest_number_leave_nothing_without_noise() -> None:
    clean = np.array([1e200, -2e200, 3.0, 1e-3] * 500)
    found = np.frombuffer(noised(memory(clean), "float64", 0.5, KEY, 1))
    assert (found != clean).all()


def test_equal_messages_have_the_same_noise_and_no_two_others_have() -> None:
    """Another unit, microbatch or reader of the same bits would else average the noise out."""
    first = bytes(noise().added(VALUE, "float32", SHAPE))
    assert bytes(noise().added(VALUE, "float32", SHAPE)) == first != bytes(VALUE)
    changed = memory(np.frombuffer(VALUE, np.float32) * np.float32(1.0001))
    noises = [np.frombuffer(first, np.float32) - np.frombuffer(VALUE, np.float32)]
    for value, of in (
        (VALUE, noise(OTHER)),  # another worker
        (VALUE, noise(job="job-2")),
        (changed, noise()),  # other numbers in the same place: the difference would have no noise
    ):
        got = np.frombuffer(of.added(value, "float32", SHAPE), np.float32)
        noises.append(got - np.frombuffer(value, np.float32))
    close = np.corrcoef(np.stack(noises)) - np.eye(len(noises))
    assert np.abs(close).max() < 0.02


def test_a_home_worker_adds_noise_to_what_goes_to_strangers_alone() -> None:
    assert noise().covers(parcel())
    assert noise().covers(parcel(source=3, target=2, value=3, gradient=True))
    assert not noise().covers(parcel(target=3))  # home, too
    assert not noise().covers(parcel(target=FEEDER))
    assert not noise().covers(parcel()._replace(payload=None))
    assert not noise(worker="a").covers(parcel(source=1, target=2))
    without = msgspec.structs.replace(TRAINING, home_noise=0.0)
    assert not noise(training=without).covers(parcel())


def run(level: float, home: bool = True) -> tuple[dict[str, list[torch.Tensor]], list[float], torch.Tensor]:
    """What each worker receives in two steps, the losses, and a parameter after them."""
    module, graph = captured(case("gpt"), 2)
    job = plan_graph(graph, 2, 2, workers(3))
    names = ("h", "stranger", "h")
    placements = [
        msgspec.structs.replace(p, workers=[name]) for p, name in zip(job.plan.placements, names, strict=True)
    ]
    plan = msgspec.structs.replace(job.plan, placements=placements, home=[0, 2] if home else [])
    training = Training(2, 2, 2, SGD(0.1), seed=5, home_noise=level)
    state = named_state(copy.deepcopy(module), graph)
    pipeline = InProcessPipeline(graph, plan, received(job.programs, 2), state, training)
    seen: dict[str, list[torch.Tensor]] = {"h": [], "stranger": []}
    for worker, executor in pipeline._executors.items():
        receive = executor.receive

        def tapped(one: Parcel[torch.Tensor], worker: str = worker, receive: Any = receive) -> None:
            if one.source != FEEDER and one.payload is not None:
                seen[worker].append(one.payload.detach().clone())
            receive(one)

        executor.receive = tapped  # type: ignore[method-assign]
    losses = []
    for unit in range(2):
        shares = pipeline.run(unit, microbatches(case("gpt"), 2, 2, unit))
        losses.append(sum(share.loss for share in shares))
        pipeline.decide(unit, 1.0)
    return seen, losses, next(iter(state.values())).detach().clone()


def test_strangers_receive_noise_and_home_receives_what_they_computed_of_it() -> None:
    clean, losses, trained = run(0.0)
    _, same_losses, same_trained = run(0.3, home=False)
    assert losses == same_losses and torch.equal(trained, same_trained)
    noisy, noisy_losses, _ = run(0.3)
    again, again_losses, _ = run(0.3)
    assert noisy_losses == again_losses != losses
    first, blurred = clean["stranger"][0], noisy["stranger"][0]
    assert torch.equal(blurred, again["stranger"][0])
    squares = torch.maximum(first.square().mean(-1), first.square().mean())  # of rows, or of all
    found = (blurred - first).square().mean().sqrt() / squares.mean().sqrt()
    assert abs(float(found) - 0.3) < 0.03
    assert len(noisy["h"]) == len(clean["h"]) > 0
