"""Optimizer state has one form: torch's own, in and out of runners however the model is cut."""

from __future__ import annotations

import copy
import random
from functools import cache

import pytest
import torch
from benchmarks.zoo import case
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.by_hand import ByHand
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from farflung.errors import GraphError
from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Group, Lion, Muon, Optimizer
from farflung.runtime.optimizers.schedules import Constant
from farflung.runtime.optimizers.slots import EMA, STEP, slot_bytes, slot_shapes, step_count, step_slot
from farflung.runtime.parity.optimizers import build, set_learning_rate
from farflung.runtime.state import StateKey, part_of
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.optimizers.update import Update
from farflung.runtime.torch_backend.tensors import copied, memory
from farflung.workload.footprint import UPDATED_AT_ONCE

torch.set_num_threads(1)
BACKEND = TorchBackend()
DECLARED: dict[str, Optimizer] = {
    "adamw": AdamW(lr=0.01, weight_decay=0.1, schedule=Constant(warmup_steps=3)),
    "sgd": SGD(lr=0.1, weight_decay=0.1),
    "momentum": SGD(lr=0.1, momentum=0.9),
    "dampening": SGD(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov": SGD(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "lion": Lion(lr=0.01, weight_decay=0.1, groups=(Group("*.bias", lr_scale=0.5),)),
    "adafactor": Adafactor(lr=0.05, weight_decay=0.1, no_decay="auto"),
    "muon": Muon(lr=0.02, others=AdamW(lr=0.01, no_decay="auto"), excluded=("head.*", "*embed*")),
    "averaged": AdamW(lr=0.01, weight_decay=0.1, ema=0.9),
    "averaged-sgd": SGD(lr=0.1, ema=0.25),
    "averaged-muon": Muon(lr=0.02, others=AdamW(lr=0.01), excluded=("head.*", "*embed*"), ema=0.75),
}
each_optimizer = pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
BEFORE, AFTER = 2, 5


@pytest.mark.cases(20)
@pytest.mark.parametrize(
    ("name", "cut"),
    [("gpt-dropout", 3), ("gpt-tied", 3), ("batch-norm", 3), ("frozen", 2), ("shared-module", (6,))],
)
@each_optimizer
def test_new_runners_of_the_same_cut_go_on_with_the_same_bits(
    name: str, cut: int | tuple[int, ...], declared: Optimizer
) -> None:
    undisturbed, other = (ByHand(name, BACKEND, cut, declared) for _ in range(2))
    undisturbed.steps(0, BEFORE)
    other.steps(7, 9)  # whatever it did before is gone
    state = undisturbed.state()
    other.restore(state)
    assert other.state() == state
    assert other.steps(BEFORE, AFTER) == undisturbed.steps(BEFORE, AFTER)
    assert other.state() == undisturbed.state()


@pytest.mark.cases(15)
@pytest.mark.parametrize("name", ["gpt", "batch-norm", "frozen", "gpt-tied"])
@each_optimizer
def test_another_cut_goes_on_where_the_first_one_was(name: str, declared: Optimizer) -> None:
    undisturbed, other = ByHand(name, BACKEND, 3, declared), ByHand(name, BACKEND, 2, declared)
    undisturbed.steps(0, BEFORE)
    state = undisturbed.state()
    other.restore(state)
    assert other.state() == state
    ours, theirs = other.steps(BEFORE, AFTER), undisturbed.steps(BEFORE, AFTER)
    if case(name).tolerance == 0:
        assert ours == theirs and other.state() == undisturbed.state()
    else:
        assert ours == pytest.approx(theirs, rel=case(name).tolerance)


def test_a_step_in_flight_is_dropped_by_a_restore() -> None:
    undisturbed, other = (ByHand("gpt", BACKEND, 2, DECLARED["adamw"]) for _ in range(2))
    undisturbed.steps(0, 2)
    first = undisturbed.state()
    undisturbed.step(2)
    for pair in (undisturbed, other):
        pair.restore(first)
    assert undisturbed.steps(2, 4) == other.steps(2, 4)
    assert undisturbed.state() == other.state()


@each_optimizer
def test_no_parameter_has_slots_before_its_first_update(declared: Optimizer) -> None:
    run, other = (ByHand("chain", BACKEND, 2, declared) for _ in range(2))
    assert not [key for key in run.state() if key.slot]
    other.step(3)
    other.restore(run.state())  # of which nothing of that step is left
    assert other.steps(0, 2) == run.steps(0, 2)
    assert other.state() == run.state()
    slots = {(key.name, key.slot) for key in run.state() if key.slot}
    shapes = {name: tensor.shape for name, tensor in run.tensors.items()}
    assert slots == {(n, slot) for n, shape in shapes.items() for slot in slot_shapes(declared, n, shape)}


@each_optimizer
def test_state_of_a_model_equals_torchs_state_dict(declared: Optimizer) -> None:
    """One segment, so that gradients have eager's bits, too."""
    run = ByHand("gpt", BACKEND, 1, declared)
    run.steps(0, 3)
    ours = run.state()
    assert ours == _by_torch(declared)


@cache
def _gpt() -> ByHand:
    return ByHand("gpt", BACKEND, 1, DECLARED["sgd"])


def _by_torch(declared: Optimizer) -> dict[StateKey, bytes]:
    """What `torch.optim` and autograd make of the same steps, in our form."""
    run = _gpt()
    module = copy.deepcopy(case("gpt").build())
    optimizer = build(declared, module.named_parameters())
    averaged = None if declared.ema is None else average_of(module, declared.ema)
    from benchmarks.zoo.side_by_side import microbatches

    for step in range(3):
        for batch in microbatches(case("gpt"), 2, 2, step):
            (module(**batch) * 0.5).backward()
        set_learning_rate(optimizer, step)
        optimizer.step()
        optimizer.zero_grad()
        if averaged:
            averaged.update_parameters(module)
    names = {parameter: name for name, parameter in module.named_parameters()}
    found = {StateKey(n): bytes(copied(t)) for n, t in module.state_dict().items() if n in run.tensors}
    for name, average in averaged.module.named_parameters() if averaged else ():
        found[StateKey(name, EMA)] = bytes(copied(average))
    for parameter, kept in optimizer.state.items():
        for slot, value in kept.items():
            found[StateKey(names[parameter], slot)] = bytes(_slot(slot, value))
    return found


def average_of(module: nn.Module, decay: float) -> AveragedModel:
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))


