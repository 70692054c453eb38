from __future__ import annotations

import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, planned
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from farflung.opdag.segment import Segment
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import StateKey
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.training import Training
from farflung.schedule import Unit

torch.set_num_threads(1)
SAMPLES, MICROBATCHES = 2, 3
UNIT = Unit(0, True, 0, MICROBATCHES)
TRAINING = Training(5, MICROBATCHES, SAMPLES, SGD(lr=0.1), seed=3)


class Pair:
    """The two segments of a model, driven by hand."""

    def __init__(self, name: str, recompute: bool = False) -> None:
        module, graph = captured(case(name), SAMPLES)
        self.state = {n: t.detach().clone() for n, t in named_state(module, graph).items()}
        self.names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self.definitions: list[Segment] = planned(graph, TRAINING, 2).segments
        self.first, self.second = (TorchSegment(s, self.state, TRAINING, recompute) for s in self.definitions)
        self.batches = microbatches(case(name), SAMPLES, MICROBATCHES, 0)

    def fed(self, number: int, microbatch: int) -> dict[int, Tensor]:
        entries = [e for e in self.definitions[number].inputs if e.kind == "input"]
        return {e.value: self.batches[microbatch][self.names[e.value]] for e in entries}

    def forward(self, microbatch: int) -> None:
        sent = self.first.forward(UNIT, microbatch, self.fed(0, microbatch))
        assert all(not t.requires_grad and t.is_contiguous() for t in sent.values())
        received = {value: sent[value] for value in self.definitions[1].receives}
        self.second.forward(UNIT, microbatch, self.fed(1, microbatch) | received)

    def backward(self, microbatch: int) -> dict[int, Tensor]:
        gradients: dict[int, Tensor] = {}
        self.second.backward(UNIT, microbatch, {}, gradients.__setitem__)
        self.first.backward(UNIT, microbatch, gradients, lambda value, gradient: None)
        self.first.accumulate(UNIT, microbatch)
        self.second.accumulate(UNIT, microbatch)
        return gradients

    def copies(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.state.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_tapes_are_kept_for_each_microbatch() -> None:
    together, apart = Pair("chain"), Pair("chain")
    for microbatch in range(MICROBATCHES):
        together.forward(microbatch)
    for microbatch in range(MICROBATCHES):
        together.backward(microbatch)
        apart.forward(microbatch)
        apart.backward(microbatch)
    assert same(together.first.gradients(), apart.first.gradients())
    assert together.second.take_loss() == apart.second.take_loss()
    assert together.second.take_loss() == 0.0


def test_each_received_value_gets_one_gradient() -> None:
    pair = Pair("chain")
    pair.forward(0)
    sent: list[int] = []
    pair.second.backward(UNIT, 0, {}, lambda value, gradient: sent.append(value))
    assert sent == pair.definitions[1].receives == pair.definitions[1].differentiable


def test_apply_scales_the_gradients_once() -> None:
    full, half = Pair("chain"), Pair("chain")
    before = full.copies()
    for pair, scale in ((full, 1.0), (half, 0.5)):
        pair.forward(0)
        pair.backward(0)
        pair.first.apply(0, scale)
        pair.second.apply(0, scale)
    for name, tensor in before.items():
        moved, half_moved = full.state[name] - tensor, half.state[name] - tensor
        assert moved.abs().max() > 0
        assert torch.allclose(moved, 2 * half_moved, rtol=1e-3, atol=1e-7)


def test_a_dropped_step_leaves_nothing() -> None:
    pair, fresh = Pair("batch-norm"), Pair("batch-norm")
    before = pair.copies()
    pair.forward(0)
    pair.forward(1)
    pair.backward(0)
    for segment in (pair.first, pair.second):
        segment.drop()
    assert same(pair.state, before)
    assert not pair.first.gradients()
    for again in (pair, fresh):
        again.forward(0)
        again.backward(0)
    assert pair.second.take_loss() == fresh.second.take_loss() != 0.0
    for again in (pair, fresh):
        again.first.apply(0, 1.0)
        again.second.apply(0, 1.0)
    assert same(pair.state, fresh.state)


def test_buffers_change_at_apply_in_microbatch_order() -> None:
    pair = Pair("batch-norm")
    before = pair.copies()
    for microbatch in range(MICROBATCHES):
        pair.forward(microbatch)
        assert same(pair.state, before)
    for microbatch in range(MICROBATCHES):
        pair.backward(microbatch)
    pair.first.apply(0, 1.0)
    pair.second.apply(0, 1.0)
    assert int(pair.state["seen"]) == MICROBATCHES
    assert not torch.equal(pair.state["norms.0.running_mean"], before["norms.0.running_mean"])


def test_a_missing_gradient_is_left_out() -> None:
    pair = Pair("chain")
    pair.forward(0)
    pair.first.backward(UNIT, 0, {}, lambda value, gradient: pytest.fail("nothing to send"))
    pair.first.accumulate(UNIT, 0)
    assert not pair.first.gradients()


def test_frozen_parameters_have_no_gradient_and_stay() -> None:
    pair = Pair("frozen")
    before = pair.copies()
    pair.forward(0)
    pair.backward(0)
    held = {**pair.first.gradients(), **pair.second.gradients()}
    assert not {"layers.0.weight", "layers.3.weight"} & set(held)
    pair.first.apply(0, 1.0)
    pair.second.apply(0, 1.0)
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, pair.state[name])}
    assert moved == set(held)


