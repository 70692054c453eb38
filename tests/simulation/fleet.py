"""A whole fleet in one virtual world: faults come over it, and then it must come to rest."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation import faults
from tests.simulation.broker import BrokerProcess
from tests.simulation.faults import Fault
from tests.simulation.laws import Laws
from tests.simulation.network import Network
from tests.simulation.stranger import Stranger
from tests.simulation.submitter import SubmitterProcess
from tests.simulation.worker import WorkerProcess
from tests.simulation.world import World

from farflung.broker.core.records import QUEUED

REST_SECONDS = 300.0
"""In this time after the last fault every job must have ended, or say what it waits for."""


class Fleet:
    """A broker, workers, submitters and a stranger. Processes in `all` may be struck by faults."""

    def __init__(self, seed: int, repeat: str = "") -> None:
        self.world = world = World(seed, repeat)
        world.network, world.laws = Network(world), Laws(world)
        draw = world.random("fleet")
        self.broker = world.laws.broker = BrokerProcess(world)
        world.processes["broker"] = self.broker
        names = [f"worker-{letter}" for letter in "abcdef"[: draw.randint(2, 6)]]
        world.workers = names
        self.workers = {name: WorkerProcess(world, name) for name in names}
        people = ["ana", "bob"][: draw.randint(1, 2)]
        self.submitters = {name: SubmitterProcess(world, name) for name in people}
        self.all = ["broker", *self.workers, *self.submitters]
        self.stranger = Stranger(world)
        world.processes.update({**self.workers, **self.submitters})

    def suffer(self, coming: Iterator[Fault], most_events: int) -> None:
        """Live through faults, until there are no more or so many events have passed."""
        world, end = self.world, self.world.count + most_events
        world.calm_since = None
        for submitter in self.submitters.values():
            submitter.go_on()
        while world.count < end and (fault := next(coming, None)) is not None:
            due = min(end, world.count + fault.after)
            while world.count < due:
                world.advance()
            faults.strike(self, fault)

    def rest(self) -> None:
        """Faults stop: every job ends or says what it waits for, and every worker is free again."""
        world = self.world
        world.note("weather", "no more faults")
        self._calm()
        self._until(self._is_at_rest, "a job is stuck, or a worker is not free")
        self._require_true_words()
        self._until(lambda: not self.world.network.data_links(), "a data link outlives its attempt")
        for submitter in self.submitters.values():
            if submitter.run is not None:
                submitter.stop()
        self._until(lambda: not any(one.run for one in self.submitters.values()), "a job cannot be stopped")
        self._until(self._is_empty, "a job outlives its submitter")

    def _require_true_words(self) -> None:
        """What a queued job says that it waits for is missing indeed."""
        state = self.broker.state
        told = {run.job: run for run in (one.run for one in self.submitters.values()) if run is not None}
        ahead: list[str] = []
        for job in (job for job in state.jobs.values() if not (job.over or job.held)):
            idle = [name for name in state.idle_for(job) if not job.on or name in job.on]
            lacks = (len(job.on) or job.asked or 1) - len(idle)
            unfit = self.world.laws.log.jobs[job.job].unfit
            if unfit >= set(idle) and lacks <= 0:
                lacks = 1
            behind = any(f"waiting for {other}, which is ahead of it" in job.words for other in ahead)
            waits = lacks > 0 and "waiting for " in job.words
            missing = 0 if behind else lacks
            named = all(name in job.words for name in job.on if name not in idle)
            if not (behind or (waits and named)) or told[job.job].missing != missing:
                self.world.fail(
                    f"{job.job} says {job.words!r}, {told[job.job].missing} missing, idle are {idle}, "
                    f"ahead of it {ahead}"
                )
            ahead.append(job.job)
            self.world.laws.counts["unfit at rest" if unfit else "waits at rest"] += 1

    def _calm(self) -> None:
        self.world.calm_since = self.world.now
        self.world.laws.log.on_stable = None
        self.broker.crash_after = self.broker.crossing = None
        for worker in self.workers.values():
            worker.trouble = ""
            worker.disk.full = False
        for process in self.world.processes.values():
            process.thaw()
            process.start()
        for submitter in self.submitters.values():
            submitter.retire()
            submitter.crossing = None
        self.world.network.heal_all()

    def _until(self, holds: object, words: str) -> None:
        assert callable(holds)
        end = self.world.now + REST_SECONDS
        while not holds():
            if self.world.now > end:
                self.world.fail(f"{words}: {self._account()}")
            for _ in range(20):
                self.world.advance()

    def _is_at_rest(self) -> bool:
        state = self.broker.state
        waiting = [job for job in state.jobs.values() if not job.over]
        if any(job.state != QUEUED or not job.words for job in waiting):
            return False
        told = {one.run.job: one.run.words for one in self.submitters.values() if one.run is not None}
        return told == {job.job: job.words for job in waiting if not job.held} and self._are_free()

    def _is_empty(self) -> bool:
        return all(job.over for job in self.broker.state.jobs.values()) and self._are_free()

    def _are_free(self) -> bool:
        known = self.broker.state.workers
        return all(
            worker.registered and worker.state.phase == "idle" and worker.compute.idle and known[name].idle
            for name, worker in self.workers.items()
        )

    def _account(self) -> str:
        state = self.broker.state
        jobs = [f"{job.job} {job.state} {job.words!r}" for job in state.jobs.values() if not job.over]
        known = state.workers
        workers = [
            f"{name}: {worker.state.phase} here, at the broker {name in known and known[name].idle}"
            for name, worker in self.workers.items()
        ]
        runs = [
            f"{name}: {one.run and (one.run.job, one.run.words)}" for name, one in self.submitters.items()
        ]
        return "; ".join([*jobs, *workers, *runs, *self.world.network.data_links()])