def _slot(slot: str, value: Tensor) -> memoryview:
    return step_slot(int(value)) if slot == STEP else copied(value)


PIECE = UPDATED_AT_ONCE // 4


def parameters() -> list[nn.Parameter]:
    """Of several pieces, not contiguous, in other types, of one element and of none."""
    generator = torch.Generator().manual_seed(3)
    large = torch.randn(2 * PIECE + 77, generator=generator)
    wide = large[: PIECE + 1024].reshape(1024, -1)
    small = torch.randn(5, 3, generator=generator)
    made = [large, large.bfloat16(), large[:PIECE].double(), wide.clone().t(), small, small.clone().t()]
    return [nn.Parameter(t) for t in (*made, torch.randn((), generator=generator), torch.empty(0, 3))]


def give_gradients(held: list[nn.Parameter], step: int) -> None:
    """To all but some, in another layout each second step."""
    generator = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(held):
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        if step % 2 and gradient.dim() == 2:
            gradient = gradient.t().contiguous().t()
        absent = (number == 4 and step < 4) or (step + number) % 4 == 0
        parameter.grad = None if absent else gradient


@pytest.mark.cases(12)
@each_optimizer
@pytest.mark.parametrize("before", [0, 1, 3])
def test_slots_of_any_parameter_are_torchs_and_go_on_with_the_same_bits(
    declared: Optimizer, before: int
) -> None:
    ours, theirs = parameters(), parameters()
    if isinstance(declared, Adafactor):  # torch divides by the size of the empty one
        ours, theirs = ours[:-1], theirs[:-1]
    update, reference = Update(declared, ours), build(declared, theirs)
    averages: dict[int, AveragedModel] = {}  # each from its parameter's first update on

    def train(step: int) -> None:
        for held in (ours, theirs):
            give_gradients(held, step)
        update.step(step)
        set_learning_rate(reference, step)
        reference.step()
        for number, parameter in enumerate(theirs):
            if declared.ema is not None and (parameter.grad is not None or number in averages):
                one = nn.ParameterList([parameter])
                averages.setdefault(number, average_of(one, declared.ema)).update_parameters(one)

    def expected_average(number: int) -> dict[str, bytes]:
        return {EMA: bytes(copied(averages[number].module[0]))} if number in averages else {}  # type: ignore[index]

    for step in range(before):
        train(step)
    expected = [
        {slot: bytes(_slot(slot, t)) for slot, t in reference.state[p].items()} | expected_average(number)
        for number, p in enumerate(theirs)
    ]
    taken = [update.slots(number) for number in range(len(ours))]
    assert [{slot: bytes(data) for slot, data in one.items()} for one in taken] == expected
    update = Update(declared, ours)
    update.restore(taken)
    for step in range(before, before + 4):
        train(step)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), step
    for number in averages:
        assert bytes(update.slots(number)[EMA]) == expected_average(number)[EMA]


