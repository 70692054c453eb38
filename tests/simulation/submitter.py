"""A submitter's process: runs of jobs, one after the other, each as `client.run` conducts it.

It keeps on disk what a user has after a fault: checkpoints, and how many attempts there were. A job that is
rolled back goes on from one of them, or from the state that it was submitted with; so does the next run,
unless it begins a new project. The user may stop a run, or ask for a copy of the state, at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.ends import End
from tests.simulation.parcels import Chain, Input, State, Taken
from tests.simulation.planner import GRAPHS
from tests.simulation.runs import Attempt, Project, Run, some_training
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
    RolledBack,
    Running,
    Submit,
    UnitDone,
    Welcome,
)

DIAL_SECONDS = 2 * LEASE_SECONDS
LINK_SECONDS = 6 * LEASE_SECONDS


class SubmitterProcess(Process):
    """One submitter. Once it retires it begins no other run, until it goes on. `crossing` is called with the
    workers of an attempt just before the submitter reports a copy or the last state.
    """

    role = "submitter"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.project: Project | None = None
        self._retires = False
        self._rounds = self._failures = 0
        self.crossing: Callable[[list[str]], str] | None = None
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
        if self.run is not None and self.run.attempt is not None:
            self._tell(Keep(*self.run.attempt.name))

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
        if self.project is None or self.project.over or draw.random() < 0.3:
            self.project = Project(some_training(draw), draw.choice(sorted(GRAPHS)))
        project, workers = self.project, sorted(self.world.workers)
        asked = draw.choice([0, GRAPHS[project.graph], GRAPHS[project.graph] + draw.randint(0, 1)])
        on = draw.sample(workers, min(max(1, asked), len(workers))) if draw.random() < 0.2 else []
        submit = Submit(
            "gpt",
            project.graph,
            project.training,
            len(on) or asked,
            on,
            unit=project.unit,
            attempts=project.attempts,
            checkpoint_every=draw.choice([0, 1, 1, 2]),
            checkpoint_end=draw.random() < 0.5,
        )
        start = project.checkpoints.get(project.unit, ())
        self.run = Run(project, submit, start, start)
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
            case Accepted(job, state, missing=missing):
                run.job, run.words, run.missing = job, state, missing
                if run.stopping:
                    self._tell(Cancel(job, run.stopping, collect=True))
            case Planned() if not run.collected:
                self._begin_attempt(run, message)
            case Running():
                attempt = self._current(run, message)
                assert not attempt.running, "an attempt begins twice"
                attempt.running = True
                self._feed(attempt, attempt.next_unit)
            case UnitDone(unit=unit, keep=keep):
                attempt = self._current(run, message)
                assert unit == attempt.next_unit, f"unit {unit} is done, expected {attempt.next_unit}"
                self.world.laws.on_unit_done(message)
                attempt.next_unit = unit + 1
                if keep:
                    attempt.awaited.add(unit)
                    self._store_copy(run, attempt, unit)
            case RolledBack() if not run.collected:  # else the broker ends the job soon
                self._roll_back(run, message)
            case Collecting() if not run.collected:
                attempt = self._current(run, message)
                attempt.collecting = attempt.collecting or message
                self._store_final(run, attempt)
            case Ended():
                self.world.laws.on_ended(self, run, message)
                run.job = ""
                self._over(message.reason, message.state)
            case Denied(reason):
                self.world.fail(f"{self.name} is denied: {reason}")
            case CodecsChosen():
                pass

    def _current(self, run: Run, message: Any) -> Attempt:
        assert run.attempt is not None, f"{message} comes before a plan"
        assert run.attempt.name == (message.job, message.attempt), f"{message} comes in {run.attempt.name}"
        return run.attempt

    def _begin_attempt(self, run: Run, planned: Planned) -> None:
        if planned.keeps:
            self._leave(run, planned)
        assert run.attempt is None and planned.attempt > run.project.attempts, f"{planned} is no new attempt"
        first = planned.unit if planned.keeps else len(run.start)
        run.attempt = attempt = Attempt(planned, run.start, first)
        run.project.attempts = planned.attempt
        for worker in planned.plan.workers():
            self._dial(attempt, worker, self.world.now + DIAL_SECONDS)

    def _leave(self, run: Run, planned: Planned) -> None:
        """Drop the attempt: the workers go on with their state in the next one."""
        attempt = run.attempt
        assert attempt is not None and attempt.next_unit == planned.unit, f"{planned} leaves out a unit"
        run.attempt, run.failing, run.regrouped = None, 0, run.regrouped + 1
        for end in attempt.dialled.values():
            end.close(planned.reason)
        if self.random.random() < 0.3:
            self.after(self.random.uniform(0, 0.5), self.stop)  # while the workers link up again

    def _roll_back(self, run: Run, message: RolledBack) -> None:
        """Drop the attempt, and go back to the state that the next one begins with."""
        attempt = self._current(run, message)
        run.attempt, run.failing, run.rollbacks = None, 0, run.rollbacks + 1
        self.world.laws.on_rolled_back(run, message)
        origin = len(run.origin)
        run.start = run.origin if message.unit == origin else run.project.checkpoints[message.unit]
        for end in attempt.dialled.values():
            end.close(message.reason)

    def _is_current(self, attempt: Attempt) -> bool:
        return self.run is not None and self.run.attempt is attempt

    # Data links

    def _dial(self, attempt: Attempt, worker: str, until: float) -> None:
        if not self._is_current(attempt):
            return
        end = self.world.network.dial(self, self.world.processes[worker], "submitter", "data", self)
        if end is not None:
            attempt.dialled[worker] = end
            end.send(Claim(*attempt.name))
            self.after(LINK_SECONDS, lambda: self._require_link(attempt, worker))
        elif self.world.now < until:
            self.after(self.random.uniform(1, 4), lambda: self._dial(attempt, worker, until))
        else:
            self._lost(attempt, f"worker {worker} cannot be reached")

    def _require_link(self, attempt: Attempt, worker: str) -> None:
        if worker not in attempt.linked:
            self._lost(attempt, f"worker {worker} did not welcome its link")

    def _on_data(self, end: End, message: Any) -> None:
        run, worker = self.run, end.other.process.name
        if run is None or run.attempt is None or run.attempt.dialled.get(worker) is not end:
            return
        attempt = run.attempt
        if isinstance(message, Welcome):
            attempt.linked[worker] = end
            if not attempt.planned.keeps:
                state = State(attempt.name, attempt.start)
                self.after(self.random.expovariate(1), lambda: end.send(state))
            self._feed(attempt, attempt.next_unit)
            return
        assert message.attempt == attempt.name, f"{worker} sent {message} of another attempt"
        if isinstance(message, Taken):
            self._feed(attempt, message.unit + 1)
        elif message.unit is None:
            attempt.final[worker] = message.chain
            self._store_final(run, attempt)
        else:
            attempt.copies.setdefault(message.unit, {})[worker] = message.chain
            self._store_copy(run, attempt, message.unit)

    def on_back(self, end: End) -> None:
        pass

    def on_end(self, end: End, reason: str) -> None:
        run = self.run
        if run is None:
            return
        if end is self.control:
            self._over(f"the broker was lost: {reason}", "failed")
        elif run.attempt is not None and end in run.attempt.dialled.values():
            self._lost(run.attempt, f"a worker was lost: {reason}")

    def _lost(self, attempt: Attempt, reason: str) -> None:
        """The run fails, unless the broker ends the attempt or the job within a lease."""
        run = self.run
        if run is None or run.attempt is not attempt or run.failing or run.collected:
            return
        self._failures += 1
        run.failing = failing = self._failures
        self.after(LEASE_SECONDS, lambda: self._fail_late(run, failing, reason))

    def _fail_late(self, run: Run, failing: int, reason: str) -> None:
        if self.run is run and run.failing == failing and not run.collected:
            self.world.laws.counts["submitter gave up"] += 1
            self._over(reason, "failed")

    def _feed(self, attempt: Attempt, unit: int) -> None:
        """Send the inputs of a unit, once the job runs and every worker is linked."""
        plan = attempt.planned.plan
        is_linked = len(attempt.linked) == len(plan.workers())
        if attempt.running and is_linked and attempt.fed < unit and attempt.collecting is None:
            attempt.fed = unit
            assert self.run is not None
            if self.run.project.training.units().at(unit) is not None:
                self.world.laws.on_fed(self, attempt.name)
                attempt.linked[plan.placements[0].worker].send(Input(attempt.name, unit))

    # The state comes home

    def _store_copy(self, run: Run, attempt: Attempt, unit: int) -> None:
        copy = attempt.copies.get(unit, {})
        is_whole = len(copy) == len(attempt.planned.plan.workers())
        if unit in attempt.awaited and unit not in attempt.stored and is_whole and not attempt.collecting:
            attempt.stored.add(unit)
            self.after(self.random.expovariate(1), lambda: self._stored(run, attempt, unit, copy))

    def _stored(self, run: Run, attempt: Attempt, unit: int, copy: dict[str, Chain]) -> None:
        """A copy is written, or cannot be. After a rollback it may still be written, unheard."""
        is_current, chance = self._is_current(attempt), self.random.random()
        if self.run is not run or (not is_current and (run.attempt is not None or chance < 0.5)):
            return
        is_stored = chance < 0.9
        if is_stored:
            self.world.laws.on_copy(run, unit, copy)
            run.project.save(next(iter(copy.values())))
        if is_current and attempt.collecting is None:
            self._report(attempt, Kept(*attempt.name, unit, is_stored))

    def _store_final(self, run: Run, attempt: Attempt) -> None:
        if attempt.collecting is None or attempt.collected:
            return
        if len(attempt.final) == len(attempt.planned.plan.workers()):
            attempt.collected = True
            self.after(self.random.expovariate(2), lambda: self._collected(run, attempt))

    def _collected(self, run: Run, attempt: Attempt) -> None:
        if self._is_current(attempt):
            run.collected = True
            self.world.laws.on_collected(run, attempt)
            if run.submit.checkpoint_end:
                run.project.save(next(iter(attempt.final.values())))
            self._report(attempt, Collected(*attempt.name))

    def _over(self, reason: str, state: str) -> None:
        """The run is over: cancel the job if the broker may still hold it, and close every session."""
        run, self.run = self.run, None
        assert run is not None
        self.note("ends its run", state, reason)
        if run.job:
            self._tell(Cancel(run.job, reason, collect=False))
        if state == "done":
            self.project = None
        if run.attempt is not None:
            for end in run.attempt.dialled.values():
                end.close(f"the job is over: {state}")
        if self.control is not None:
            self.control.close(f"the job is over: {state}")
            self.control = None
        self._submit_in(self.random.uniform(0.1, 2))

    def _report(self, attempt: Attempt, message: Any) -> None:
        crossing, self.crossing = self.crossing, None
        if crossing is not None:
            crossing(attempt.planned.plan.workers())
        self._tell(message)

    def _tell(self, message: Any) -> None:
        if self.control is not None:
            self.control.send(message)
