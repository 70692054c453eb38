"""One segment at a time, driven by hand: tapes, the two parts of a backward pass, buffers, seeds."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, planned

from farflung.opdag.segment import Segment
from farflung.runtime.jax_backend.backend import JaxBackend
from farflung.runtime.jax_backend.background_compile import Cancelled
from farflung.runtime.jax_backend.segment import JaxSegment
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import StateKey
from farflung.runtime.training import Training
from farflung.schedule import Unit

torch.set_num_threads(1)
SAMPLES, MICROBATCHES = 2, 3
UNIT = Unit(0, True, 0, MICROBATCHES)
EVALUATION = Unit(1, False, 0, 1)
TRAINING = Training(5, MICROBATCHES, SAMPLES, SGD(lr=0.1), seed=3)
BACKEND = JaxBackend()

Arrays = dict[str, np.ndarray]


@cache
def definitions(name: str) -> tuple[Segment, ...]:
    _, graph = captured(case(name), SAMPLES)
    return tuple(planned(graph, TRAINING, 2).segments)


def state_and_all(name: str) -> tuple[Segment, Arrays, Training]:
    """What a runner of a model's first segment is made of."""
    module, graph = captured(case(name), SAMPLES)
    state = {n: t.detach().numpy().copy() for n, t in named_state(module, graph).items()}
    return definitions(name)[0], state, TRAINING


class Pair:
    """The two segments of a model."""

    def __init__(self, name: str, training: Training = TRAINING, recompute: bool = False) -> None:
        module, graph = captured(case(name), SAMPLES)
        state = {n: t.detach().numpy().copy() for n, t in named_state(module, graph).items()}
        self.names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self.definitions = definitions(name)
        self.first, self.second = (BACKEND.runner(s, state, training, recompute) for s in self.definitions)
        self.batches = microbatches(case(name), SAMPLES, MICROBATCHES, 0)

    def fed(self, number: int, microbatch: int) -> dict[int, Any]:
        entries = [e for e in self.definitions[number].inputs if e.kind == "input"]
        return {e.value: self.batches[microbatch][self.names[e.value]].numpy() for e in entries}

    def forward(self, microbatch: int, unit: Unit = UNIT) -> dict[int, Any]:
        sent = self.first.forward(unit, microbatch, self.fed(0, microbatch))
        received = {value: sent[value] for value in self.definitions[1].receives}
        self.second.forward(unit, microbatch, self.fed(1, microbatch) | received)
        return sent

    def backward(self, microbatch: int) -> dict[int, Any]:
        gradients: dict[int, Any] = {}
        self.second.backward(UNIT, microbatch, {}, gradients.__setitem__)
        self.first.backward(UNIT, microbatch, gradients, lambda value, gradient: None)
        return gradients

    def accumulate(self, microbatch: int) -> None:
        self.second.accumulate(UNIT, microbatch)
        self.first.accumulate(UNIT, microbatch)

    def step(self, microbatch: int = 0) -> None:
        self.forward(microbatch)
        self.backward(microbatch)
        self.accumulate(microbatch)

    def apply(self, scale: float = 1.0) -> None:
        self.first.apply(0, scale)
        self.second.apply(0, scale)

    def gradients(self) -> Arrays:
        return copies(self.first.gradients() | self.second.gradients())

    def state(self) -> Arrays:
        return copies(self.first.state() | self.second.state())


def copies(arrays: dict[str, Any]) -> Arrays:
    return {name: np.array(array, copy=True) for name, array in arrays.items()}


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_tapes_are_kept_for_each_microbatch() -> None:
    together, apart = Pair("chain"), Pair("chain")
    for microbatch in range(MICROBATCHES):
        together.forward(microbatch)
    for microbatch in range(MICROBATCHES):
        together.backward(microbatch)
    for microbatch in range(MICROBATCHES):
        together.accumulate(microbatch)
        apart.step(microbatch)
    assert same(together.gradients(), apart.gradients())
    assert together.second.take_loss() == apart.second.take_loss() != 0.0
    assert together.second.take_loss() == 0.0


