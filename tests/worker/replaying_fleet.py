"""A fleet of real compute threads in one process, some of which run past units again; the messages between
them are passed by hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.training import Training
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import (
    Outgoing,
    OutgoingState,
    Restored,
    ShareReplayed,
    StateCopied,
    StateGiven,
)
from farflung.worker.computing.replay import BoundaryLog, Replay
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import Attempt, Filled, UnitFinished, UnitReplayed, Verified

torch.set_num_threads(1)
SAMPLES, MICROBATCHES, STEPS, PATIENCE_SECONDS = 2, 3, 7, 20.0
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
        self.replay = Replay(load)
        self.thread = ComputeThread(name, 10**9, TorchBackend(), self.said.append, self._send)
        self.receiver = StateReceiver(load, load.plan.segments_of(name), 10**9, tensors.allocate)
        for key, buffer in self.receiver.buffers.items():
            buffer[:] = state[key]
        self.thread.start()
        self.thread.prepare(load, self.receiver, limits())
        assert self.all_of(Verified, 1)[0].problem is None

    @property
    def attempt(self) -> Attempt:
        return self.load.key

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
            peer = self.fleet.members.get(outgoing.peer)
            may_send = self.replay.may_send(outgoing.peer, outgoing.parcel)
            if peer is not None and may_send and outgoing.attempt == self.attempt:
                peer.thread.receive(outgoing.attempt, outgoing.parcel)

    def pull(self) -> None:
        """Ask the neighbours and the feeder for what is due."""
        plan, fleet = self.load.plan, self.fleet
        mine = plan.segments_of(self.name)
        for peer in sorted(plan.neighbours(self.name) | {"desk"}):
            for unit in self.replay.due(peer):
                if peer == "desk":
                    parcels = list(fleet.inputs(unit, self.name))
                elif peer in self.load.replayers:
                    parcels = fleet.members[peer].replay.asked_by(self.name, unit)
                else:
                    parcels = fleet.members[peer].sent.of(unit, mine)
                for parcel in parcels:
                    self.thread.receive(self.attempt, parcel)

    def replayed(self) -> int:
        """How many units it has run again, or passed over; it goes on to the next one."""
        units = len(self.all_of(UnitReplayed, 0))
        with self.fleet.lock:
            while self.replay.current < self.load.unit + units:
                self.replay.advance()
            self.pull()
        return units

    def close(self) -> None:
        self.thread.drop()
        self.thread.close()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


class Fleet:
    """Some workers that train one model in a pipeline."""

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        codec: str = "",
        validates: bool = False,
        size: int = 3,
        verify: float = 0.0,
        home_noise: float = 0.0,
    ) -> None:
        """With `home_noise` the first segment is bound to home workers."""
        self.lock = threading.RLock()
        module, self._graph = captured(case(name), SAMPLES)
        self._case = case(name)
        self._codec = codec
        validation = {"validate_every": 2, "validation_microbatches": 1} if validates else {}
        training = Training(
            STEPS,
            MICROBATCHES,
            SAMPLES,
            optimizer,
            clip=0.5,
            verify=verify,
            home_noise=home_noise,
            **validation,  # type: ignore[arg-type]
        )
        if codec:
            training = training.with_codecs(tuple(dict.fromkeys(codec.split("/"))))
        self.units = list(training.units())
        named = named_state(module, self._graph)
        self.weights = {name: bytes(tensors.memory(tensor.detach())) for name, tensor in named.items()}
        self.load = self.cut(size, training)
        self.members: dict[str, Member] = {}
        for name in self.load.plan.workers():
            self.members[name] = Member(self, name, self.load, self.owned(self.load))
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
        home = [0] if training.home_noise else []
        plan = msgspec.structs.replace(job.plan, codecs=links, home=home)
        programs = [
            SegmentProgram(s.number, program, {n: len(self.weights[n]) for n in s.owned}, trained_shapes(s))
            for s, program in zip(job.segments, job.programs, strict=True)
        ]
        return Load("job-1", 1, plan, training, programs, {}, "desk")

    def owned(self, load: Load) -> dict[tuple[int, str], bytes]:
        """The state with which training begins, by segment and name."""
        return {(part.segment, name): self.weights[name] for part in load.programs for name in part.owned}

    def inputs(self, number: int, name: str, only: int | None = None) -> Iterator[Parcel[Coded]]:
        """What the feeder sends to a worker in a unit, or in one microbatch of it."""
        unit, plan = self.units[number], self.load.plan
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
        scale = clip_scale(0.5, norm) if self.units[unit].train else 1.0
        digests = {share.segment: share.digest for share in shares}
        received = {share.segment: share.received for share in shares}
        self.history.append(PastUnit(scale, None, digests, received))
        self.shares = shares
        self.losses.append(sum(share.loss for share in shares))
        for member in self.members.values():
            member.thread.decide(member.attempt, unit, scale)

    def copy(self, unit: int, *names: str) -> dict[str, StateCopied]:
        """Copies of shares that will be lost, right after a unit."""
        found = {}
        for name in names:
            member = self.members[name]
            member.thread.copy_state(member.attempt, unit, keep=False, copy=True, with_base=True)
            copied = member.all_of(StateCopied, 1)[0]
            whole = {**copied.pieces, **(copied.base or {})}
            frozen = {piece: memoryview(bytearray(buffer)) for piece, buffer in whole.items()}
            found[name] = StateCopied(copied.attempt, unit, frozen, copied.keep, True)
        return found

    def lose(self, copies: dict[str, StateCopied], unit: int, spares: dict[str, str]) -> None:
        """Kill workers in the midst of `unit`; spare ones take their places, and all others keep theirs."""
        self.begin(unit, only=0)
        first = self.members[self.load.plan.workers()[0]]
        eventually(lambda: bool(first.sent.of(unit, range(len(self.members)))))
        self.take_over(copies, unit, spares)
        self.finish_replay()

    def take_over(self, copies: dict[str, StateCopied], unit: int, spares: dict[str, str]) -> None:
        """Begin an attempt in which `spares` (by whose places they take) run past units again.

        `copies` are by the places' first workers, as they were when they were copied.
        """
        for lost in spares:
            self.members.pop(lost).close()
        replayers = sorted(spares.values())
        load = msgspec.structs.replace(
            self.load,
            attempt=self.load.attempt + 1,
            plan=renamed(self.load.plan, spares),
            unit=unit,
            replayers=replayers,
        )
        for member in self.members.values():
            member.thread.regroup(load)
            member.sent.drop_from(unit)
            member.load, member.replay = load, Replay(load)
        self.load = load
        version = next(iter(copies.values())).unit + 1
        again = msgspec.structs.replace(load, unit=version, history=self.history[version:unit])
        empty = {(p.segment, n): bytes(size) for p in load.programs for n, size in p.owned.items()}
        with self.lock:
            for spare in replayers:
                self.members[spare] = Member(self, spare, again, empty)
        for spare in replayers:
            mine = set(load.plan.segments_of(spare))
            (copied,) = [one for one in copies.values() if {p.segment for p in one.pieces} <= mine]
            self._restore(self.members[spare], copied)

    def _restore(self, spare: Member, copied: StateCopied) -> None:
        for piece, buffer in copied.pieces.items():
            spare.receiver.place(piece, len(buffer))[:] = buffer
        spare.receiver.trust()
        spare.thread.check_state(spare.attempt, spare.receiver)
        if spare.load.history:
            spare.all_of(Restored, 1)
            with self.lock:
                spare.pull()

    def check(self, copied: StateCopied | None, owner: str, over: int) -> ShareReplayed:
        """What a worker without a part finds that runs a share again, from a copy or from the beginning."""
        first = 0 if copied is None else copied.unit + 1
        untold = [msgspec.structs.replace(one, digests={}, received={}) for one in self.history[first:over]]
        load = msgspec.structs.replace(
            self.load,
            plan=renamed(self.load.plan, {owner: "checker"}),
            unit=first,
            replayers=["checker"],
            history=untold,
            check=1,
        )
        member = Member(self, "checker", load, self.owned(load))
        if copied is None:
            member.receiver.trust()
            member.thread.check_state(member.attempt, member.receiver)
            member.all_of(Restored, 1)
            with self.lock:
                member.pull()
        else:
            self._restore(member, copied)

        def is_over() -> bool:
            member.replayed()
            return any(isinstance(one, ShareReplayed) for one in list(member.said))

        eventually(is_over)
        member.close()
        return member.all_of(ShareReplayed, 1)[0]

    def finish_replay(self) -> None:
        """Run past units again where that is due, until all hold the state of the unit that was in flight."""
        attempt = (self.load.job, self.load.attempt)
        for member in self.members.values():

            def is_filled(member: Member = member) -> bool:
                for one in self.members.values():
                    if one.load.history:
                        one.replayed()
                return Filled(attempt) in member.said

            eventually(is_filled)
        for member in self.members.values():
            member.thread.begin(member.attempt)

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


def renamed(plan: Plan, spares: dict[str, str]) -> Plan:
    """The plan with spare workers in the places of lost ones."""

    def name(worker: str) -> str:
        return spares.get(worker, worker)

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
def fleet(*arguments: object, **more: object) -> Iterator[Fleet]:
    made = Fleet(*arguments, **more)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