def test_state_shares_the_segments_memory() -> None:
    pair = Pair("chain")
    owned = pair.first.state()
    assert list(owned) == pair.definitions[0].owned
    pair.forward(0)
    pair.backward(0)
    pair.first.apply(0, 1.0)
    assert all(torch.equal(tensor, pair.state[name]) for name, tensor in owned.items())
    assert not any(isinstance(tensor, nn.Parameter) or tensor.requires_grad for tensor in owned.values())


class Watch(TorchDispatchMode):
    """Writes down every op that makes a tensor of one of these shapes, and what `tell` says."""

    def __init__(self, shapes: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.shapes = shapes
        self.log: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        made = function(*arguments, **(options or {}))
        read = {t.untyped_storage().data_ptr() for t in arguments if isinstance(t, Tensor)}
        for tensor in made if isinstance(made, tuple | list) else (made,):
            is_weight = isinstance(tensor, Tensor) and tuple(tensor.shape) in self.shapes
            if is_weight and tensor.untyped_storage().data_ptr() not in read:
                self.log.append("weights")
        return made


@pytest.mark.parametrize("name", ["gpt", "gpt-dropout", "resnet", "chain", "frozen", "shared-module"])
def test_gradients_of_values_are_sent_before_weight_gradients_are_computed(name: str) -> None:
    """By what is run on the device: of matrices and kernels, whatever op reads them."""
    pair = Pair(name)
    owned = pair.second.state()
    shapes = {tuple(t.shape) for t in owned.values() if t.dim() > 1}
    for microbatch in range(MICROBATCHES):
        pair.forward(microbatch)
    for microbatch in range(MICROBATCHES):
        with Watch(shapes) as watch:
            pair.second.backward(UNIT, microbatch, {}, lambda value, gradient: watch.log.append("sent"))
            watch.log.append("over")
            pair.second.accumulate(UNIT, microbatch)
        assert watch.log[: watch.log.index("over")] == ["sent"] * len(pair.definitions[1].receives)
        assert watch.log.count("weights") >= len(shapes)


@pytest.mark.parametrize("name", ["gpt-dropout", "resnet", "batch-norm", "masked-pair"])
def test_recomputed_microbatches_have_the_same_bits(name: str) -> None:
    """Dropout draws the same, and a buffer's new value is written once."""
    kept, again = Pair(name), Pair(name, recompute=True)
    for pair in (kept, again):
        for _ in range(2):
            for microbatch in range(MICROBATCHES):
                pair.forward(microbatch)
            for microbatch in range(MICROBATCHES):
                pair.backward(microbatch)
            for segment in (pair.first, pair.second):
                segment.apply(0, 1.0)
    assert kept.second.take_loss() == again.second.take_loss()
    assert same(kept.state, again.state)


def test_a_snapshot_is_of_one_version_whenever_it_is_read() -> None:
    pair = Pair("chain")
    first, *others = pair.definitions[0].owned
    before = pair.copies()
    taken = pair.first.snapshot(others)
    pair.forward(0)
    pair.backward(0)
    pair.first.apply(0, 1.0)
    assert list(taken) == [StateKey(name) for name in others]
    assert all(bytes(data) == before[key.name].numpy().tobytes() for key, data in taken.items())
    assert bytes(pair.first.snapshot([first])[StateKey(first)]) != before[first].numpy().tobytes()


def test_a_live_snapshot_takes_no_memory_and_has_the_same_bytes() -> None:
    pair = Pair("chain")
    pair.forward(0)
    pair.backward(0)
    pair.first.apply(0, 1.0)
    owned = pair.definitions[0].owned
    copies, live = pair.first.snapshot(owned, slots=True), pair.first.snapshot(owned, slots=True, live=True)
    assert {key: bytes(data) for key, data in live.items()} == {k: bytes(data) for k, data in copies.items()}
    tensor = pair.first.state()[owned[0]]
    tensor.zero_()
    assert not any(live[StateKey(owned[0])]) and any(copies[StateKey(owned[0])])
