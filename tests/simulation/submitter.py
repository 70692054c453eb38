"""A submitter's process: runs of jobs, one after the other, each as `client.run` conducts it.

It keeps on disk what a user has after a fault: how far the run came, and in which attempts. The next run goes
on from there, or begins a new project. The user may stop a run, or ask for a copy of the state, at any time.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.ends import End
from tests.simulation.parcels import Chain, Input, State, Taken
from tests.simulation.runs import Project, Run, some_training
from tests.simulation.world import LEASE_SECONDS, Process, World

from farflung.protocol.messages import (
    Accepted,
    Cancel,
    Claim,
    CodecsChosen,
    Collected,
    Collecting,
    Denied,
    Ended,
    Keep,
    Kept,
    Planned,
    Running,
    Submit,
    UnitDone,
    Welcome,
)

DIAL_SECONDS = 2 * LEASE_SECONDS
LINK_SECONDS = 6 * LEASE_SECONDS


class SubmitterProcess(Process):
    """One submitter. Once it retires it begins no other run, until it goes on."""

    role = "submitter"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.project: Project | None = None
        self._retires = False
        self._rounds = 0
        self.begin()

    def begin(self) -> None:
        """Start; the next run begins soon."""
        self.run: Run | None = None
        self.control: End | None = None
        self._submit_in(self.random.uniform(0, 5))

    def retire(self) -> None:
        """Begin no other run."""
        self._retires = True

    def go_on(self) -> None:
        """Begin runs again."""
        if self._retires:
            self._retires = False
            self._submit_in(self.random.uniform(0, 5))

    # The user

    def stop(self) -> None:
        """Ctrl-C: bring the weights home. The second time: end at once."""
        run = self.run
        if run is None:
            return
        self.note("is stopped", run.job)
        if run.stopping:
            self._over("stopped at once", "cancelled")
            return
        run.stopping = "Ctrl-C"
        if run.job:
            self._tell(Cancel(run.job, run.stopping, collect=True))

    def keep(self) -> None:
        """Ask for a copy of the state."""
        if self.run is not None and self.run.planned is not None:
            self._tell(Keep(self.run.job, self.run.planned.attempt))

    def _submit_in(self, seconds: float) -> None:
        self._rounds += 1
        this_round = self._rounds
        self.after(seconds, lambda: self._submit() if this_round == self._rounds else None)

    def _submit(self) -> None:
        if self._retires or self.run is not None:
            return
        end = self.world.network.dial(self, self.world.processes["broker"], "submitter", "control", self)
        if end is None:
            self._submit_in(self.random.uniform(1, 5))
            return
        draw, self.control = self.random, end
        if self.project is None or draw.random() < 0.3:
            self.project = Project(some_training(self.random))
        project, workers = self.project, sorted(self.world.workers)
        on = draw.sample(workers, draw.randint(1, 2)) if draw.random() < 0.2 else []
        submit = Submit(
            "gpt",
            draw.choice([b"a graph", b"another graph"]),
            project.training,
            len(on) or draw.randint(0, 3),
            on,
            unit=project.unit,
            attempts=project.attempts,
            checkpoint_every=draw.choice([0, 0, 1, 2]),
            checkpoint_end=draw.random() < 0.5,
        )
        self.run = Run(project, submit, project.chain, next_unit=project.unit)
        self._tell(submit)

    # The broker

    def on_message(self, end: End, message: Any) -> None:
        if end.kind == "data":
            self._on_data(end, message)
        elif self.run is not None and end is self.control:
            self.note("hears", message)
            self._on_broker(self.run, message)

    def _on_broker(self, run: Run, message: Any) -> None:
        match message:
            case Accepted(job, state):
                if run.stopping and not run.job:
                    self._tell(Cancel(job, run.stopping, collect=True))
                run.job, run.words = job, state
            case Planned():
                self._begin_attempt(run, message)
            case Running():
                assert run.planned is not None and not run.running, "the job runs twice"
                run.running = True
                self._feed(run, run.next_unit)
            case UnitDone(unit=unit, keep=keep):
                assert unit == run.next_unit, f"unit {unit} is done, expected {run.next_unit}"
                self.world.laws.on_unit_done(message)
                run.next_unit = unit + 1
                if keep:
                    run.awaited.add(unit)
                    self._store_copy(run, unit)
            case Collecting():
                run.collecting = run.collecting or message
                self._store_final(run)
            case Ended():
                self.world.laws.on_ended(self, run, message)
                run.job = ""
                self._over(message.reason, message.state)
            case Denied(reason):
                self.world.fail(f"{self.name} is denied: {reason}")
            case CodecsChosen():
                pass

    def _begin_attempt(self, run: Run, planned: Planned) -> None:
        assert run.planned is None and planned.attempt > run.project.attempts, f"{planned} is no new attempt"
        run.planned = planned
        run.project.attempts = planned.attempt
        for worker in planned.plan.workers():
            self._dial(run, worker, self.world.now + DIAL_SECONDS)

    # Data links

    def _dial(self, run: Run, worker: str, until: float) -> None:
        planned = run.planned
        if self.run is not run or planned is None:
            return
        end = self.world.network.dial(self, self.world.processes[worker], "submitter", "data", self)
        if end is not None:
            run.dialled[worker] = end
            end.send(Claim(planned.job, planned.attempt))
            self.after(LINK_SECONDS, lambda: self._require_link(run, worker))
        elif self.world.now < until:
            self.after(self.random.uniform(1, 4), lambda: self._dial(run, worker, until))
        else:
            self._over(f"worker {worker} cannot be reached", "failed")

    def _require_link(self, run: Run, worker: str) -> None:
        if self.run is run and worker not in run.linked and not run.failing:
            self._over(f"worker {worker} did not welcome its link", "failed")

    def _on_data(self, end: End, message: Any) -> None:
        run, worker = self.run, end.other.process.name
        if run is None or run.planned is None or run.dialled.get(worker) is not end:
            return
        attempt = (run.planned.job, run.planned.attempt)
        if isinstance(message, Welcome):
            run.linked[worker] = end
            self.after(self.random.expovariate(1), lambda: end.send(State(attempt, run.origin)))
            self._feed(run, run.next_unit)
            return
        assert message.attempt == attempt, f"{worker} sent {message} of another attempt"
        if isinstance(message, Taken):
            self._feed(run, message.unit + 1)
        elif message.unit is None:
            run.final[worker] = message.chain
            self._store_final(run)
        else:
            run.copies.setdefault(message.unit, {})[worker] = message.chain
            self._store_copy(run, message.unit)

    def on_back(self, end: End) -> None:
        pass

    def on_end(self, end: End, reason: str) -> None:
        run = self.run
        if run is None:
            return
        if end is self.control:
            self._over(f"the broker was lost: {reason}", "failed")
        elif end.kind == "data" and end in run.dialled.values() and not run.failing and not run.collected:
            run.failing = True  # the broker has a lease to give a better reason
            self.after(LEASE_SECONDS, lambda: self._fail_late(run, reason))

    def _fail_late(self, run: Run, reason: str) -> None:
        if self.run is run and not run.collected:
            self._over(f"a worker was lost: {reason}", "failed")

    def _feed(self, run: Run, unit: int) -> None:
        """Send the inputs of a unit, once the job runs and every worker is linked."""
        assert run.planned is not None
        plan, is_linked = run.planned.plan, len(run.linked) == len(run.planned.plan.workers())
        if run.running and is_linked and run.fed < unit and run.collecting is None:
            run.fed = unit
            if run.project.training.units().at(unit) is not None:
                first = run.linked[plan.placements[0].worker]
                first.send(Input((run.planned.job, run.planned.attempt), unit))

    # The state comes home

    def _store_copy(self, run: Run, unit: int) -> None:
        assert run.planned is not None
        copy = run.copies.get(unit, {})
        if unit in run.awaited and unit not in run.stored and len(copy) == len(run.planned.plan.workers()):
            run.stored.add(unit)
            self.after(self.random.expovariate(1), lambda: self._stored(run, unit, copy))

    def _stored(self, run: Run, unit: int, copy: dict[str, Chain]) -> None:
        if self.run is run and run.planned is not None:
            self.world.laws.on_copy(run, unit, copy)
            self._save(run, next(iter(copy.values())))
            self._tell(Kept(run.planned.job, run.planned.attempt, unit))

    def _store_final(self, run: Run) -> None:
        if run.collecting is None or run.planned is None or run.collected:
            return
        if len(run.final) == len(run.planned.plan.workers()):
            run.collected = True
            self.after(self.random.expovariate(2), lambda: self._collected(run))

    def _collected(self, run: Run) -> None:
        if self.run is run and run.planned is not None:
            self.world.laws.on_collected(run)
            self._save(run, next(iter(run.final.values())))
            self._tell(Collected(run.planned.job, run.planned.attempt))

    def _save(self, run: Run, chain: Chain) -> None:
        project = run.project
        if len(chain) > len(project.chain):
            project.chain, project.unit = chain, len(chain)
        if project.training.units().at(project.unit) is None and self.project is project:
            self.project = None

    def _over(self, reason: str, state: str) -> None:
        """The run is over: cancel the job if the broker may still hold it, and close every session."""
        run, self.run = self.run, None
        assert run is not None
        self.note("ends its run", state, reason)
        if run.job:
            self._tell(Cancel(run.job, reason, collect=False))
        for end in run.dialled.values():
            end.close(f"the job is over: {state}")
        if self.control is not None:
            self.control.close(f"the job is over: {state}")
            self.control = None
        self._submit_in(self.random.uniform(0.1, 2))

    def _tell(self, message: Any) -> None:
        if self.control is not None:
            self.control.send(message)
