"""State out and home again: bit for bit, verified, and only from the worker that owes it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from farflung.client.run.state_collector import (
    MOST_CODERS_BYTES,
    MOST_OPEN_COPIES,
    ReceivedState,
    StateCollector,
    StateCollectors,
    with_slots,
)
from farflung.client.run.state_transfer import send_coders, send_state
from farflung.errors import ProtocolError, RunFailed
from farflung.opdag.form import Form
from farflung.plans import Placement, Plan
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.state import StateKey
from farflung.runtime.torch_backend.tensors import memory
from farflung.transport.wire.headers import SLICE_BYTES, SliceHeader, slices

PLAN = Plan([Placement(0, ["a"], 1, 1, 1), Placement(1, ["b"], 1, 1, 1)], [], 1, 1)
OWNED = [["head", "norm"], ["flags"]]


class RememberingLink:
    def __init__(self) -> None:
        self.sent: list[tuple[SliceHeader, bytes]] = []

    async def send(self, header: SliceHeader, buffer: memoryview) -> None:
        self.sent.append((header, bytes(buffer)))


State = dict[StateKey, Tensor]
HEAD, NORM, FLAGS = StateKey("head"), StateKey("norm"), StateKey("flags")


def state() -> State:
    return {
        HEAD: torch.randn(SLICE_BYTES // 4 + 3, generator=torch.Generator().manual_seed(1)),
        NORM: torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
        FLAGS: torch.tensor([True, False]),
    }


def forms(values: State, owned: list[list[str]] = OWNED) -> list[dict[StateKey, Form]]:
    """What each segment sends."""
    kinds = {key: Form(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for key, t in values.items()}
    return [{key: form for key, form in kinds.items() if key.name in names} for names in owned]


def collector(values: State, coders: Sequence[int] = ()) -> StateCollector:
    return StateCollector("j", 1, PLAN, forms(values), lambda received, total: None, coders)


def sent_by(segment: int, values: State) -> list[tuple[SliceHeader, bytes]]:
    link = RememberingLink()
    taken: list[int] = []
    asyncio.run(send_state("j", 1, {segment: OWNED[segment]}, values, link, taken.append))
    assert sum(taken) == sum(tensor.nbytes for key, tensor in values.items() if key.name in OWNED[segment])
    return link.sent


def deliver(target: StateCollector, worker: str, sent: list[tuple[SliceHeader, bytes]]) -> None:
    for header, content in sent:
        target.opening(worker, header)[:] = content
        target.complete(header)


def test_what_comes_before_it_is_waited_for_is_told_then() -> None:
    values, told = state(), list[tuple[int, int]]()
    target = StateCollector("j", 1, PLAN, forms(values), lambda came, total: told.append((came, total)))
    total = sum(tensor.nbytes for tensor in values.values())
    deliver(target, "a", sent_by(0, values))
    assert told == []

    async def wait() -> None:
        waiting = asyncio.create_task(target.state())
        await asyncio.sleep(0)
        assert told == [(total - values[FLAGS].nbytes, total)]
        deliver(target, "b", sent_flags)
        await waiting

    sent_flags = sent_by(1, values)
    asyncio.run(wait())
    assert told[-1] == (total, total)


@given(st.integers(0, 5 * SLICE_BYTES))
def test_slices_cover_a_tensor_once(total: int) -> None:
    parts = list(slices(total))
    assert sum(size for _, size in parts) == total
    assert all(after[0] == before[0] + before[1] for before, after in itertools.pairwise(parts))
    assert all(0 < size <= SLICE_BYTES for _, size in parts) and (not parts or parts[0][0] == 0)


def test_slices_go_out_in_name_order_with_the_digest_of_the_whole() -> None:
    values = state()
    sent = sent_by(0, values)
    assert [(header.name, header.offset, header.bytes) for header, _ in sent] == [
        ("head", 0, SLICE_BYTES),
        ("head", SLICE_BYTES, 12),
        ("norm", 0, 12),
    ]
    norm = values[NORM].contiguous()
    assert sent[2][0].sha256 == hashlib.sha256(memory(norm)).digest()


def test_a_round_trip_is_bit_equal_and_leaves_the_original_alone() -> None:
    async def scenario() -> State:
        target = collector(values)
        for worker, part in (("b", parts[1]), ("a", parts[0])):
            deliver(target, worker, part)
        return (await target.state()).tensors

    values = state()
    parts = [sent_by(segment, values) for segment in (0, 1)]
    home = asyncio.run(scenario())
    assert home.keys() == values.keys()
    for key, tensor in home.items():
        assert tensor.dtype == values[key].dtype and torch.equal(tensor, values[key])
        assert tensor.data_ptr() != values[key].data_ptr()


def test_optimizer_slots_travel_beside_their_parameter() -> None:
    async def scenario() -> State:
        target = collector(values)
        for worker, part in (("b", parts[1]), ("a", parts[0])):
            deliver(target, worker, part)
        return (await target.state()).tensors

    mean = StateKey("norm", "exp_avg")
    values = state() | {mean: torch.randn(3, 2).bfloat16(), StateKey("norm", "step"): torch.tensor(7)}
    parts = [sent_by(segment, values) for segment in (0, 1)]
    slots = [(header.name, header.slot, header.total) for header, _ in parts[0] if header.name == "norm"]
    assert slots == [("norm", "", 12), ("norm", "exp_avg", 12), ("norm", "step", 8)]
    home = asyncio.run(scenario())
    assert home.keys() == values.keys()
    assert all(torch.equal(home[key], values[key]) for key in values)


def test_slots_that_nobody_asked_for_are_refused() -> None:
    header = msgspec.structs.replace(sent_by(0, state())[2][0], slot="exp_avg")
    with pytest.raises(
        ProtocolError, match="exp_avg of 'norm' of segment 0, which the plan does not give it"
    ):
        collector(state()).opening("a", header)


def test_an_empty_tensor_is_there_without_a_slice() -> None:
    async def scenario() -> State:
        values = {StateKey("a"): torch.empty(0, 3)}
        plan = Plan([Placement(0, ["w"], 1, 1, 1)], [], 1, 1)
        link = RememberingLink()
        await send_state("j", 1, {0: ["a"]}, values, link, lambda size: None)
        assert not link.sent
        target = StateCollector("j", 1, plan, forms(values, [["a"]]), lambda received, total: None)
        return (await target.state()).tensors

    assert asyncio.run(scenario())[StateKey("a")].shape == (0, 3)


def test_a_damaged_tensor_is_named() -> None:
    async def scenario() -> None:
        target = collector(values)
        deliver(target, "b", parts[1])
        header, content = parts[0][2]
        deliver(target, "a", [*parts[0][:2], (header, b"\xff" + content[1:])])
        await target.state()

    values = state()
    parts = [sent_by(segment, values) for segment in (0, 1)]
    with pytest.raises(RunFailed, match="'norm' came damaged from worker a"):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("worker", "changes"),
    [
        ("b", {}),
        ("a", {"name": "tail"}),
        ("a", {"segment": 1}),
        ("a", {"total": 2**40}),
        ("a", {"offset": 4}),
        ("a", {"bytes": SLICE_BYTES + 100}),
        ("a", {"attempt": 2}),
        ("a", {"job": "other"}),
    ],
)
def test_what_a_worker_does_not_owe_is_refused(worker: str, changes: dict[str, object]) -> None:
    values = state()
    header = msgspec.structs.replace(sent_by(0, values)[0][0], **changes)
    with pytest.raises(ProtocolError):
        collector(values).opening(worker, header)


def test_a_repeated_slice_and_a_second_version_are_refused() -> None:
    values = state()
    (first, content), (second, _), _ = sent_by(0, values)
    target = collector(values)
    deliver(target, "a", [(first, content)])
    with pytest.raises(ProtocolError, match="expected those from"):
        target.opening("a", first)
    with pytest.raises(ProtocolError, match="two versions"):
        target.opening("a", msgspec.structs.replace(second, sha256=bytes(32)))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_any_sizes_come_home(sizes: list[int]) -> None:
    async def scenario() -> None:
        values = {StateKey(f"p{n}"): torch.arange(size, dtype=torch.int16) for n, size in enumerate(sizes)}
        names = [key.name for key in values]
        plan = Plan([Placement(0, ["w"], 1, 1, 1)], [], 1, 1)
        link = RememberingLink()
        await send_state("j", 1, {0: names}, values, link, lambda size: None)
        target = StateCollector("j", 1, plan, forms(values, [names]), lambda received, total: None)
        deliver(target, "w", link.sent)
        home = (await target.state()).tensors
        assert all(torch.equal(home[key], values[key]) for key in values)

    asyncio.run(scenario())


def test_slots_are_not_awaited_before_the_first_step() -> None:
    async def scenario() -> State:
        target = collector(values)
        for worker, part in (("b", parts[1]), ("a", parts[0])):
            deliver(target, worker, part)
        return (await target.state(updated=False)).tensors

    parameters = state()
    values = parameters | {StateKey("norm", "exp_avg"): torch.randn(3, 2).bfloat16()}
    parts = [sent_by(segment, parameters) for segment in (0, 1)]
    assert asyncio.run(scenario()).keys() == parameters.keys()


def coders_from(segment: int, coders: bytes) -> list[tuple[SliceHeader, bytes]]:
    link = RememberingLink()
    asyncio.run(send_coders("j", 1, segment, coders, link))
    return link.sent


def test_the_state_of_coders_comes_with_a_size_of_its_own() -> None:
    async def scenario() -> ReceivedState:
        target = collector(values, coders=[0, 1])
        for worker, segment in (("a", 0), ("b", 1)):
            deliver(target, worker, parts[segment])
            deliver(target, worker, coders[segment])
        return await target.state()

    values = state()
    parts = [sent_by(segment, values) for segment in (0, 1)]
    coders = [coders_from(0, b"learned"), coders_from(1, bytes(SLICE_BYTES + 1))]
    assert asyncio.run(scenario()).coders == {0: b"learned", 1: bytes(SLICE_BYTES + 1)}


@pytest.mark.parametrize("total", [0, MOST_CODERS_BYTES + 1])
def test_coders_of_an_impossible_size_are_refused(total: int) -> None:
    header = msgspec.structs.replace(coders_from(0, b"learned")[0][0], total=total)
    with pytest.raises(ProtocolError, match="expected at most"):
        collector(state(), coders=[0]).opening("a", header)


def test_coders_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(ProtocolError, match="coders of segment 0, which the plan does not give it"):
        collector(state()).opening("a", coders_from(0, b"learned")[0][0])


def copy_of(unit: int, sent: list[tuple[SliceHeader, bytes]]) -> list[tuple[SliceHeader, bytes]]:
    return [(msgspec.structs.replace(header, unit=unit), content) for header, content in sent]


def test_copies_come_one_after_the_other_beside_the_state_at_the_end() -> None:
    async def scenario() -> list[State]:
        target = StateCollectors(collector(values), lambda: collector(values))
        found = []
        for unit in (3, 5):
            for segment, worker in enumerate(("a", "b")):
                for header, content in copy_of(unit, parts[segment]):
                    target.opening(worker, header)[:] = content
                    target.complete(header)
            found.append((await target.copy(unit).state()).tensors)
            target.drop(unit)
        assert not target.end._received
        return found

    values = state()
    parts = [sent_by(segment, values) for segment in (0, 1)]
    for home in asyncio.run(scenario()):
        assert all(torch.equal(home[key], values[key]) for key in values)


def test_slices_of_another_copy_are_refused_while_one_is_under_way() -> None:
    values = state()
    target = StateCollectors(collector(values), lambda: collector(values))
    (first, _), (second, _), _ = sent_by(0, values)
    target.opening("b", msgspec.structs.replace(sent_by(1, values)[0][0], unit=999))  # it says so too early
    target.copy(3)
    target.opening("a", msgspec.structs.replace(first, unit=3))
    with pytest.raises(ProtocolError, match="after unit 999 came, which is not under way"):
        target.opening("b", msgspec.structs.replace(sent_by(1, values)[0][0], unit=999))
    target.retract(msgspec.structs.replace(second, unit=999))
    target.drop(3)
    with pytest.raises(ProtocolError, match="after unit 2 came, which is not under way"):
        target.opening("a", msgspec.structs.replace(first, unit=2))


def test_few_copies_are_open_before_one_is_said_to_be_under_way() -> None:
    values = state()
    target = StateCollectors(collector(values), lambda: collector(values))
    header = sent_by(0, values)[0][0]
    for unit in range(MOST_OPEN_COPIES):
        target.opening("a", msgspec.structs.replace(header, unit=unit))
    with pytest.raises(ProtocolError, match="not under way"):
        target.opening("a", msgspec.structs.replace(header, unit=MOST_OPEN_COPIES))


def test_a_copy_that_is_not_awaited_any_more_still_comes() -> None:
    """Collecting began while it was under way: its workers send the rest, and must not be refused."""

    async def scenario() -> None:
        target = StateCollectors(collector(values), lambda: collector(values))
        header, content = sent[0]
        memory = target.opening("a", header)
        waiting = asyncio.create_task(target.copy(3).state())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        memory[:] = content
        target.complete(header)
        for header, content in sent[1:]:
            target.opening("a", header)[:] = content
            target.complete(header)
        assert not target.end._received
        for header, content in others:
            target.opening("b", header)[:] = content
            target.complete(header)
        tensors = (await target.copy(3).state()).tensors
        assert all(torch.equal(tensors[key], values[key]) for key in values)

    values = state()
    sent, others = (copy_of(3, sent_by(segment, values)) for segment in (0, 1))
    asyncio.run(scenario())


def test_the_forms_of_slots_are_those_of_their_parameters() -> None:
    kinds = {"a": Form("float32", (2, 3)), "b": Form("float32", (4,))}
    assert with_slots(kinds, ["a"], AdamW(lr=0.1)) == {
        StateKey("a"): kinds["a"],
        StateKey("b"): kinds["b"],
        StateKey("a", "step"): Form("int64", ()),
        StateKey("a", "exp_avg"): kinds["a"],
        StateKey("a", "exp_avg_sq"): kinds["a"],
    }
