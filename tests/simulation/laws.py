"""Laws that hold after each event: of the broker's state, of workers, and of what submitters get."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.simulation import standby_laws
from tests.simulation.log_laws import SETTLED_SECONDS, LogLaws
from tests.simulation.model import chain_of
from tests.simulation.parcels import Chain
from tests.simulation.trust_laws import needs_others
from tests.simulation.world import World

from farflung.broker.core import events
from farflung.broker.core.facts import JobMoves, JobPlanning, JobReplaying, JobRolledBack, WaitExplained
from farflung.broker.core.protecting.protection import shares_of, who_has
from farflung.broker.core.records import CANCELLED, COLLECTING, LOADING, QUEUED, RUNNING, Job, State
from farflung.broker.core.recovering.recovery import MOST_REGROUPED, MOST_REPLAYED
from farflung.broker.core.recovering.recutting import is_readable
from farflung.broker.core.state import Outcome
from farflung.errors import ProtocolError
from farflung.plans import LinkCodec
from farflung.protocol.fields import has_left
from farflung.protocol.messages import (
    Cancel,
    Ended,
    Keep,
    Kept,
    Load,
    Refused,
    Return,
    RolledBack,
    Submit,
    UnitDone,
)
from farflung.worker.events import Attempt

if TYPE_CHECKING:
    from tests.simulation import runs
    from tests.simulation.broker import BrokerProcess
    from tests.simulation.runs import Run
    from tests.simulation.submitter import SubmitterProcess
    from tests.simulation.worker import WorkerProcess

STRANGER = "eve"
LOSSES = (events.WorkerLeaves, events.WorkerRegisters, events.Tick)
"""The events by which a worker may be lost."""


class Laws:
    """All laws, and `counts` of what happened, by which a test sees that it tried what it should."""

    broker: BrokerProcess

    def __init__(self, world: World) -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self.log = LogLaws(world, self.counts)
        self._checked: State | None = None
        self._applied: dict[str, tuple[int, Attempt, int]] = {}
        self._rolled_back: set[Attempt] = set()  # as submitters have heard

    # After each event

    def check(self) -> None:
        """The broker's state agrees with itself. It is looked at only when it has changed."""
        state = self.broker.state
        if state is self._checked or not self.broker.alive:
            return
        self._checked = state
        for worker in state.workers.values():
            if worker.job is not None:
                job = state.jobs[worker.job]
                self._require(
                    (worker.connected or worker.away) and not job.over and worker.worker in job.members,
                    f"{worker.worker} is held for {job.job}, which is {job.state}",
                )
        for job in state.jobs.values():
            if job.over:
                continue
            held = [state.workers[name].job for name in job.members]
            if not self.broker.just_began:
                self._require(all(one == job.job for one in held), f"{job.job} lacks one of {job.members}")
            missing = [name for name in job.awaited if not state.workers[name].connected]
            self._require(
                bool(missing) == bool(job.awaited), f"{job.job} waits for {job.awaited}, who are back"
            )
            self._require(not job.awaited or job.state == LOADING, f"{job.job} is {job.state}, and waits")
            self._require(
                (job.state == QUEUED) != bool(job.members), f"{job.job} is {job.state}: {job.members}"
            )
            self._require(
                job.state != RUNNING or job.unit is not None or job.versions.under_way is not None,
                f"{job.job} runs, but no unit is left",
            )
            if not self.broker.just_began:
                self._require(not (words := standby_laws.trouble_with(state, job)), words)

    # The broker's answers

    def on_refusal(self, end: Any, content: Any, error: ProtocolError) -> None:
        """Only a stranger may be refused."""
        self.counts["refusal"] += 1
        if end is None or end.peer.id != STRANGER:
            self._world.fail(f"the broker refuses {content} of {end and end.peer}: {error}", error)

    def on_decided(self, event: events.Event, outcome: Outcome) -> None:
        """What a stranger says decides nothing, and what a submitter asks for is done."""
        for fact in outcome.facts:
            if isinstance(fact, JobPlanning) and not any(isinstance(one, JobMoves) for one in outcome.facts):
                self._require_turn(fact.job, outcome.state)
            elif isinstance(fact, JobRolledBack) and fact.restores and isinstance(event, LOSSES):
                self._require_need(fact, event, outcome.state)
            elif isinstance(fact, JobReplaying):
                self._judge_promotion(fact)
        if isinstance(event, events.Tick):
            for one in outcome.state.workers.values():
                since = event.now if one.away_since is None else one.away_since
                job = None if one.job is None else outcome.state.jobs[one.job]
                is_awaited = job is not None and one.worker in job.awaited
                limit = event.return_seconds if job is None or not is_awaited else job.patience_seconds
                self._require(event.now - since <= limit, f"{one.worker} is awaited for ever")
            for job in outcome.state.jobs.values():
                self._require(not (words := standby_laws.silence(outcome.state, job, event.now)), words)
                self._require_end_of_wait(job, outcome.state, event)
                ledger = self.log.jobs.get(job.job) if job.state == QUEUED else None
                overdue = ledger is not None and ledger.is_overdue(event.now)
                self._require(not overdue, f"{job.job} waits for ever: {job.words!r}")
        said = getattr(event, "message", None)
        if isinstance(said, Refused) and getattr(event, "worker", "") != STRANGER:
            self._require("does not hold the state" not in said.reason, f"{said}: it was counted on")
        who = getattr(event, "worker", getattr(event, "submitter", ""))
        if who == STRANGER and isinstance(event, events.WorkerMessage | events.SubmitterMessage):
            real = [fact for fact in outcome.facts if not isinstance(fact, WaitExplained)]
            self._require(not real, f"a stranger's {event} led to {real}")
        elif isinstance(event, events.SubmitterMessage) and not isinstance(event.message, Submit):
            self._judge_wish(event, outcome)

    def _judge_promotion(self, fact: JobReplaying) -> None:
        """No state is sent to a worker that takes over if an idle one had it."""
        state = self.broker.state
        job = state.jobs[fact.job]
        assert job.plan is not None and job.versions.stable is not None
        self.counts["a standby took over"] += not fact.donors
        for member, donor in fact.donors.items():
            share = min(fact.plan.segments_of(member))
            held = who_has(state, job, job.versions.stable, share)
            taken = fact.plan.workers()  # an idle one that has its own place back, too
            idle = [one for one in held if state.workers[one].idle and one not in taken]
            self._require(not idle, f"{fact}: {donor} sends what {idle} have")

    def _require_end_of_wait(self, job: Job, state: State, event: events.Tick) -> None:
        """A job awaits lost members no longer than that if the others have copies of the whole state."""
        gone = [state.workers[name] for name in job.awaited if not state.workers[name].connected]
        there = [state.workers[name] for name in job.members if state.workers[name].connected]
        left = [one.worker for one in there if one.leaving is None and one.worker not in job.unable]
        if not gone or not is_readable(state, job, left) or set(left) <= set(job.recovery.unfit):
            return
        waited = event.now - min(one.away_since or event.now for one in gone)
        self._require(waited <= event.replace_seconds, f"{job.job} waits for {job.awaited} without need")

    def _require_turn(self, begun: str, state: State) -> None:
        """A job begins only if those before it have begun, or wait for submitters or for others to join."""
        ahead = list(state.jobs)[: list(state.jobs).index(begun)]
        queued = [job for job in map(state.jobs.get, ahead) if job and job.state == QUEUED]
        passed = [job for job in queued if not (job.unable or job.held or needs_others(state, job))]
        self._require(not passed, f"{begun} begins before {[job.job for job in passed]}")

    def _require_need(self, fact: JobRolledBack, event: events.Event, after: State) -> None:
        """Members that hold the state give it up only if they must, when others are lost.

        So not if idle workers are there for these, and copies (of standbys, too) and logs suffice.
        """
        before, who = self.broker.state, getattr(event, "worker", "")
        job = before.jobs[fact.job]
        version, plan = job.versions.stable, job.plan
        lost = {name for name in job.members if name == who or not after.workers[name].connected}
        again = lost | ({*job.replayers} | job.newcomers if job.state == LOADING else set())
        staying = set(job.members) - again
        has_state = job.state in (RUNNING, COLLECTING) or (job.state == LOADING and job.keeps)
        if job.has_equal_pipelines and lost and has_state:
            self._require_no_whole_pipeline(fact, job, again)
        if version is None or plan is None or not (lost and staying and has_state) or plan.sums:
            return  # what pipelines have added up cannot be run again alone
        idle = [name for name in before.idle_for(job) if not job.on or name in job.on]
        able = [name for name in idle if before.workers[name].disk_bytes and after.workers[name].connected]
        shares = [share for share, owner in shares_of(plan).items() if owner in again]
        has_copies = all({*staying, *able} & set(who_has(before, job, version, share)) for share in shares)
        has_logs = all(job.logged.get(name, version.next_unit + 1) <= version.next_unit for name in staying)
        is_taken = len(able) >= len(lost)
        may_return = (
            isinstance(event, events.WorkerLeaves) and not job.ending and not has_left(who, event.reason)
        )
        is_fixed = before.workers[who].leaving is None if may_return else False
        can_go_on = self._world.alike and (is_taken or (may_return and is_fixed)) and has_copies and has_logs
        is_in_vain = job.recovery.regrouped >= MOST_REGROUPED and job.began <= job.recovery.reached
        is_damaged = self.log.jobs[fact.job].damaged
        self._require(
            not can_go_on or is_in_vain or is_damaged,
            f"{fact}, but others could run units again",
        )

    def _require_no_whole_pipeline(self, fact: JobRolledBack, job: Job, without: set[str]) -> None:
        """All go back although a pipeline holds the newest state: only if that was in vain before."""
        plan, state = job.plan, self.broker.state
        assert plan is not None
        seats = plan.seats().items()
        broken = {plan.pipeline_of(at) for at, name in seats if name in without}
        there = {at for at, name in seats if state.workers[name].connected or state.workers[name].away}
        whole = [
            one
            for one in plan.live_pipelines()
            if one not in broken and there >= {at for at, _ in seats if plan.pipeline_of(at) == one}
        ]
        is_in_vain = job.recovery.regrouped >= MOST_REPLAYED and job.began <= job.recovery.reached
        self._require(not whole or is_in_vain, f"{fact}, but replica {whole} holds the newest state")

    def _judge_wish(self, event: events.SubmitterMessage, outcome: Outcome) -> None:
        message: Any = event.message
        before, after = self.broker.state.jobs[message.job], outcome.state.jobs[message.job]
        if before.over:
            self._require(after is before, f"{message} changed {before.job}, which is over")
            return
        if message.job in event.elsewhere and not isinstance(message, Return):
            self._require(after is before, f"{message} counts, though another session holds {before.job}")
            return
        match message:
            case Return():
                alive = event.elsewhere.get(message.job, math.inf) < event.suspect_seconds
                self._require(alive or after.over or not after.held, f"{message} is not answered")
                self._require(not alive or after is before, f"{message} takes the place of a live submitter")
            case Keep():
                noted = after.copies.due or after.state == COLLECTING
                self._require(noted, f"{message} is forgotten")
            case Kept(attempt=attempt) if attempt < before.attempt or before.state == QUEUED:
                self._require(after.copies == before.copies, f"{message} counts in attempt {before.attempt}")
            case Kept(unit=unit) if unit != before.copies.under_way:
                self._require(after.copies == before.copies, f"{message} counts, but was said before")
            case Kept():
                self._require(after.copies.under_way != message.unit, f"{message} is forgotten")
            case Cancel(collect=collect):
                brings = collect and before.state in (RUNNING, COLLECTING)
                expected = COLLECTING if brings else CANCELLED
                if collect and before.state == LOADING and before.keeps:
                    expected = LOADING
                    self._require(bool(after.ending), f"{message} is forgotten")
                self._require(after.state == expected, f"after {message} {after.job} is {after.state}")

    # Workers

    def on_prepare(self, worker: WorkerProcess, load: Load) -> None:
        """A worker begins to load: it must have dropped what it had."""
        attempt = (load.job, load.attempt)
        ledger = self.log.jobs[load.job]
        line = ledger.lines.get(load.attempt)
        self._require(line is not None and line.plan == load.plan, f"{load} is not in the log")
        assert line is not None
        begins = load.unit + len(load.history)
        self._require(begins == line.begins, f"{load} leads to unit {begins}, not {line.begins}")
        self._require(not load.history or worker.name in line.replayers, f"{load} runs units again")
        held = self._applied.get(worker.name)
        newer = held is None or held[1] != attempt or held[0] != worker.life
        self._require(newer, f"{worker.name} loads {attempt} twice")
        self._applied[worker.name] = (worker.life, attempt, load.unit - 1)

    def expected_chain(self, load: Load) -> Chain:
        """The state with which an attempt begins."""
        return chain_of(self.log.jobs[load.job].whole, load.unit)

    def on_regroup(self, worker: WorkerProcess, load: Load) -> None:
        """A worker keeps its state in another attempt: the state of the unit with which that begins."""
        attempt, (life, of, last) = (load.job, load.attempt), self._applied[worker.name]
        line = self.log.jobs[load.job].lines.get(load.attempt)
        self._require(line is not None and line.keeps, f"{load} keeps a state, which is not in the log")
        assert line is not None
        self._require(
            (life, last + 1, of[0]) == (worker.life, load.unit, load.job) and line.begins == load.unit,
            f"{worker.name} goes on at unit {load.unit} of {attempt} after unit {last} of {of}",
        )
        self._applied[worker.name] = (life, attempt, last)

    def on_run_again(self, worker: WorkerProcess, attempt: Attempt, unit: int, scale: float) -> None:
        """A worker that took a place runs past units again: each once, in order, as they were decided."""
        self.counts["a unit that ran again"] += 1
        life, of, last = self._applied[worker.name]
        self._require(
            (life, of, last + 1) == (worker.life, attempt, unit),
            f"{worker.name} runs unit {unit} of {attempt} again after unit {last} of {of}",
        )
        decided = self.log.jobs[attempt[0]].whole[unit]
        self._require(decided.scale == scale, f"{worker.name} runs unit {unit} again with {scale}: {decided}")
        self._applied[worker.name] = (life, attempt, unit)

    def on_exit(self, worker: WorkerProcess, reason: str) -> None:
        """A worker that leaves hears that it may, unless its broker is away."""
        self.counts["an exit"] += 1
        calm = (
            self._world.calm_since is not None and self._world.now - self._world.calm_since > SETTLED_SECONDS
        )
        self._require(not (calm and "did not release it" in reason), f"{worker.name} ends: {reason}")

    def on_drop(self, worker: WorkerProcess, reason: str) -> None:
        """A worker is told to stop before it is told to load again."""
        if reason.startswith("superseded by "):
            _, of, _ = self._applied[worker.name]
            self._world.fail(f"{worker.name} gets {worker.state.attempt} while it holds {of}")
        self._applied.pop(worker.name)

    def on_apply(
        self,
        worker: WorkerProcess,
        attempt: Attempt,
        unit: int,
        scale: float,
        codecs: tuple[LinkCodec, ...] | None,
    ) -> None:
        """A worker applies a unit: the next one, once, and as the log says."""
        life, of, last = self._applied[worker.name]
        self._require(
            (life, of, last + 1) == (worker.life, attempt, unit),
            f"{worker.name} applies unit {unit} of {attempt} after unit {last} of {of}",
        )
        self._applied[worker.name] = (life, of, unit)
        line = self.log.jobs[attempt[0]].lines[attempt[1]]
        fact = line.decided.get(unit)
        self._require(
            fact is not None and fact.scale == scale,
            f"{worker.name} applies unit {unit} with {scale}, the log has {fact}",
        )
        self._require(codecs == line.codecs.get(unit + 1), f"{worker.name} hears other codecs than the log's")

    # Submitters

    def on_unit_done(self, done: UnitDone, returned: bool) -> None:
        """A submitter hears what was logged of a unit; if it has returned, maybe without a copy's begin."""
        fact = self.log.jobs[done.job].lines[done.attempt].decided.get(done.unit)
        heard = (done.loss, done.gradient_norm, done.keep)
        logged = fact and (fact.loss, fact.gradient_norm, fact.keep and (done.keep or not returned))
        self._require(heard == logged, f"{done} is heard, {fact} is logged")

    def on_rolled_back(self, run: Run, message: RolledBack) -> None:
        """A submitter goes back to where the log says, and has that state."""
        ledger = self.log.jobs[message.job]
        self._rolled_back.add((message.job, message.attempt))
        # A submitter that was away may not know of an attempt that kept the state before it was rolled back.
        back = [units for attempt, units in ledger.rolled_back.items() if attempt >= message.attempt]
        self._require(any(message.unit in units for units in back), f"{message} is heard, but not logged")
        known = message.held or message.unit == len(run.origin) or message.unit in run.project.checkpoints
        self._require(known, f"{message}: there are {sorted(run.project.checkpoints)}")

    def on_fed(self, submitter: SubmitterProcess, attempt: Attempt) -> None:
        """A submitter feeds no attempt that it knows to be over."""
        self._require(attempt not in self._rolled_back, f"{submitter.name} feeds {attempt}, which is over")

    def on_copy(self, run: Run, unit: int, copy: dict[str, Chain]) -> None:
        """Every worker has given its state right after `unit`: that of a fleet without faults."""
        self.counts["copy"] += 1
        expected = chain_of(run.project.whole, unit + 1)
        for worker, chain in copy.items():
            self._require(chain == expected, f"the copy of {unit} from {worker} is {chain}")
        self.log.on_saved(run.job, unit)

    def on_collected(self, run: Run, attempt: runs.Attempt) -> None:
        """Every worker has given its last state: that of a fleet without faults."""
        self.counts["collected"] += 1
        expected = chain_of(run.project.whole, attempt.next_unit)
        for worker, chain in attempt.final.items():
            self._require(chain == expected, f"the last state from {worker} is {chain}")
        self.log.on_collected(attempt.name)

    def on_ended(self, submitter: SubmitterProcess, run: Run, ended: Ended) -> None:
        """A submitter hears the logged end; a job that is done has the bits of one without faults."""
        ledger = self.log.jobs[ended.job]
        self._require(
            ledger.ended == ended.state, f"{submitter.name} hears {ended}, logged is {ledger.ended}"
        )
        if ended.state == "done":
            self._require(run.collected, f"{ended.job} is done, but {submitter.name} lacks its state")
            if run.attempt is None:  # of an earlier process
                return
            whole = chain_of(ledger.whole, len(ledger.whole))
            for chain in run.attempt.final.values():
                self._require(chain == whole, f"{ended.job} is done with {chain}, expected {whole}")
            self.counts["done after a rollback"] += run.rollbacks > 0

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            self._world.fail(words)
