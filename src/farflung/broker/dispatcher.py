"""Order what arrives, decide it, store the decisions in groups, and only then carry out commands.

Messages become events of the state machine (`events_of`). While one group of decisions is written to disk on
a thread, the next one accumulates, so a slow disk makes groups larger and never delays a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from farflung.broker.arrivals import FIRST, Arrival, Generation, events_of
from farflung.broker.core import facts, log_lines
from farflung.broker.core.blobs import Digest
from farflung.broker.core.events import (
    CodecsConsidered,
    Command,
    ConsiderCodecs,
    ConsiderPlan,
    Event,
    Expel,
    Hold,
    NoteApart,
    OpenCircuit,
    PlanConsidered,
    PlanFailed,
    PlanLacks,
    PlanMade,
    ReadTuning,
    Reject,
    RunPlanner,
    SendLoad,
    TuningRead,
)
from farflung.broker.core.state import Outcome, decide
from farflung.broker.core.training.job_queue import planning_words
from farflung.broker.core.training.jobs import is_loading, is_planning
from farflung.broker.job_log import JobLog
from farflung.broker.journal import Journal
from farflung.broker.network.relays import Circuits
from farflung.broker.planning.client import Clock, consider, plan
from farflung.broker.planning.fair_lock import FairLock
from farflung.broker.planning.messages import Searched
from farflung.broker.sessions import Caller, HolderSession, Origin, SessionRegistry
from farflung.broker.storage.contract import BrokerStore
from farflung.broker.survey.measurements import Measurements
from farflung.broker.survey.topology import MeasuredTopology, topology_of
from farflung.errors import ProtocolError, StoreError
from farflung.plans.topology import MOST_WORKERS
from farflung.protocol import messages
from farflung.text import format_seconds
from farflung.transport.timeouts import Timeouts

_log = logging.getLogger("farflung.broker")

_Result = TypeVar("_Result")


@dataclass
class _Group:
    """Decisions that are stored together with their blobs, and the actions that follow once they are stored.

    `read` holds the blobs that the actions need, once they are read.
    """

    records: list[bytes] = field(default_factory=list)
    actions: list[Callable[[], None]] = field(default_factory=list)
    blobs: dict[Digest, bytes] = field(default_factory=dict)
    unneeded: set[Digest] = field(default_factory=set)
    loads: list[SendLoad] = field(default_factory=list)
    read: dict[Digest, bytes] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Add what must be stored of an outcome; it follows those added before."""
        self.records.extend([facts.encode(decision) for decision in outcome.decisions()])
        kept = {digest: blob for digest, blob in self.blobs.items() if digest not in outcome.unneeded}
        self.blobs = {**kept, **outcome.blobs}
        self.unneeded = (self.unneeded | outcome.unneeded) - outcome.blobs.keys()


