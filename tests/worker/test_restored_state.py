"""A worker's segments go on from an earlier run: state and optimizer slots as the submitter sends them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch
from tests.support.by_hand import ByHand, State
from tests.worker.loads import limits
from torch import Tensor

from farflung.client.run.state_transfer import send_state
from farflung.errors import GraphError, ProtocolError
from farflung.opdag import wire
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.backend import AnyBackend
from farflung.runtime.frameworks import backend_called
from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer
from farflung.runtime.optimizers.slots import STEP
from farflung.runtime.state import CODERS, StateKey, trained_shapes
from farflung.transport.wire.headers import SliceHeader
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.loading import load_segments
from farflung.worker.computing.outcomes import Outcome
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import ComputeFailed, Filled, Verified

torch.set_num_threads(1)
ATTEMPT = ("job-1", 1)
ADAMW = AdamW(lr=0.01)
PATIENCE_SECONDS = 60.0


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def load_of(run: ByHand, unit: int, trained: dict[str, list[int]] | None = None) -> Load:
    """All segments of the run's model on one worker, from `unit` on; each is said to train `trained`."""
    placements = [msgspec.structs.replace(p, workers=["w"]) for p in run.planned.plan.placements]
    plan = msgspec.structs.replace(run.planned.plan, placements=placements)
    segments = run.planned.segments
    programs = [
        SegmentProgram(
            s.number,
            wire.dump(s),
            _sizes(run, s.owned),
            trained_shapes(s) if trained is None else trained,
        )
        for s in segments
    ]
    return Load("job-1", 1, plan, run.training, programs, {}, "desk", unit)


def _sizes(run: ByHand, owned: list[str]) -> dict[str, int]:
    return {name: run.tensors[name].nbytes for name in owned}


class ToReceiver:
    """A link that ends in a worker's receiver."""

    def __init__(self, receiver: StateReceiver) -> None:
        self._receiver = receiver

    async def send(self, header: SliceHeader, buffer: memoryview) -> None:
        memory = self._receiver.opening("desk", header)
        assert memory is not None
        memory[:] = buffer
        self._receiver.complete(header)


def fill(receiver: StateReceiver, run: ByHand, state: State) -> None:
    """Send the state as the submitter does."""
    segments = {segment.number: segment.owned for segment in run.planned.segments}
    tensors = {key: _tensor(run, key, data) for key, data in state.items()}
    asyncio.run(send_state("job-1", 1, segments, tensors, ToReceiver(receiver), lambda size: None))
    assert receiver.full


def _tensor(run: ByHand, key: StateKey, data: bytes) -> Tensor:
    like = torch.tensor(0) if key.slot == STEP else run.tensors[key.name]
    return torch.frombuffer(bytearray(data), dtype=like.dtype).reshape(like.shape)


@contextmanager
def compute(
    backend: AnyBackend, load: Load, receiver: StateReceiver
) -> Iterator[tuple[ComputeThread, list[Outcome]]]:
    outcomes: list[Outcome] = []
    thread = ComputeThread("w", 10**9, backend, outcomes.append, lambda outgoing: None)
    thread.start()
    thread.prepare(load, receiver, limits())
    try:
        yield thread, outcomes
    finally:
        thread.drop()
        thread.close()
        thread.join(PATIENCE_SECONDS)


@pytest.mark.cases(2)
@pytest.mark.parametrize("declared", [ADAMW, SGD(lr=0.1, momentum=0.9)], ids=["adamw", "momentum"])
@pytest.mark.parametrize(
    ("framework", "name"), [("torch", "gpt-tied"), pytest.param("jax", "chain", marks=pytest.mark.slow)]
)
def test_segments_go_on_from_slots_that_came_with_the_state(
    framework: str, name: str, declared: Optimizer
) -> None:
    backend = backend_called(framework)
    undisturbed, other = (ByHand(name, backend, 2, declared) for _ in range(2))
    undisturbed.steps(0, 2)
    state = undisturbed.state()
    load = load_of(undisturbed, 2)
    numbers = list(range(len(undisturbed.runners)))
    receiver = StateReceiver(load, numbers, 10**9, backend.allocate)
    assert receiver.size == sum(map(len, state.values()))
    with compute(backend, load, receiver) as (thread, outcomes):
        eventually(lambda: bool(outcomes))
        fill(receiver, undisturbed, state)
        thread.check_state(ATTEMPT, receiver)
        eventually(lambda: len(outcomes) == 2)
        assert isinstance(outcomes[0], Verified) and outcomes[1:] == [Filled(ATTEMPT)]
        assert thread._job is not None
        other.use(list(thread._job.segments.values()))
        assert other.state() == state
        assert other.steps(2, 4) == undisturbed.steps(2, 4)
        assert other.state() == undisturbed.state()
    assert not receiver.take_slots(0)  # their memory is the runner's


def test_a_count_below_one_ends_the_attempt_with_the_parameters_name() -> None:
    backend = backend_called("torch")
    run = ByHand("chain", backend, 1, ADAMW)
    run.step(0)
    state = run.state() | {StateKey("layers.0.bias", STEP): bytes(8)}
    load = load_of(run, 1)
    receiver = StateReceiver(load, [0], 10**9, backend.allocate)
    fill(receiver, run, state)
    with compute(backend, load, receiver) as (thread, outcomes):
        thread.check_state(ATTEMPT, receiver)
        eventually(lambda: len(outcomes) == 2)
        reason = "the optimizer state of 'layers.0.bias' counts 0 updates, expected at least 1"
        assert outcomes[1] == ComputeFailed(ATTEMPT, reason)


