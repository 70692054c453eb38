"""A worker that takes over a lost share runs past units again, from what its neighbours sent then, to the
very bits. Real compute threads of three workers in one process; the messages between them are passed by hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, placed, workers
from tests.worker.loads import limits

from farflung.plans import FEEDER, LinkCodec, Plan
from farflung.protocol.messages import Load
from farflung.protocol.worker import PastUnit, SegmentProgram, Share
from farflung.runtime.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizer import SGD, AdamW, Optimizer
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import trained_names
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.training import Training
from farflung.worker.compute import ComputeThread
from farflung.worker.events import Filled, UnitFinished, UnitReplayed, Verified
from farflung.worker.outcomes import Outgoing, OutgoingState, Restored, StateCopied, StateGiven
from farflung.worker.replay import BoundaryLog
from farflung.worker.state_receiver import StateReceiver

torch.set_num_threads(1)
SAMPLES, MICROBATCHES, STEPS, PATIENCE_SECONDS = 2, 3, 7, 20.0
LOST, SPARE = "worker-1", "worker-9"
Kind = TypeVar("Kind")


@pytest.fixture(autouse=True)
def one_pass_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of one process share torch's generator, which each pass of a worker seeds anew."""
    lock = threading.RLock()
    for name in ("forward", "backward", "accumulate"):
        method = getattr(TorchSegment, name)

        def locked(*arguments: Any, method: Any = method) -> Any:
            with lock:
                return method(*arguments)

        monkeypatch.setattr(TorchSegment, name, locked)


class Member:
    """One worker: its compute thread, what came out of it, and its log of what it has sent."""

    def __init__(self, fleet: Fleet, name: str, load: Load, state: dict[tuple[int, str], bytes]) -> None:
        self.fleet, self.name, self.load = fleet, name, load
        self.said: list[object] = []
        self.sent = BoundaryLog(load.unit, 10**9)
        self.thread = ComputeThread(name, 10**9, TorchBackend(), self.said.append, self._send)
        self.receiver = StateReceiver(load, load.plan.segments_of(name), 10**9, tensors.allocate)
        for key, buffer in self.receiver.buffers.items():
            buffer[:] = state[key]
        self.thread.start()
        self.thread.prepare(load, self.receiver, limits())
        assert self.all_of(Verified, 1)[0].problem is None

    @property
    def attempt(self) -> tuple[str, int]:
        return (self.load.job, self.load.attempt)

    def all_of(self, kind: type[Kind], count: int) -> list[Kind]:
        def found() -> list[Kind]:
            return [one for one in list(self.said) if isinstance(one, kind)]

        eventually(lambda: len(found()) >= count)
        return found()

    def _send(self, outgoing: Outgoing) -> None:
        if outgoing.parcel.target == FEEDER:
            return
        with self.fleet.lock:
            self.sent.add(outgoing.parcel)
        is_past = outgoing.parcel.unit < self.load.unit + len(self.load.history)
        peer = self.fleet.members.get(outgoing.peer)
        if peer is not None and not is_past and outgoing.attempt == self.attempt:
            peer.thread.receive(outgoing.attempt, outgoing.parcel)

    def close(self) -> None:
        self.thread.drop()
        self.thread.close()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