class Dispatcher:
    """Owns the state: passes events to the state machine and carries out its commands.

    `measurements` holds what is known about links between workers. It is observed and not part of the state.
    `job_log` holds the newest lines of the log about each job.
    `expel` closes every session of a member that was removed, with a reason. `alarm` says why no new jobs are
    taken, if that is so.
    """

    def __init__(
        self,
        journal: Journal,
        store: BrokerStore,
        timeouts: Timeouts,
        clock: Clock,
        circuits: Circuits,
        generation: Generation = FIRST,
        expel: Callable[[str, str], None] = lambda member, reason: None,
    ) -> None:
        self.state = journal.state
        self._journal = journal
        self.measurements = Measurements()
        self.job_log = JobLog()
        self.alarm = ""
        self._planner_lock = FairLock()  # one planner at a time
        self._consider_lock = asyncio.Lock()  # and one that looks for better plans of jobs that run
        self._tuning_thread = ThreadPoolExecutor(1, "farflung-codec-tuning")  # not a thread that stores
        self._circuits = circuits
        self.sessions = SessionRegistry()
        self._store = store
        self._generation = generation
        self._expel = expel
        self._timeouts = timeouts
        self._clock = clock
        self._arrivals: list[Arrival] = []
        self._awake = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    def put(self, arrival: Arrival) -> None:
        """Queue an arrival."""
        self._arrivals.append(arrival)
        self._awake.set()

    async def run(self) -> None:
        """Process arrivals until cancelled.

        Raises
        ------
        StoreError
            A decision cannot be stored, or what it names cannot be read, so its commands must not be carried
            out: the broker must stop.
        """
        while True:
            await self._awake.wait()
            self._awake.clear()
            arrivals, self._arrivals = self._arrivals, []
            group = _Group()
            for arrival in arrivals:
                self._process(arrival, group)
            if group.records:
                store = partial(self._journal.append, group.records, self.state)
                await self._on_thread(partial(store, group.blobs, group.unneeded))
            if programs := {digest for load in group.loads if self._is_due(load) for digest in load.programs}:
                group.read = await self._on_thread(partial(self._store.blobs, programs))
            for action in group.actions:
                action()

    async def _on_thread(self, call: Callable[[], _Result]) -> _Result:
        """The result of a call to the store; a cancelled caller waits for it, as the store is closed next."""
        running = asyncio.create_task(asyncio.to_thread(call))
        cancelled = False
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                cancelled = True
                self._store.stop_waiting()
        result = running.result()
        if cancelled:
            raise asyncio.CancelledError
        return result

    def _process(self, arrival: Arrival, group: _Group) -> None:
        try:
            now, own = self._clock(), self._generation
            for event in events_of(arrival, self.sessions, self._timeouts, now, own, self.alarm):
                self._decide(event, arrival.origin, group)
        except ProtocolError as error:
            if arrival.origin is None:
                raise
            _log.warning("closing the session of %s: %s", arrival.origin.peer, error)
            group.actions.append(partial(self.close, arrival.origin, str(error)))
        except Exception:
            if arrival.origin is None:
                raise
            _log.exception("a message from %s could not be handled", arrival.origin.peer)
            reason = "the broker could not handle a message: see its log"
            group.actions.append(partial(self.close, arrival.origin, reason))

    def _decide(self, event: Event, origin: Origin | None, group: _Group) -> None:
        outcome = decide(self.state, event)
        group.add(outcome)
        self.state = outcome.state
        for fact in outcome.facts:
            if words := log_lines.log_line(fact):
                group.actions.append(partial(_log.info, "%s", words))
                group.actions.append(partial(self.job_log.add, fact, self._clock(), words))
            if isinstance(fact, facts.JobSubmitted) and not isinstance(origin, Caller | None):
                self.sessions.jobs[fact.job] = origin
            self._forget_failed_links(fact)
        self._queue_commands(outcome, origin, group)
        for fact in outcome.facts:
            if isinstance(fact, facts.JobEnded):
                self.sessions.jobs.pop(fact.job, None)

    def _forget_failed_links(self, fact: facts.Fact) -> None:
        """Forget failed links of a worker that registers again, and of members that have linked up."""
        if isinstance(fact, facts.WorkerAdmitted):
            self.measurements = self.measurements.without_failed_links(lambda pair: fact.worker in pair)
        elif isinstance(fact, facts.JobRunning) and (plan := self.state.jobs[fact.job].plan) is not None:
            near = {name: plan.neighbours(name) for name in plan.workers()}
            self.measurements = self.measurements.without_failed_links(
                lambda pair: pair[1] in near.get(pair[0], ())
            )

    def _queue_commands(self, outcome: Outcome, origin: Origin | None, group: _Group) -> None:
        # Look up receivers now and not after the commit: a worker that registers again within this group must
        # not get messages meant for its older session.
        for command in self._expand_circuits(outcome.commands):
            if isinstance(command, ConsiderPlan):
                group.actions.append(partial(self.spawn, self._consider(command)))
            elif isinstance(command, RunPlanner):
                group.actions.append(partial(self.spawn, self._plan(command)))
            elif isinstance(command, NoteApart):
                self.measurements = self.measurements.with_failed_link(
                    command.worker, command.peer, command.reason, self._clock()
                )
            if isinstance(command, SendLoad) and (worker := self.sessions.workers.get(command.worker)):
                group.loads.append(command)
                group.actions.append(partial(self._send_load, worker, command, group))
            if isinstance(command, Expel):
                group.actions.append(partial(self._expel, command.member, command.reason))
            if isinstance(command, ReadTuning):
                group.actions.append(partial(self.spawn, self._read_tuning(command)))
            if isinstance(command, ConsiderCodecs):
                group.actions.append(partial(self.spawn, self._tune_codecs(command)))
            if replaced := self.sessions.admit(command, origin):
                group.actions.append(
                    partial(self.close, replaced, "this worker connected again on a newer link")
                )
            if replaced := self.sessions.hold(command, origin):
                assert isinstance(command, Hold)
                group.actions.append(partial(self.close, replaced, command.reason))
            if receiver := self.sessions.receiver(command, origin):
                session, message = receiver
                group.actions.append(partial(session.send_control, messages.encode(message)))
                if isinstance(command, Reject):
                    group.actions.append(partial(self.close, session, command.reason))

    def _expand_circuits(self, commands: Iterable[Command]) -> Iterator[Command]:
        for command in commands:
            if isinstance(command, OpenCircuit):
                yield from self._circuits.open(command)
            else:
                yield command

    def _is_due(self, command: SendLoad) -> bool:
        """Whether what the load is for has not ended since the command was given: programs may be deleted."""
        job, attempt = self.state.jobs[command.load.job], command.load.attempt
        if command.load.checks:
            return job.attempt == attempt and command.worker in self.state.checking()
        return is_loading(job, attempt)

    def _send_load(self, session: HolderSession, command: SendLoad, group: _Group) -> None:
        if self._is_due(command):
            session.send_control(messages.encode(command.message(group.read)))

    async def _plan(self, command: RunPlanner) -> None:
        async with self._planner_lock.turn(self.state.jobs[command.job].submitter):
            if not is_planning(self.state.jobs[command.job], command.attempt):
                return  # the attempt ended while it waited for the planner
            answer = await self._run_planner(command)
        self.put(Arrival(None, answer))

    async def _run_planner(self, command: RunPlanner) -> PlanMade | PlanFailed | PlanLacks:
        try:
            graph = (await asyncio.to_thread(self._store.blobs, [command.graph]))[command.graph]
            measured = await asyncio.to_thread(
                self._measured_topology, command.workers
            )  # seconds for a thousand workers
            on_progress = partial(self._send_progress, command)
            return await plan(command, graph, measured, self._timeouts, self._clock, on_progress)
        except Exception:  # without an answer the job would hold its workers for ever
            _log.exception("%s could not be planned", command.job)
            reason = "the broker could not plan this job: see its log"
            return PlanFailed(self._clock(), command.job, command.attempt, reason)

    async def _consider(self, command: ConsiderPlan) -> None:
        """Look for a better plan of a job that runs. Jobs that wait for a plan do not wait for this."""
        try:
            graph = (await asyncio.to_thread(self._store.blobs, [command.graph]))[command.graph]
            measured = await asyncio.to_thread(self._measured_topology, command.workers)
            async with self._consider_lock:
                found = await consider(command, graph, measured, self._timeouts, self._clock)
        except Exception:  # without an answer no other plan would ever be considered
            _log.exception("no other plan for %s could be considered", command.job)
            reason = "the broker could not plan it: see its log"
            found = PlanConsidered(self._clock(), command.job, command.attempt, None, reason=reason)
        self.put(Arrival(None, found))

    def _send_progress(self, command: RunPlanner, searched: Searched) -> None:
        """Report the search's progress to the submitter. This is not stored."""
        job = self.state.jobs[command.job]
        session = self.sessions.jobs.get(command.job)
        if session is not None and is_planning(job, command.attempt):
            so_far = f"{searched.plans:,.0f} plans looked at"
            if searched.step_seconds is not None:
                so_far += f", the best {format_seconds(searched.step_seconds)} a step"
            words = planning_words(job, len(command.workers), so_far)
            session.send_control(messages.encode(messages.Accepted(job.job, words)))

    async def _read_tuning(self, command: ReadTuning) -> None:
        """Read where codec tuning began, so that it begins again there."""
        try:
            found = await asyncio.to_thread(self._store.blobs, [command.steering])
        except StoreError as error:  # the job has ended, or keeps its codecs
            _log.warning("codec tuning of %s does not begin again: %s", command.job, error)
            return
        steering = found[command.steering]
        self.put(Arrival(None, TuningRead(self._clock(), command.job, command.attempt, steering)))

    async def _tune_codecs(self, command: ConsiderCodecs) -> None:
        """Run codec tuning on a thread: it takes up to a second for the largest plans."""
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._tuning_thread, command.steering.on_units, command.units)
        except Exception:  # the job keeps its codecs, and tuning is tried again after the next unit
            _log.exception("codecs of %s could not be chosen", command.job)
            found = command.steering.unchanged()
        self.put(Arrival(None, CodecsConsidered(self._clock(), command.job, command.attempt, *found)))

    def topology_of(self, workers: Iterable[str]) -> MeasuredTopology:
        """The topology of these workers, measured where possible, and what had to be assumed."""
        return topology_of([self.state.workers[name] for name in workers], self.measurements)

    def _measured_topology(self, workers: Sequence[str]) -> MeasuredTopology | None:
        """The topology of these workers; None if none of their links was measured."""
        if len(workers) > MOST_WORKERS or not self.measurements.among(workers):
            return None
        return self.topology_of(workers)

    def close(self, session: Origin, reason: str) -> None:
        """Close a session without waiting for it."""
        self.spawn(session.close(reason))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; it is cancelled when the broker stops."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def stop(self) -> None:
        """Cancel all background tasks."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._tuning_thread.shutdown(wait=False, cancel_futures=True)
