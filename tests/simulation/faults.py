"""Faults as data, how they are drawn, and how they come over the world."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.world import LEASE_SECONDS

from farflung.broker.core.trusting.events import AllowAsked, RemovalAsked

if TYPE_CHECKING:
    from tests.simulation.broker import BrokerProcess
    from tests.simulation.fleet import Fleet
    from tests.simulation.submitter import SubmitterProcess
    from tests.simulation.worker import WorkerProcess

KINDS = (
    "kill",  # a process is killed; its sockets are closed
    "power",  # a machine loses power: its links say nothing
    "leave",  # a worker shuts down in order
    "drain",  # a worker leaves in good order
    "remove",  # an operator removes a worker, and allows it again after a while
    "crash",  # the broker dies at its next group of decisions
    "freeze",  # a process stands still
    "cut",  # a path between two carries nothing
    "sever",  # a data link is lost for good
    "flap",  # a worker loses each data link soon after it is made, so that attempt after attempt fails
    "cross",  # a worker is killed just as its submitter reports a copy or the last state, or as it is chosen
    "reset",  # every connection of a process is lost and made again
    "slow",  # messages between two take long
    "fail",  # an operation of a worker raises an error
    "hang",  # an operation of a worker does not end, so the worker gives its device up
    "refuse",  # a worker refuses the next job
    "full",  # a worker's disk takes no copies, or the broker does not hear of them
    "damage",  # a worker's disk loses a copy
    "lose",  # a worker dies soon after its state is on disks, and sometimes all copies of it are lost
    "pair",  # two neighbours die soon after their state is on disks, at once or a moment after one another
    "nan",  # a gradient is not finite
    "stop",  # a submitter's user stops the run
    "keep",  # a submitter's user wants a copy
    "babble",  # a stranger sends the broker messages about jobs of others
    "echo",  # a worker hears a message of an attempt that is over
)


HARMLESS = ("crash", "keep", "babble", "echo")
"""Of these alone a job loses no unit: a broker that was restarted goes on where it was."""


@dataclass(frozen=True)
class Fault:
    """One fault: `after` events after the one before it, for `seconds`. Events are dense where much goes on.

    `victim` and `other` choose processes, modulo how many there are; `other` is also the place of a crash.
    """

    after: int
    kind: str
    victim: int
    other: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} of {self.victim} and {self.other} for {self.seconds:.1f} s"


def weather(draw: random.Random) -> Iterator[Fault]:
    """The faults of a seeded run, without end: three of ten come while the one before is being handled.

    Some worlds are calm and some are wild, and each world has kinds that it leaves out. In one of ten
    only the broker dies, in some others only workers whose state is on disks, or all leave in good order.
    """
    pause, choice = draw.choice([10, 30, 100, 300]), draw.random()
    kinds: Sequence[str] = draw.sample(KINDS, draw.randint(3, len(KINDS)))
    if choice < 0.15:
        kinds = ("lose", "pair", "pair", "pair")
    elif choice < 0.2:
        kinds, pause = ("drain",), 300
    elif choice >= 0.9:
        kinds = HARMLESS
    while True:
        yield drawn(draw, pause, kinds)


def drawn(draw: random.Random, pause: int, kinds: Sequence[str]) -> Fault:
    gap = int(draw.expovariate(1 / pause)) if draw.random() < 0.7 else draw.randint(0, 5)
    seconds = draw.choice([draw.uniform(0, 1), draw.uniform(0, 8), LEASE_SECONDS + draw.uniform(-1, 8)])
    return Fault(gap, draw.choice(kinds), draw.randrange(1000), draw.randrange(1000), seconds)


def strike(fleet: Fleet, fault: Fault) -> None:
    """Let a fault happen now. What it broke heals after `fault.seconds`."""
    world = fleet.world
    real = sorted(fleet.workers if fault.kind == "cut" and fault.other % 2 else fleet.all)
    name, other = real[fault.victim % len(real)], real[fault.other % len(real)]
    process, heal = world.processes[name], partial(world.schedule, fault.seconds, world.weather)
    worker = fleet.workers[sorted(fleet.workers)[fault.victim % len(fleet.workers)]]
    submitter = fleet.submitters[sorted(fleet.submitters)[fault.victim % len(fleet.submitters)]]
    world.laws.counts[fault.kind] += 1
    world.laws.log.is_disturbed |= fault.kind not in HARMLESS
    world.laws.log.has_losses |= fault.kind not in (*HARMLESS, "drain")
    world.note("weather", str(fault), f"({name}, {other}, {worker.name}, {submitter.name})")
    match fault.kind:
        case "kill" | "power" if process.alive:
            process.die(silently=fault.kind == "power")
            heal(process.start)
        case "leave" if worker.alive and not worker.frozen:
            worker.leave()
            heal(worker.start)
        case "drain" if fault.other % 2:
            world.laws.log.on_stable = partial(_drain_one, fleet, fault)
        case "drain":
            _drain_one(fleet, fault)
        case "remove" if fleet.broker.alive:
            _remove_one(fleet, worker, fault.seconds)
        case "crash":
            fleet.broker.crash_after = fault.other % 6 - 1
            fleet.broker.restart_seconds = fault.seconds
        case "freeze" if process.alive and not process.frozen:
            process.freeze()
            heal(process.thaw)
        case "cut" if name != other:
            world.network.cut(name, other)
            heal(partial(world.network.heal, name, other))
        case "sever":
            world.network.sever(fault.other)
        case "flap":
            world.network.flap(worker.name, 20 * fault.seconds)
        case "cross":
            one: BrokerProcess | SubmitterProcess = fleet.broker if fault.seconds < 1 else submitter
            one.crossing = partial(_kill_one, fleet, fault)
        case "reset":
            world.network.reset(process)
        case "slow":
            world.network.slow(name, other, fault.seconds / 4)
        case "fail":
            worker.after(0.0, lambda: worker.compute.fail("RuntimeError: out of memory"))
        case "hang":
            worker.after(0.0, lambda: worker.hang(fault.seconds))
        case "refuse" | "nan":
            worker.trouble = fault.kind
        case "full":
            worker.disk.full, worker.disk.mute = bool(fault.other % 3), not fault.other % 3
            world.schedule(20 * fault.seconds, world.weather, worker.disk.empty)
        case "damage":
            if job := worker.disk.damage(worker.random):
                world.laws.log.jobs[job].damaged = True
        case "lose":
            world.laws.log.on_stable = partial(_lose_one, fleet, fault)
        case "pair":
            world.laws.log.on_stable = partial(_lose_two, fleet, fault)
        case "stop":
            submitter.after(0.0, submitter.stop)
        case "keep":
            submitter.after(0.0, submitter.keep)
        case "babble":
            fleet.stranger.babble(fleet.broker)
        case "echo":
            worker.after(0.0, worker.hear_an_echo)


def _drain_one(fleet: Fleet, fault: Fault) -> None:
    """A worker leaves, if possible one whose share another one can take; some leave at once."""
    state = fleet.broker.state
    busy = [job for job in state.jobs.values() if job.members and not job.over]
    kept = [job for job in busy if job.versions.stable and state.idle_for(job)]
    names = sorted({name for job in kept or busy for name in job.members} or fleet.workers)
    worker = fleet.workers[names[fault.victim % len(names)]]
    within = round(5 * fault.seconds) * (fault.other % 8 > 0)
    if worker.alive and not worker.frozen:
        worker.after(0.0, partial(worker.drain, within, fault.seconds))


def _remove_one(fleet: Fleet, worker: WorkerProcess, seconds: float) -> None:
    """An operator removes a worker; its owner starts it again once it is allowed to join."""
    removal = RemovalAsked(fleet.world.now, worker.name, "worker", "olga", "it lies")
    fleet.broker.ask(removal)
    once_decided = max(1.0, 5 * seconds)
    fleet.world.schedule(once_decided, fleet.world.weather, partial(_allow_one, fleet, worker))


def _allow_one(fleet: Fleet, worker: WorkerProcess) -> None:
    """Allow it again. A removal that a slow broker stores only later stands until the fleet rests."""
    broker, world = fleet.broker, fleet.world
    if broker.alive and not broker.frozen and worker.name not in broker.state.removed:
        if not worker.alive:
            worker.start()
        return
    if broker.alive and not broker.frozen:
        broker.ask(AllowAsked(world.now, worker.name, "olga"))
    world.schedule(1.0, world.weather, partial(_allow_one, fleet, worker))  # a broker that dies forgets it


def _lose_one(fleet: Fleet, fault: Fault) -> None:
    jobs = [job for job in fleet.broker.state.jobs.values() if job.members and job.versions.stable]
    if not jobs:
        return
    job = jobs[fault.other % len(jobs)]
    worker = fleet.workers[job.members[fault.victim % len(job.members)]]
    if fault.seconds > 10:
        fleet.world.laws.log.jobs[job.job].damaged = True
        assert job.plan is not None
        share = min(job.plan.segments_of(worker.name))
        for one in fleet.workers.values():
            one.disk.lose(job.job, share)
    if worker.alive:
        worker.die(silently=False)
        away = 5 * fault.seconds if fault.victim % 2 else 150.0
        fleet.world.schedule(away, fleet.world.weather, worker.start)


def _lose_two(fleet: Fleet, fault: Fault) -> None:
    jobs = [job for job in fleet.broker.state.jobs.values() if job.members and job.versions.stable]
    if not jobs:
        return
    job = jobs[fault.other % len(jobs)]
    first = fault.victim % len(job.members)
    for number, name in enumerate(sorted({job.members[first], job.members[first - 1]})):
        worker = fleet.workers[name]
        delay = number * fault.seconds / 10
        fleet.world.schedule(
            delay, fleet.world.weather, lambda one=worker: one.alive and one.die(silently=False)
        )
        fleet.world.schedule(delay + 5 * fault.seconds, fleet.world.weather, worker.start)


def _kill_one(fleet: Fleet, fault: Fault, workers: Sequence[str]) -> str:
    worker = fleet.workers[workers[fault.other % len(workers)]]
    if worker.alive:
        worker.die(silently=False)
        fleet.world.schedule(fault.seconds, fleet.world.weather, worker.start)
    return worker.name