class Fleet:
    """Workers that train one model in a pipeline."""

    def __init__(
        self, name: str, optimizer: Optimizer, codec: str = "", validates: bool = False, size: int = 3
    ) -> None:
        self.lock = threading.Lock()
        module, self._graph = captured(case(name), SAMPLES)
        self._case = case(name)
        self._codec = codec
        validation = {"validate_every": 2, "validation_microbatches": 1} if validates else {}
        training = Training(STEPS, MICROBATCHES, SAMPLES, optimizer, clip=0.5, **validation)  # type: ignore[arg-type]
        if codec:
            training = training.with_codecs(tuple(dict.fromkeys(codec.split("/"))))
        self._units = list(training.units())
        named = named_state(module, self._graph)
        self.weights = {name: bytes(tensors.memory(tensor.detach())) for name, tensor in named.items()}
        self._load = self.cut(size, training)
        self.members: dict[str, Member] = {}
        for name in self._load.plan.workers():
            self.members[name] = Member(self, name, self._load, self.owned(self._load))
        for member in self.members.values():
            member.thread.begin(member.attempt)
        self.history: list[PastUnit] = []
        self.losses: list[float] = []

    def cut(self, size: int, training: Training) -> Load:
        """The model in equal parts, one for each of so many workers; a tied one has its end on the first."""
        count, names = len(self._graph.nodes), workers(size)
        hosts = [*names, names[0]] if "tied" in self._case.name and size > 1 else names
        cuts = [one * count // len(hosts) for one in range(1, len(hosts))]
        job = placed(self._graph, cuts, hosts, MICROBATCHES, SAMPLES)
        links = [LinkCodec(a, b, self._codec, 1.0) for a in names for b in names if a != b and self._codec]
        plan = msgspec.structs.replace(job.plan, codecs=links)
        programs = [
            SegmentProgram(s.number, program, {n: len(self.weights[n]) for n in s.owned}, trained_names(s))
            for s, program in zip(job.segments, job.programs, strict=True)
        ]
        return Load("job-1", 1, plan, training, programs, {}, "desk")

    def owned(self, load: Load) -> dict[tuple[int, str], bytes]:
        """The state with which training begins, by segment and name."""
        return {(part.segment, name): self.weights[name] for part in load.programs for name in part.owned}

    def inputs(self, number: int, name: str, only: int | None = None) -> Iterator[Parcel[Coded]]:
        """What the feeder sends to a worker in a unit, or in one microbatch of it."""
        unit, plan = self._units[number], self._load.plan
        names = {entry.value: entry.name for entry in self._graph.inputs_of("input")}
        batches = microbatches(self._case, SAMPLES, unit.microbatches, number)
        for microbatch, batch in enumerate(batches):
            for edge in plan.edges:
                mine = edge.source == FEEDER and plan.worker_of(edge.target) == name
                if mine and only in (None, microbatch):
                    data = tensors.memory(batch[names[edge.value]].contiguous())
                    yield Parcel(number, microbatch, FEEDER, edge.target, edge.value, False, Coded(0, data))

    def begin(self, unit: int, only: int | None = None) -> None:
        for name, member in self.members.items():
            for parcel in self.inputs(unit, name, only):
                member.thread.receive(member.attempt, parcel)

    def run(self, unit: int) -> None:
        """One unit, decided as the broker does."""
        self.begin(unit)
        shares: list[Share] = []
        for member in self.members.values():

            def finished(member: Member = member) -> list[UnitFinished]:
                found = [one for one in list(member.said) if isinstance(one, UnitFinished)]
                return [one for one in found if (one.attempt, one.unit) == (member.attempt, unit)]

            eventually(lambda: bool(finished()))
            shares += finished()[0].shares
        shares.sort(key=lambda share: share.segment)
        norm = gradient_norm(share.squares for share in shares)
        scale = clip_scale(0.5, norm) if self._units[unit].train else 1.0
        self.history.append(PastUnit(scale, None, {share.segment: share.digest for share in shares}))
        self.losses.append(sum(share.loss for share in shares))
        for member in self.members.values():
            member.thread.decide(member.attempt, unit, scale)

    def copy(self, unit: int) -> StateCopied:
        """A copy of the share that will be lost, right after a unit."""
        member = self.members[LOST]
        member.thread.copy_state(member.attempt, unit, keep=False, copy=True)
        copied = member.all_of(StateCopied, 1)[0]
        frozen = {piece: memoryview(bytearray(buffer)) for piece, buffer in copied.pieces.items()}
        return StateCopied(copied.attempt, unit, frozen, copied.keep, True)

    def lose(self, copied: StateCopied, unit: int) -> None:
        """Kill a worker in the midst of `unit`; the spare one takes its place, and all others keep theirs."""
        self.begin(unit, only=0)
        first = self.members[workers(3)[0]]
        eventually(lambda: bool(first.sent.of(unit, range(3))))
        self.members.pop(LOST).close()
        plan = _renamed(self._load.plan)
        load = msgspec.structs.replace(self._load, attempt=2, plan=plan, unit=unit)
        for member in self.members.values():
            member.thread.regroup(load)
            member.sent.drop_from(unit)
            member.load = load
        past = self.history[copied.unit + 1 : unit]
        self.members[SPARE] = self._taken_over(copied, msgspec.structs.replace(load, history=past))
        self._load = load
        for member in self.members.values():
            eventually(lambda member=member: Filled(("job-1", 2)) in member.said)  # type: ignore[misc]
            member.thread.begin(member.attempt)

    def _taken_over(self, copied: StateCopied, load: Load) -> Member:
        again = msgspec.structs.replace(load, unit=copied.unit + 1)
        empty = {(p.segment, n): bytes(size) for p in load.programs for n, size in p.owned.items()}
        spare = Member(self, SPARE, again, empty)
        for piece, buffer in copied.pieces.items():
            spare.receiver.place(piece, len(buffer))[:] = buffer
        spare.receiver.trust()
        spare.thread.check_state(spare.attempt, spare.receiver)
        if load.history:
            spare.all_of(Restored, 1)
        mine = load.plan.segments_of(SPARE)
        for unit in range(again.unit, again.unit + len(load.history)):
            if not self._units[unit].train:
                continue
            pulled = [p for member in self.members.values() for p in member.sent.of(unit, mine)]
            for parcel in [*self.inputs(unit, LOST), *pulled]:
                spare.thread.receive(spare.attempt, parcel)
            spare.all_of(UnitReplayed, unit - again.unit + 1)
        return spare

    def state(self) -> dict[tuple[int, str], bytes]:
        """All that the optimizer and training have made, once the last unit is decided."""
        found = {}
        for member in self.members.values():
            member.thread.end_training(member.attempt)
            member.thread.give_state(member.attempt, whole=True)
            member.all_of(StateGiven, 1)
            found |= {(p.segment, str(p.key)): bytes(p.buffer) for p in member.all_of(OutgoingState, 0)}
        return found

    def close(self) -> None:
        for member in self.members.values():
            member.close()


def _renamed(plan: Plan) -> Plan:
    """The plan with the spare worker in place of the lost one."""

    def name(worker: str) -> str:
        return SPARE if worker == LOST else worker

    placements = [msgspec.structs.replace(p, workers=[name(p.worker)]) for p in plan.placements]
    codecs = [
        msgspec.structs.replace(one, source=name(one.source), target=name(one.target)) for one in plan.codecs
    ]
    return msgspec.structs.replace(plan, placements=placements, codecs=codecs)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def fleet(*arguments: object, **more: bool) -> Iterator[Fleet]:
    made = Fleet(*arguments, **more)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


CASES = [
    ("gpt-dropout", AdamW(0.01), ""),
    ("batch-norm", SGD(0.1, momentum=0.9), ""),
    ("gpt", AdamW(0.01), "int8"),
    ("gpt", AdamW(0.01), "axes3/axes10-dithered"),
    pytest.param("gpt", SGD(0.1), "row-topk30-int4/masked30-int4", marks=pytest.mark.slow),
    pytest.param("resnet", SGD(0.1, momentum=0.9), "", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "optimizer", "codec"), CASES)
def test_a_share_that_runs_past_units_again_alone_has_the_bits_of_the_lost_one(
    name: str, optimizer: Optimizer, codec: str
) -> None:
    with fleet(name, optimizer, codec) as undisturbed, fleet(name, optimizer, codec) as disturbed:
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(5):
            disturbed.run(unit)
            if unit == 1:
                copied = disturbed.copy(unit)
        disturbed.lose(copied, 5)
        for unit in (5, 6):
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert disturbed.state() == undisturbed.state()


def test_evaluations_are_passed_over() -> None:
    arguments: Sequence[object] = ("gpt-dropout", AdamW(0.01), "int8", True)
    with fleet(*arguments) as undisturbed, fleet(*arguments) as disturbed:
        units = range(len(undisturbed._units))
        for unit in units:
            undisturbed.run(unit)
        for unit in units[:7]:
            disturbed.run(unit)
            if unit == 1:
                copied = disturbed.copy(unit)
        assert not all(undisturbed._units[unit].train for unit in range(2, 7))
        disturbed.lose(copied, 7)
        for unit in units[7:]:
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert disturbed.state() == undisturbed.state()


def test_a_copy_of_the_newest_unit_needs_no_past_unit() -> None:
    with fleet("gpt", AdamW(0.01)) as undisturbed, fleet("gpt", AdamW(0.01)) as disturbed:
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(3):
            disturbed.run(unit)
        disturbed.lose(disturbed.copy(2), 3)
        for unit in range(3, STEPS):
            disturbed.run(unit)
        assert disturbed.state() == undisturbed.state()


def test_a_share_with_other_numbers_is_noticed() -> None:
    with fleet("gpt", AdamW(0.01)) as disturbed:
        for unit in range(4):
            disturbed.run(unit)
            if unit == 1:
                copied = disturbed.copy(unit)
        past = disturbed.history[2]
        disturbed.history[2] = PastUnit(past.scale, None, dict.fromkeys(past.digests, b"otherbit"))
        load = msgspec.structs.replace(
            disturbed._load,
            attempt=2,
            plan=_renamed(disturbed._load.plan),
            unit=2,
            history=disturbed.history[2:],
        )
        spare = Member(
            disturbed,
            SPARE,
            load,
            {(p.segment, n): bytes(s) for p in load.programs for n, s in p.owned.items()},
        )
        disturbed.members[SPARE] = spare
        for piece, buffer in copied.pieces.items():
            spare.receiver.place(piece, len(buffer))[:] = buffer
        spare.receiver.trust()
        spare.thread.check_state(spare.attempt, spare.receiver)
        spare.all_of(Restored, 1)
        pulled = [p for m in disturbed.members.values() for p in m.sent.of(2, load.plan.segments_of(SPARE))]
        for parcel in [*disturbed.inputs(2, LOST), *pulled]:
            spare.thread.receive(spare.attempt, parcel)
        problem = spare.all_of(Verified, 2)[1].problem
        assert problem == "unit 2 has other numbers than it had before its worker was lost"
        assert not spare.all_of(UnitReplayed, 0)