def test_each_received_value_gets_one_gradient_and_parameters_wait() -> None:
    pair = Pair("chain")
    pair.forward(0)
    sent: list[int] = []
    pair.second.backward(UNIT, 0, {}, lambda value, gradient: sent.append(value))
    assert sent == pair.definitions[1].receives == pair.definitions[1].differentiable
    assert not pair.second.gradients()
    pair.second.accumulate(UNIT, 0)
    assert set(pair.second.gradients()) == set(pair.definitions[1].owned)


def test_both_parts_of_a_backward_pass_run_each_product_once() -> None:
    pair = Pair("chain")
    layers = sum(node.op == "aten.linear.default" for node in pair.definitions[1].nodes)
    parts = pair.second._train.get().backward_parts
    assert [[e.primitive.name for e in part].count("dot_general") for part in parts] == [layers, layers]


def test_apply_scales_the_gradients_once() -> None:
    full, half = Pair("chain"), Pair("chain")
    before = full.state()
    for pair, scale in ((full, 1.0), (half, 0.5)):
        pair.step()
        pair.apply(scale)
    full_after, half_after = full.state(), half.state()
    for name, array in before.items():
        moved, half_moved = full_after[name] - array, half_after[name] - array
        assert np.abs(moved).max() > 0
        assert np.allclose(moved, 2 * half_moved, rtol=1e-3, atol=1e-7)


def test_the_arrays_that_a_segment_was_given_are_never_written() -> None:
    module, graph = captured(case("chain"), SAMPLES)
    given = {n: t.detach().numpy().copy() for n, t in named_state(module, graph).items()}
    aligned = {}
    for name, array in given.items():
        buffer = BACKEND.allocate(array.nbytes)
        buffer[:] = array.tobytes()
        aligned[name] = np.frombuffer(buffer, array.dtype).reshape(array.shape)
    pair = Pair("chain")
    pair.first, pair.second = (JaxSegment(s, aligned, TRAINING) for s in pair.definitions)
    for _ in range(3):
        pair.step()
        pair.apply()
    assert same(aligned, given)
    assert not same(pair.state(), given)


@pytest.mark.slow
def test_a_dropped_step_leaves_nothing() -> None:
    pair, fresh = Pair("batch-norm"), Pair("batch-norm")
    before = pair.state()
    pair.forward(0)
    pair.forward(1)
    pair.backward(0)
    pair.accumulate(0)
    for segment in (pair.first, pair.second):
        segment.drop()
    assert same(pair.state(), before)
    assert not pair.gradients()
    for again in (pair, fresh):
        again.step()
    assert pair.second.take_loss() == fresh.second.take_loss() != 0.0
    for again in (pair, fresh):
        again.apply()
    assert same(pair.state(), fresh.state())


@pytest.mark.parametrize("recompute", [False, True])
def test_buffers_change_at_apply_in_microbatch_order(recompute: bool) -> None:
    pair = Pair("batch-norm", recompute=recompute)
    before = pair.state()
    for microbatch in range(MICROBATCHES):
        pair.forward(microbatch)
        assert same(pair.state(), before)
    for microbatch in range(MICROBATCHES):
        pair.backward(microbatch)
        pair.accumulate(microbatch)
    pair.apply()
    after = pair.state()
    assert int(after["seen"]) == MICROBATCHES
    assert not np.array_equal(after["norms.0.running_mean"], before["norms.0.running_mean"])


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-dropout", pytest.param("batch-norm", marks=pytest.mark.full)])
def test_recomputation_gives_the_same_bits(name: str) -> None:
    kept, again = Pair(name), Pair(name, recompute=True)
    for pair in (kept, again):
        for microbatch in range(MICROBATCHES):
            pair.forward(microbatch)
        for microbatch in range(MICROBATCHES):
            pair.backward(microbatch)
            pair.accumulate(microbatch)
        pair.apply()
    assert same(kept.state(), again.state())


def test_recomputation_keeps_no_tape() -> None:
    pair = Pair("chain", recompute=True)
    pair.forward(0)
    assert all(kept.tape is None for kept in pair.second._microbatches.values())