def test_slots_of_a_large_parameter_stay_in_the_memory_that_they_came_in() -> None:
    held = parameters()[:1]
    update = Update(DECLARED["adamw"], held)
    mean, square = (torch.zeros_like(held[0]) for _ in range(2))
    update.restore([{STEP: step_slot(4), "exp_avg": memory(mean), "exp_avg_sq": memory(square)}])
    give_gradients(held, 1)
    update.step(1)
    assert float(mean.abs().min()) > 0
    taken = update.slots(0)
    assert bytes(taken["exp_avg"]) == bytes(memory(mean)) and step_count(taken) == 5
    update.step(2)
    assert bytes(taken["exp_avg"]) != bytes(memory(mean))  # what was given out is a copy


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4),
    st.sampled_from(sorted(DECLARED)),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
@example([[0, 0], [3, 0]], "muon", 0, random.Random(0))  # torch's own rule divides by zero
def test_any_parameters_go_on_from_any_step(shapes, name, before, draw) -> None:  # type: ignore[no-untyped-def]
    def train(update: Update, held: list[nn.Parameter], first: int, end: int) -> None:
        for step in range(first, end):
            for parameter, gradient in zip(held, gradients[step], strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            update.step(step)

    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    gradients = [
        [torch.randn(shape, generator=generator) if draw.random() < 0.6 else None for shape in shapes]
        for _ in range(before + 2)
    ]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    declared = DECLARED[name]
    first, undisturbed = Update(declared, ours), Update(declared, theirs)
    train(first, ours, 0, before)
    taken = [first.slots(number) for number in range(len(ours))]
    seen = [any(gradients[step][at] is not None for step in range(before)) for at in range(len(shapes))]
    expected = [set(slot_shapes(declared, "", shape)) for shape in shapes]
    assert [set(one) for one in taken] == [
        slots if has else set() for slots, has in zip(expected, seen, strict=True)
    ]
    second = Update(declared, ours)
    second.restore(taken)
    train(second, ours, before, before + 2)
    train(undisturbed, theirs, 0, before + 2)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def damaged() -> dict[str, tuple[dict[StateKey, bytes | None], str]]:
    weight = "layers.0.weight"
    return {
        "unknown slot": (
            {StateKey(weight, "max_exp_avg_sq"): bytes(16)},
            f"of '{weight}' does not fit AdamW",
        ),
        "wrong size": ({StateKey(weight, "exp_avg"): bytes(4)}, "exp_avg of 4 bytes"),
        "missing slot": ({StateKey(weight, "exp_avg_sq"): None}, f"of '{weight}' does not fit AdamW"),
        "missing count": ({StateKey(weight, STEP): None}, "expected exp_avg of .* step of 8 bytes"),
        "no count": ({StateKey(weight, STEP): bytes(8)}, f"of '{weight}' counts 0 updates"),
        "negative": ({StateKey(weight, STEP): b"\xff" * 8}, f"of '{weight}' counts -1 updates"),
        "short count": ({StateKey(weight, STEP): b"\x01"}, "step of 1 bytes"),
        "unknown name": ({StateKey("layers.9.weight"): bytes(4)}, "has no 'layers.9.weight'"),
        "unknown owner": ({StateKey("layers.9.weight", STEP): bytes(8)}, "no step of 'layers.9.weight'"),
        "wrong tensor": ({StateKey(weight): bytes(4)}, f"'{weight}' has 4 bytes, expected"),
    }


@pytest.mark.parametrize("what", damaged())
def test_state_that_does_not_fit_is_refused_by_its_name_and_changes_nothing(what: str) -> None:
    changes, words = damaged()[what]
    run = ByHand("chain", BACKEND, 1, DECLARED["adamw"])
    run.steps(0, 2)
    before = run.state()
    wrong = {key: data for key, data in {**before, **changes}.items() if data is not None}
    run.step(2)
    after = run.state()
    with pytest.raises(GraphError, match=words):
        run.runners[0].restore({key: memoryview(bytearray(data)) for key, data in wrong.items()})
    assert run.state() == after


def test_slots_of_what_is_frozen_are_refused() -> None:
    run = ByHand("frozen", BACKEND, 1, DECLARED["adamw"])
    slots = {
        slot: bytes(size) for slot, size in slot_bytes(DECLARED["adamw"], "layers.0.weight", (1,), 4).items()
    }
    state = {StateKey("layers.0.weight", slot): memoryview(bytearray(data)) for slot, data in slots.items()}
    with pytest.raises(GraphError, match=r"no .* of 'layers\.0\.weight'"):
        run.runners[0].restore(state)


def test_each_segment_takes_its_part_and_the_owner_of_a_tie_its_slots() -> None:
    run = ByHand("gpt-tied", BACKEND, 3, DECLARED["adamw"])
    run.step(0)
    state = {key: memoryview(data) for key, data in run.state().items()}
    parts = [part_of(runner.segment, state) for runner in run.runners]
    holders = [at for at, part in enumerate(parts) if StateKey("head.weight") in part]
    assert len(holders) == 2
    assert [at for at, part in enumerate(parts) if StateKey("head.weight", STEP) in part] == holders[:1]
    assert {key for part in parts for key in part} == set(state)