def test_slots_of_what_is_not_trained_are_refused_before_they_come() -> None:
    backend = backend_called("torch")
    run = ByHand("frozen", backend, 1, ADAMW)
    load = load_of(run, 1, {"layers.0.weight": [16, 16]})
    receiver = StateReceiver(load, [0], 10**9, backend.allocate)
    with pytest.raises(
        GraphError, match=r"'layers\.0\.\w+' is not trained by its program, the job says it is"
    ):
        load_segments("w", load, receiver, 10**9, backend)


def test_a_load_that_states_another_shape_is_refused() -> None:
    """The slots of some optimizers depend on it."""
    backend = backend_called("torch")
    run = ByHand("chain", backend, 1, ADAMW)
    shapes = trained_shapes(run.planned.segments[0])
    load = load_of(run, 1, shapes | {"layers.0.weight": [64, 4]})
    receiver = StateReceiver(load, [0], 10**9, backend.allocate)
    words = r"'layers\.0\.weight' has shape \[16, 16\], the job says \[64, 4\]"
    with pytest.raises(GraphError, match=words):
        load_segments("w", load, receiver, 10**9, backend)


def test_slots_come_only_for_parameters_that_the_load_names() -> None:
    backend = backend_called("torch")
    run = ByHand("chain", backend, 1, ADAMW)
    receiver = StateReceiver(
        load_of(run, 1, {"layers.1.weight": list(run.tensors["layers.1.weight"].shape)}),
        [0],
        10**9,
        backend.allocate,
    )
    size = run.tensors["layers.0.weight"].nbytes

    def header(name: str, slot: str, total: int = size) -> SliceHeader:
        return SliceHeader("job-1", 1, 0, name, 0, min(size, total), total, bytes(32), slot)

    assert receiver.opening("desk", header("layers.1.weight", "exp_avg")) is not None
    for name, slot, total in (
        ("layers.0.weight", "exp_avg", size),
        ("layers.1.weight", "momentum_buffer", size),
        ("layers.1.weight", "exp_avg_sq", size + 4),
        ("layers.1.weight", "step", size),
    ):
        with pytest.raises(ProtocolError, match=f"slice of {slot} of '{name}'"):
            receiver.opening("desk", header(name, slot, total))


def test_slots_count_against_what_the_owner_gives() -> None:
    backend = backend_called("torch")
    run = ByHand("chain", backend, 1, ADAMW)
    state = sum(tensor.nbytes for tensor in run.tensors.values())
    slots = sum(2 * tensor.nbytes + 8 for tensor in run.tensors.values())
    load = load_of(run, 1)
    with pytest.raises(GraphError, match=f"state takes {state + slots} bytes, this worker offers"):
        StateReceiver(load, [0], state + slots - 1, backend.allocate)


def test_no_slots_are_expected_before_the_first_step() -> None:
    backend = backend_called("torch")
    run = ByHand("chain", backend, 1, ADAMW)
    receiver = StateReceiver(load_of(run, 0), [0], 10**9, backend.allocate)
    assert receiver.size == sum(tensor.nbytes for tensor in run.tensors.values())
    assert receiver.take_coders() is None


def coded_receiver(unit: int = 1, room: int = 100) -> StateReceiver:
    """The receiver of a job with codecs, with `room` bytes beside parameters and slots."""
    backend = backend_called("torch")
    run = ByHand("chain", backend, 1, ADAMW)
    load = load_of(run, unit)
    coded = msgspec.structs.replace(load, training=load.training.with_codecs(("int8",)))
    size = StateReceiver(coded, [0], 10**9, backend.allocate).size
    return StateReceiver(coded, [0], size + room, backend.allocate)


def of_coders(data: bytes, **changes: object) -> SliceHeader:
    digest = hashlib.sha256(data).digest()
    header = SliceHeader("job-1", 1, 0, CODERS.name, 0, len(data), len(data), digest, CODERS.slot)
    return msgspec.structs.replace(header, **changes)


def test_the_coders_state_comes_with_the_state_of_a_coded_job() -> None:
    receiver = coded_receiver()
    receiver._missing.clear()  # parameters and slots have come
    assert not receiver.full
    header = of_coders(b"learned")
    memory = receiver.opening("desk", header)
    assert memory is not None and not receiver.full
    memory[:] = b"learned"
    receiver.complete(header)
    assert receiver.full
    assert bytes(receiver.take_coders() or b"") == b"learned"


def test_the_coders_state_must_fit_and_come_from_the_submitter() -> None:
    receiver = coded_receiver(room=6)
    with pytest.raises(ProtocolError, match="the state of the coders takes 7 bytes, this worker has 6 left"):
        receiver.opening("desk", of_coders(b"learned"))
    with pytest.raises(ProtocolError, match="which the plan does not expect"):
        receiver.opening("other", of_coders(b"taught"))
    with pytest.raises(ProtocolError, match="which the plan does not expect"):
        receiver.opening("desk", of_coders(b"", total=0))


def test_no_coders_state_is_expected_at_the_first_unit() -> None:
    with pytest.raises(ProtocolError, match="which the plan does not expect"):
        coded_receiver(unit=0).opening("desk", of_coders(b"learned"))
