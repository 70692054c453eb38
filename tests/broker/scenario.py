"""A broker's history in a few words: events in, what was said to whom out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from farflung.broker.core import events, facts
from farflung.broker.core.events import (
    Admit,
    Command,
    Reject,
    Reply,
    RunPlanner,
    Send,
    SendLoad,
    SendToSubmitter,
)
from farflung.broker.core.state import Outcome, State, decide, reduce_fact, replay
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.broker.planning.messages import PlanResult
from farflung.plans import FEEDER, Edge, Placement, Plan
from farflung.protocol.copies import Copied, HeldCopy
from farflung.protocol.fields import Opset
from farflung.protocol.messages import (
    Cancel,
    Collected,
    Keep,
    Kept,
    Load,
    Loaded,
    Message,
    Register,
    Return,
    Stalled,
    Submit,
    UnitReady,
)
from farflung.protocol.registration import Device, Standing
from farflung.protocol.worker import SegmentProgram, Share
from farflung.runtime.backend import EMULATED
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.training import Training

DEVICE = Device("cpu", "a small box", 2, 2**30, "torch 2.13.0", Opset.own())
EMULATED_DEVICE = Device(EMULATED, "emulated, 5 TFLOP/s", 1, 2**30, EMULATED, Opset.own())


def training(**changes: object) -> Training:
    """Three steps of two microbatches of four samples, clipped at 1."""
    given = {
        "steps": 3,
        "microbatches": 2,
        "microbatch_size": 4,
        "optimizer": SGD(0.1),
        "clip": 1.0,
        "copies": 1,
        **changes,
    }
    return Training(**given)  # type: ignore[arg-type]


def plan_over(workers: list[str]) -> Plan:
    """A chain of one segment a worker, and a last one on the first worker (a loop, as ties make)."""
    hosts = [*workers, workers[0]]
    placements = [Placement(number, [host], 1000, 4000, 3) for number, host in enumerate(hosts)]
    edges = [Edge(0, FEEDER, 0, 64, False)]
    edges += [Edge(number + 1, number, number + 1, 64, True) for number in range(len(hosts) - 1)]
    return Plan(placements, edges, microbatches=2, window=2)


SUBMITTER_SEEN_AT = "192.0.2.9:50000"
RESUMING = {
    "unit",
    "attempts",
    "checkpoint_every",
    "checkpoint_end",
    "run",
    "patience_seconds",
    "monitored",
    "saves",
}


class Scenario:
    """Feeds events to the pure state machine and remembers every outcome.

    Workers still have what they sent in the units from `logged_from` on; None: in none. A copy of a share has
    `copy_bytes`, and each share a base of `base_bytes`, if that is not 0.
    """

    def __init__(self, *workers: str) -> None:
        self.state = State.empty()
        self.now = 1000.0
        self.facts: list[facts.Fact] = []
        self.commands: list[Command] = []
        self.blobs: dict[bytes, bytes] = {}
        self.restarts: list[int] = []  # each by the number of facts before it
        self.logged_from: int | None = None
        self.copy_bytes, self.base_bytes = 500, 0
        for worker in workers:
            self.join(worker)

    def feed(self, event: events.Event) -> Outcome:
        outcome = decide(self.state, event)
        self.state = outcome.state
        self.facts.extend(outcome.facts)
        self.commands.extend(outcome.commands)
        self.blobs.update(outcome.blobs)
        for digest in outcome.unneeded:
            self.blobs.pop(digest, None)
        self.now += 1.0
        return outcome

    def take(self, *decisions: facts.Fact) -> None:
        """Apply decisions that no event leads to yet."""
        for fact in decisions:
            self.state = reduce_fact(self.state, fact)
            self.facts.append(fact)
        self.blobs = {digest: blob for digest, blob in self.blobs.items() if digest in self.state.blobs()}

    def join(
        self,
        worker: str,
        boot: str = "boot-1",
        silent_seconds: float | None = None,
        device: Device = DEVICE,
        held: Sequence[HeldCopy] = (),
        disk_bytes: int = 0,
        standing: Standing | None = None,
        leaving_seconds: int | None = None,
        home_of: Sequence[str] = (),
    ) -> Outcome:
        where = WorkerAddresses((f"{worker}.example:7000",))
        register = Register(
            device,
            "lab",
            list(where.addresses),
            boot,
            standing=standing,
            held=list(held),
            disk_bytes=disk_bytes,
            leaving_seconds=leaving_seconds,
            home_of=list(home_of),
        )
        return self.feed(events.WorkerRegisters(self.now, worker, register, where, silent_seconds, 3.0))

    def leave(self, worker: str, reason: str = "connection reset") -> Outcome:
        return self.feed(events.WorkerLeaves(self.now, worker, reason))

    def submit(
        self, workers: int = 2, submitter: str = "ana", on: Sequence[str] = (), **changes: object
    ) -> Outcome:
        """Submit a job; `changes` are fields of `Submit` or of its training."""
        own = {name: changes.pop(name) for name in (RESUMING | {"wishes"}) & changes.keys()}
        message = Submit("gpt", b"graph", training(**changes), len(on) or workers, list(on), **own)  # type: ignore[arg-type]
        return self.say(message, submitter)

    def say(
        self,
        message: Submit | Return | Stalled | Keep | Kept | Collected | Cancel,
        submitter: str = "ana",
        elsewhere: Mapping[str, float] = {},
        patience_seconds: float = 0.0,
    ) -> Outcome:
        """A message from a submitter; other sessions of it hold the jobs `elsewhere`."""
        said = events.SubmitterMessage(
            self.now, submitter, message, SUBMITTER_SEEN_AT, elsewhere, 3.0, patience_seconds=patience_seconds
        )
        return self.feed(said)

    def restart(self) -> Outcome:
        """Start the broker again, with what it has stored."""
        log = [facts.encode(fact) for fact in self.facts if isinstance(fact, facts.Decision)]
        self.state = replay(facts.decode(record) for record in log)
        self.restarts.append(len(self.facts))
        return self.feed(events.Restarted(self.now))

    def tick(self, seconds: float) -> Outcome:
        """Let time pass, with a lease of 10 s."""
        self.now += seconds
        return self.feed(events.Tick(self.now, 300.0, 40.0, 600.0))

    def planned(self, job: str = "job-1", attempt: int | None = None) -> Outcome:
        held = self.state.jobs[job]
        members = list(held.members)[: held.asked or None] or ["gone"]
        plan = plan_over(members)
        if held.wishes.home.data:
            plan = msgspec.structs.replace(plan, home=[0, len(plan.placements) - 1])
        programs = [SegmentProgram(n, b"program", {f"weight-{n}": 4}) for n in range(len(plan.placements))]
        owned = [[f"weight-{part.segment}"] for part in plan.placements]
        attempt = held.attempt if attempt is None else attempt
        return self.feed(events.PlanMade(self.now, job, attempt, PlanResult(plan, programs, owned, None)))

    def loaded(self, worker: str, job: str = "job-1", attempt: int = 1) -> Outcome:
        return self.feed(events.WorkerMessage(self.now, worker, Loaded(job, attempt)))

    def ready(self, worker: str, unit: int, job: str = "job-1", **share: object) -> Outcome:
        return self.feed(events.WorkerMessage(self.now, worker, self.shares(worker, unit, job, **share)))

    def shares(self, worker: str, unit: int, job: str = "job-1", **share: object) -> UnitReady:
        held = self.state.jobs[job]
        values = {"square": 4.0, "finite": True, "loss": 0.5, **share}
        computing = float(values.pop("computing", 0.0))  # type: ignore[arg-type]
        plan = held.plan or plan_over(list(held.members))
        square = values.pop("square")
        now = held.training.units().at(unit)
        trains = now is None or now.train
        parts = [
            Share(number, squares={number: square} if trains else {}, **values)  # type: ignore[arg-type, dict-item]
            for number in plan.segments_of(worker)
        ]
        return UnitReady(
            job,
            held.attempt,
            unit,
            parts,
            bytes_sent=10,
            computing_seconds=computing,
            logged_from=self.logged_from,
        )

    def running(self, workers: int = 2, **changes: object) -> None:
        """Bring job-1 to its first unit."""
        self.submit(workers, **changes)
        self.planned()
        job = self.state.jobs["job-1"]
        for worker in job.members:
            self.loaded(worker, attempt=job.attempt)

    def all_ready(self, unit: int, **share: object) -> None:
        for worker in self.state.jobs["job-1"].members:
            self.ready(worker, unit, **share)

    def copied(self, worker: str, unit: int, share: int, job: str = "job-1", trouble: str = "") -> Outcome:
        """A worker has a copy of a share, or not: `trouble` says why."""
        digest = b"" if trouble else digest_of(unit, share)
        attempt = self.state.jobs[job].attempt
        message = Copied(job, attempt, unit, share, digest, 0 if trouble else self.copy_bytes, trouble)
        if self.base_bytes and not trouble:
            base = bytes([255, share]) * 16
            message = msgspec.structs.replace(message, base=base, base_bytes=self.base_bytes)
        return self.feed(events.WorkerMessage(self.now, worker, message))

    def collected(self, job: str = "job-1", attempt: int = 1, submitter: str = "ana") -> Outcome:
        return self.say(Collected(job, attempt), submitter)

    def cancel(self, collect: bool, job: str = "job-1", submitter: str = "ana") -> Outcome:
        return self.say(Cancel(job, "Ctrl-C", collect), submitter)


def digest_of(unit: int, share: int) -> bytes:
    """The digest of a pretended copy."""
    return bytes([unit + 1, share]) * 16


def sent(outcome_commands: object, worker: str) -> list[Message]:
    """What these commands send to `worker`."""
    return [c.message for c in outcome_commands if isinstance(c, Send) and c.worker == worker]  # type: ignore[attr-defined]


def loads(outcome: Outcome) -> dict[str, Load]:
    """What this outcome makes each worker load."""
    found = [command for command in outcome.commands if isinstance(command, SendLoad)]
    return {command.worker: command.message(outcome.blobs) for command in found}


def told(outcome_commands: object, job: str = "job-1") -> list[Message]:
    """What these commands tell the job's submitter."""
    return [c.message for c in outcome_commands if isinstance(c, SendToSubmitter) and c.job == job]  # type: ignore[attr-defined]


__all__ = [
    "Admit",
    "Reject",
    "Reply",
    "RunPlanner",
    "Scenario",
    "loads",
    "plan_over",
    "sent",
    "told",
    "training",
]
