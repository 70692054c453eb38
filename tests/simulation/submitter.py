"""A submitter's process: runs of jobs, one after the other, each as `client.run` conducts it.

It keeps on disk what a user has after a fault: checkpoints, and how many attempts there were. A job that is
rolled back goes on from one of them, or from the state that it was submitted with; so does the next run,
unless it begins a new project. The user may stop a run, or ask for a copy of the state, at any time.

A run that loses the broker, or all of whose links are lost, returns to its job; so does a process that is
started again, unless its user has forgotten the run. What a user stops at once is cancelled,
if need be later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.simulation.ends import End
from tests.simulation.parcels import Chain, Input, State, Taken
from tests.simulation.planner import GRAPHS
from tests.simulation.runs import Attempt, Project, Run, some_training
from tests.simulation.world import LEASE_SECONDS, Process, World

from farflung.protocol.messages import (
    Accepted,
    Cancel,
    CheckSaid,
    Claim,
    CodecsChosen,
    Collected,
    Collecting,
    Considered,
    Denied,
    Ended,
    FeedCheck,
    Keep,
    Kept,
    Planned,
    Return,
    RolledBack,
    Running,
    Submit,
    UnitDone,
    Welcome,
)
from farflung.runtime.training import Training

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
        self._disk: Run | None = None  # of the run that was not over when the process died
        self._forgotten: set[str] = set()
        self.crossing: Callable[[list[str]], str] | None = None
        self.begin()

    def begin(self) -> None:
        """Start; the run on disk goes on, or the next one begins soon."""
        self.run: Run | None = None
        self.control: End | None = None
        self._errand: End | None = None
        self._cancel_in(self.random.uniform(0, 3))
        disk, self._disk = self._disk, None
        if disk is None or (disk.submit.patience_seconds < 1000 and self.random.random() < 0.5):
            self._submit_in(self.random.uniform(0, 5))
            return
        lag = self.random.choice([0, 0, 1, 2])
        recorded = max(len(disk.origin), disk.recorded - lag)
        is_known = self.random.random() < 0.8  # else it only knows what it submitted
        job = disk.job if is_known or disk.collected else ""
        self.run = Run(disk.project, disk.submit, disk.origin, disk.start, job, recorded=recorded)
        self.run.collected, self.run.home, self.run.returned = disk.collected, disk.home, True
        self._redial_in(self.random.uniform(0, 2), self.run)

    def die(self, silently: bool) -> None:
        """End this life; what it knew of its run is on disk."""
        self._disk = self.run
        super().die(silently)

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
            if self.control is not None and run.job:
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
            self.project.training = self._sometimes_checked(self.project.training)
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
            run=f"{self.name}-{self._rounds}-{self.life}",
            patience_seconds=draw.choice([60, 86_400]),
            saves=True,
        )
        start = project.checkpoints.get(project.unit, ())
        self.run = Run(project, submit, start, start, recorded=project.unit)
        self._tell(submit)

    def _sometimes_checked(self, training: Training) -> Training:
        draw = self.world.random(f"checks {self.name} {self._rounds}")
        return msgspec.structs.replace(training, verify=draw.choice([0.0, 0.0, 0.5]))

    # Returns

    def _redial_in(self, seconds: float, run: Run) -> None:
        self.after(seconds, lambda: self._redial(run))

    def _redial(self, run: Run) -> None:
        if self.run is not run or self.control is not None:
            return
        self.control = self.world.network.dial(
            self, self.world.processes["broker"], "submitter", "control", self
        )
        if self.control is None:
            self._redial_in(self.random.uniform(0.5, 3), run)
        elif run.job:
            self._return(run)
        else:
            run.awaited = run.returned = True
            self._tell(run.submit)

    def _return(self, run: Run) -> None:
        """Say that this process is the job's submitter; links that have failed are given up."""
        run.awaited = run.returned = True
        if run.failing:
            self._leave(run, "links were lost")
        self._tell(Return(run.job, run.attempt.planned.attempt if run.attempt else 0, run.recorded))

    def _say_again(self, run: Run) -> None:
        """What the broker may not have heard."""
        run.awaited = False
        if run.kept is not None:
            self._tell(run.kept)
        if run.home is not None:
            self._tell(run.home)

    # Jobs that were left without a word

    def _cancel_in(self, seconds: float) -> None:
        self.after(seconds, self._cancel_forgotten)

    def _cancel_forgotten(self) -> None:
        if not self._forgotten or self._errand is not None:
            return
        self._errand = self.world.network.dial(
            self, self.world.processes["broker"], "submitter", "control", self
        )
        if self._errand is None:
            self._cancel_in(self.random.uniform(1, 5))
            return
        for job in sorted(self._forgotten):
            self._errand.send(Cancel(job, "forgotten", collect=False))

    def _on_errand(self, message: Any) -> None:
        assert self._errand is not None
        if isinstance(message, Ended):
            self._forgotten.discard(message.job)
        elif isinstance(message, Denied):
            assert message.for_now, message
        if not self._forgotten or isinstance(message, Denied):
            errand, self._errand = self._errand, None
            errand.close("it is done")
            self._cancel_in(3.0)

    # The broker

    def on_message(self, end: End, message: Any) -> None:
        if end.kind == "data":
            self._on_data(end, message)
        elif end is self._errand:
            self._on_errand(message)
        elif self.run is not None and end is self.control:
            self.note("hears", message)
            self._on_broker(self.run, message)

    def _on_broker(self, run: Run, message: Any) -> None:
        match message:
            case Accepted(job, state, missing=missing):
                run.job, run.words, run.missing = job, state, missing
                if run.awaited:
                    self._say_again(run)
                if run.stopping:
                    self._tell(Cancel(job, run.stopping, collect=True))
            case Planned() if not run.collected:
                self._begin_attempt(run, message)
            case Running() | RolledBack() | Collecting() if message.attempt <= run.left:
                if isinstance(message, RolledBack) and not run.collected:
                    self._go_back(run, message.unit, message.held)
            case Running():
                attempt = self._current(run, message)
                assert run.returned or not attempt.running, "an attempt begins twice"
                attempt.running = True
                self._feed(attempt, attempt.next_unit)
            case UnitDone(unit=unit, attempt=number, keep=keep):
                if run.returned and unit < run.recorded:
                    return
                assert unit == run.recorded, f"unit {unit} is done, expected {run.recorded}"
                self.world.laws.on_unit_done(message, run.returned)
                run.recorded = unit + 1
                if run.attempt is None and run.returned:
                    return
                attempt = run.attempt if run.returned else self._current(run, message)
                assert attempt is not None
                attempt.next_unit = unit + 1
                if keep and number == attempt.planned.attempt:
                    attempt.awaited.add(unit)
                    self._store_copy(run, attempt, unit)
            case RolledBack() if not run.collected:  # else the broker ends the job soon
                self._roll_back(run, message)
            case Collecting() if not run.collected:
                attempt = self._current(run, message)
                attempt.collecting = attempt.collecting or message
                self._store_final(run, attempt)
            case Ended(job=job) if run.job not in ("", job):
                pass  # of a run that ended before this one was submitted
            case Ended():
                self.world.laws.on_ended(self, run, message)
                run.job = ""
                self._over(message.reason, message.state)
            case Denied(reason, for_now=True) if run.awaited:
                self.after(3.0, lambda: self._return_again(run))
            case Denied(reason):
                self.world.fail(f"{self.name} is denied: {reason}")
            case CodecsChosen() | Considered() | FeedCheck() | CheckSaid():
                pass

    def _current(self, run: Run, message: Any) -> Attempt:
        assert run.attempt is not None, f"{message} comes before a plan"
        assert run.attempt.name == (message.job, message.attempt), f"{message} comes in {run.attempt.name}"
        return run.attempt

    def _begin_attempt(self, run: Run, planned: Planned) -> None:
        if planned.attempt <= run.left:
            return
        if planned.keeps:
            if run.returned and run.attempt is None:  # it may not have heard that the job went back
                run.recorded = min(run.recorded, planned.unit)
            assert run.recorded == planned.unit, f"{planned} leaves out a unit: {run.recorded}"
            run.regrouped += run.attempt is not None
            self._leave(run, planned.reason)
            if self.random.random() < 0.3:
                self.after(self.random.uniform(0, 0.5), self.stop)  # while the workers link up again
        elif run.returned:  # it may not have heard that the job went back
            self._leave(run, "another attempt begins")
            self._go_back(run, planned.unit)
        is_new = planned.attempt > run.project.attempts or run.returned
        assert run.attempt is None and is_new, f"{planned} is no new attempt"
        assert planned.keeps or planned.unit == len(run.start), f"{planned} begins elsewhere"
        run.attempt = attempt = Attempt(planned, run.start, planned.unit)
        run.project.attempts = max(run.project.attempts, planned.attempt)
        for worker in planned.plan.workers():
            self._dial(attempt, worker, self.world.now + DIAL_SECONDS)

    def _leave(self, run: Run, reason: str) -> None:
        """Drop the attempt and its links."""
        attempt, run.attempt, run.failing, run.kept = run.attempt, None, 0, None
        if attempt is not None:
            run.left = attempt.planned.attempt
            for end in attempt.dialled.values():
                end.close(reason)

    def _roll_back(self, run: Run, message: RolledBack) -> None:
        """Drop the attempt, and go back to the state that the next one begins with."""
        if run.attempt is not None:  # else it waited for workers that have the state
            known = run.attempt.planned.attempt  # or of one in which the job awaited lost workers
            assert message.attempt >= known, f"{message} comes in attempt {known}"
        run.rollbacks += 1
        self.world.laws.on_rolled_back(run, message)
        self._leave(run, message.reason)
        self._go_back(run, message.unit, message.held)

    def _go_back(self, run: Run, unit: int, held: bool = False) -> None:
        run.recorded = unit
        if not held:  # else workers have the state
            run.start = run.origin if unit == len(run.origin) else run.project.checkpoints[unit]

    def _return_again(self, run: Run) -> None:
        if self.run is run and self.control is not None and run.awaited:
            self._return(run) if run.job else self._tell(run.submit)

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
        if end is self._errand:
            self._errand = None
            self._cancel_in(self.random.uniform(1, 5))
            return
        if run is None:
            return
        if end is self.control:
            self.control = None
            self._redial_in(self.random.uniform(0.1, 2), run)
        elif run.attempt is not None and end in run.attempt.dialled.values():
            self._lost(run.attempt, f"a worker was lost: {reason}")

    def _lost(self, attempt: Attempt, reason: str) -> None:
        """The run returns without links, unless the broker ends the attempt or the job within a lease."""
        run = self.run
        if run is None or run.attempt is not attempt or run.failing or run.collected:
            return
        self._failures += 1
        run.failing = failing = self._failures
        self.after(LEASE_SECONDS, lambda: self._fail_late(run, failing, reason))

    def _fail_late(self, run: Run, failing: int, reason: str) -> None:
        if self.run is run and run.failing == failing and not run.collected:
            self.world.laws.counts["submitter lost its links"] += 1
            if self.control is not None and run.job:
                self._return(run)

    def _feed(self, attempt: Attempt, unit: int) -> None:
        """Send the inputs of a unit, once the job runs and every worker is linked."""
        plan = attempt.planned.plan
        is_linked = len(attempt.linked) == len(plan.workers())
        if attempt.running and is_linked and attempt.fed < unit and attempt.collecting is None:
            attempt.fed = unit
            assert self.run is not None
            if self.run.project.training.units().at(unit) is not None:
                self.world.laws.on_fed(self, attempt.name)
                attempt.linked[plan.worker_of(plan.live_segments()[0])].send(Input(attempt.name, unit))

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
            run.kept = Kept(*attempt.name, unit, is_stored)
            self._report(attempt, run.kept)

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
            run.home = Collected(*attempt.name)
            self._report(attempt, run.home)

    def _over(self, reason: str, state: str) -> None:
        """The run is over: cancel the job if the broker may still hold it, and close every session."""
        run, self.run = self.run, None
        assert run is not None
        self.note("ends its run", state, reason)
        if run.job:
            self._tell(Cancel(run.job, reason, collect=False))
            self._forgotten.add(run.job)
            self._cancel_in(3.0)
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