def test_a_missing_gradient_is_left_out() -> None:
    pair = Pair("chain")
    pair.forward(0)
    pair.first.backward(UNIT, 0, {}, lambda value, gradient: pytest.fail("nothing to send"))
    pair.first.accumulate(UNIT, 0)
    assert not pair.first.gradients()
    before = copies(pair.first.state())
    pair.first.apply(0, 1.0)
    assert same(copies(pair.first.state()), before)


def test_frozen_parameters_have_no_gradient_and_stay() -> None:
    pair = Pair("frozen")
    before = pair.state()
    pair.step()
    held = pair.gradients()
    assert not {"layers.0.weight", "layers.3.weight"} & set(held)
    pair.apply()
    after = pair.state()
    assert {name for name, array in before.items() if not np.array_equal(array, after[name])} == set(held)


@pytest.mark.slow
def test_random_numbers_are_those_of_the_seed_on_every_run() -> None:
    sent = []
    for seed in (3, 3, 4):
        pair = Pair("gpt-dropout", Training(5, MICROBATCHES, SAMPLES, SGD(lr=0.1), seed=seed))
        pair.step()
        sent.append(pair.gradients())
    assert same(sent[0], sent[1])
    assert not same(sent[0], sent[2])


def test_each_microbatch_and_node_draws_its_own_numbers() -> None:
    pair = Pair("gpt-dropout")
    pair.batches = [pair.batches[0]] * MICROBATCHES
    values = [next(iter(pair.forward(microbatch).values())) for microbatch in range(MICROBATCHES)]
    assert not np.array_equal(values[0], values[1])
    keys = pair.first._train.get()._program.keys(5)
    assert len({tuple(key) for key in keys}) == len(keys) > 1


@pytest.mark.slow
def test_evaluation_draws_nothing_and_keeps_nothing() -> None:
    pair = Pair("gpt-dropout")
    values = [next(iter(pair.forward(m, EVALUATION).values())) for m in (0, 0)]
    assert np.array_equal(values[0], values[1])
    assert not pair.first._microbatches
    assert pair.second.take_loss() > 0


@pytest.mark.usefixtures("compiled_each_time")
def test_compiled_programs_are_freed_with_their_segment() -> None:
    segment = BACKEND.runner(*state_and_all("chain"))
    segment.compile()
    functions = segment._train.get()
    program = functions._compiled._forward
    kept = [weakref.ref(one) for one in (functions, program, program._executable)]  # type: ignore[attr-defined]
    segment.close()
    del segment, functions, program
    gc.collect()
    assert [one() for one in kept] == [None] * 3


@pytest.mark.usefixtures("compiled_each_time")
def test_closing_before_anything_is_compiled_leaves_nothing_to_wait_for() -> None:
    segment = BACKEND.runner(*state_and_all("chain"))
    segment.close()
    assert not segment._train._thread.is_alive()
    with suppress(Cancelled):  # it may have been quick
        segment.compile()


def test_a_snapshot_is_bytes_that_later_steps_leave_alone() -> None:
    pair = Pair("chain")
    pair.step()
    pair.apply()
    taken = {key: (data, bytes(data)) for key, data in pair.first.snapshot(pair.definitions[0].owned).items()}
    owned = pair.definitions[0].owned
    assert list(taken) == [StateKey(name) for name in owned]
    pair.step()
    pair.apply()
    assert all(bytes(data) == then for data, then in taken.values())
    assert any(bytes(data) != taken[key][1] for key, data in pair.first.snapshot(owned).items())


def test_the_sum_of_squares_is_in_float64() -> None:
    pair = Pair("chain")
    pair.step()
    gradients = copies(pair.first.gradients())
    values = {e.value: e.name for e in pair.definitions[0].inputs if e.name in gradients}
    wanted = {v: float(np.square(gradients[n].astype(np.float64)).sum()) for v, n in values.items()}
    assert pair.first.square_sums() == pytest.approx(wanted, rel=1e-14)
    pair.first.drop()
    assert pair.first.square_sums() == dict.fromkeys(wanted, 0.0)
