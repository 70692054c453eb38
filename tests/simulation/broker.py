"""The broker's process: what arrives becomes events of the real state machine, in groups.

It does what `broker.dispatcher` does, with the real registry of sessions and the real conversion to events:
decide a group, store its facts, and only then carry out its commands. A crash can fall between any of these,
and between any two commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.simulation.ends import End
from tests.simulation.planner import answer_of, considered_of
from tests.simulation.store import VirtualStore
from tests.simulation.world import LEASE_SECONDS, Process, World

from farflung.broker.arrivals import Arrival, Closed, Generation, events_of
from farflung.broker.core import events, facts
from farflung.broker.core.events import ConsiderPlan, Expel, Hold, Reject, RunPlanner, SendLoad
from farflung.broker.core.state import decide
from farflung.broker.core.training.jobs import is_loading, is_planning
from farflung.broker.journal import SNAPSHOT_EVERY, Journal
from farflung.broker.sessions import SessionRegistry
from farflung.errors import ProtocolError
from farflung.protocol.messages import Denied
from farflung.transport.timeouts import Timeouts

TIMEOUTS = Timeouts(LEASE_SECONDS)
TICK_SECONDS = 5.0
SNAPSHOTS = 0.05
"""The part of all groups that a log snapshot is stored with."""


@dataclass
class _Group:
    """What is stored together, and what follows once it is stored."""

    decisions: list[facts.AnyDecision] = field(default_factory=list)
    actions: list[tuple[object, Callable[[], None]]] = field(default_factory=list)
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    unneeded: set[bytes] = field(default_factory=set)
    rejected: list[object] = field(default_factory=list)


class BrokerProcess(Process):
    """The one broker. `crash_after` makes it die at its next group of facts: -1 before it is stored, else
    after that many of its commands. `crossing` loses one of the workers of the next plan as it is made.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world, "broker")
        self.store = VirtualStore()
        self.crash_after: int | None = None
        self.restart_seconds = 1.0
        self.replace_seconds = self.random.choice([5.0, TIMEOUTS.replace_seconds])
        self.crossing: Callable[[list[str]], str] | None = None
        self.begin()

    def begin(self) -> None:
        """Read the newest log snapshot, replay the facts after it, and listen."""
        self.journal = Journal(self.store)  # type: ignore[arg-type]
        self.state = self.journal.state
        self.registry = SessionRegistry()
        self._ends: list[End] = []
        self._arrivals: list[Arrival] = []
        self._is_busy = False
        self.just_began = True
        self._put(None, events.Restarted(self.world.now))
        self.after(TICK_SECONDS, self._tick)

    def die(self, silently: bool) -> None:
        """End this life; it has to leave what the laws expect on disk."""
        super().die(silently)
        self.world.laws.log.on_crash(self.store)

    # Sessions

    def on_message(self, end: End, message: Any) -> None:
        self._put(end, message)

    def on_back(self, end: End) -> None:
        pass

    def on_end(self, end: End, reason: str) -> None:
        self._put(end, Closed(reason))

    def ask(self, event: events.Event) -> None:
        """An operator asks for something, and does not wait for the answer."""
        self.after(0.0, lambda: self._put(None, replace(event, now=self.world.now)))

    def _put(self, end: End | None, content: Any) -> None:
        self._arrivals.append(Arrival(end, content))  # type: ignore[arg-type]
        if not self._is_busy:
            self._is_busy = True
            self.after(0.0, self._turn)

    def _tick(self) -> None:
        limits = (
            TIMEOUTS.patience_seconds,
            TIMEOUTS.return_seconds,
            TIMEOUTS.hold_seconds,
            self.replace_seconds,
        )
        self._put(None, events.Tick(self.world.now, *limits))
        self.after(TICK_SECONDS, self._tick)

    # Decide a group, store it, act

    def _turn(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        self.just_began = False
        group = _Group()
        for arrival in arrivals:
            self._process(arrival, group)
        if not group.decisions:
            self._act(group)
            return
        if self.crash_after == -1:
            self._crash("before it stored its decisions")
            return
        delay = self.random.expovariate(200) if self.random.random() < 0.97 else self.random.uniform(0, 3)
        self.after(delay, partial(self._store, group))

    def _store(self, group: _Group) -> None:
        if self.random.random() < SNAPSHOTS:
            self.journal._since_snapshot = SNAPSHOT_EVERY
            self.world.laws.counts["snapshot"] += 1
        records = [facts.encode(decision) for decision in group.decisions]
        self.journal.append(records, self.state, group.blobs, group.unneeded)
        self.world.laws.log.on_stored(group.decisions, self.state, self.store)
        self._act(group)

    def _act(self, group: _Group) -> None:
        for done, (what, act) in enumerate(group.actions):
            if group.decisions and self.crash_after is not None and done >= self.crash_after >= 0:
                self._crash(f"after {done} of {len(group.actions)} commands")
                return
            self.note("does", what)
            act()
        self._is_busy = bool(self._arrivals)
        if self._is_busy:
            self.after(0.0, self._turn)

    def _crash(self, where: str) -> None:
        self.note("crashes", where)
        self.world.laws.counts[f"crash {where.split(' ')[0]}"] += 1
        self.crash_after = None
        self.die(silently=False)
        self.world.schedule(self.restart_seconds, self.world.weather, self.start)

    def _process(self, arrival: Arrival, group: _Group) -> None:
        end: Any = arrival.origin
        try:
            generation = Generation(self.life + 1, b"seal")
            for event in events_of(arrival, self.registry, TIMEOUTS, self.world.now, generation):
                if isinstance(event, events.SubmitterMessage):
                    others: Any = self.registry.held_elsewhere(end)
                    silent = {job: other.silent_seconds for job, other in others.items()}
                    draws = self.world.random(f"draws {self.world.now}").getrandbits(63)
                    event = replace(event, elsewhere=silent, draws=draws)
                if isinstance(event, events.WorkerRegisters) and event.silent_seconds is not None:
                    older: Any = self.registry.workers[event.worker]
                    event = replace(event, silent_seconds=older.silent_seconds)
                self._decide(event, end, group)
        except ProtocolError as error:
            if end not in group.rejected:  # else its session ends anyway: it registered, and is not admitted
                self.world.laws.on_refusal(end, arrival.content, error)
            group.actions.append((f"refuse {end.peer}", partial(self._close, end, str(error))))

    def _decide(self, event: events.Event, end: Any, group: _Group) -> None:
        outcome = decide(self.state, event)
        self.world.laws.on_decided(event, outcome)
        self.state = outcome.state
        group.decisions.extend(outcome.decisions())
        kept = {digest: blob for digest, blob in group.blobs.items() if digest not in outcome.unneeded}
        group.blobs = {**kept, **outcome.blobs}
        group.unneeded = (group.unneeded | outcome.unneeded) - outcome.blobs.keys()
        for fact in outcome.facts:
            self.note("decides", fact)
            if isinstance(fact, facts.JobSubmitted):
                self.registry.jobs[fact.job] = end
        for command in outcome.commands:
            self._queue(command, end, group)
        for fact in outcome.facts:
            if isinstance(fact, facts.JobEnded):
                self.registry.jobs.pop(fact.job, None)

    def _queue(self, command: events.Command, end: Any, group: _Group) -> None:
        if isinstance(command, ConsiderPlan):
            group.actions.append((command, partial(self._consider, command)))
        elif isinstance(command, RunPlanner):
            group.actions.append((command, partial(self._plan, command)))
        if isinstance(command, SendLoad) and (worker := self.registry.workers.get(command.worker)):
            group.actions.append((command, partial(self._send_load, worker, command)))
        if replaced := self.registry.admit(command, end):
            reason = "this worker connected again on a newer link"
            group.actions.append((command, partial(self._close, replaced, reason)))
        if replaced := self.registry.hold(command, end):
            assert isinstance(command, Hold)
            group.actions.append((command, partial(self._close, replaced, command.reason)))
        if isinstance(command, Expel) and (expelled := self.registry.workers.get(command.member)):
            group.actions.append((command, partial(self._expel, expelled, command.reason)))
        if receiver := self.registry.receiver(command, end):
            session, message = receiver
            group.actions.append((command, partial(session.send, message)))  # type: ignore[attr-defined]
            if isinstance(command, Reject):
                group.rejected.append(session)
                group.actions.append((command, partial(self._close, session, command.reason)))

    def _expel(self, end: Any, reason: str) -> None:
        end.send(Denied(reason))
        self._close(end, reason)

    def _close(self, end: Any, reason: str) -> None:
        if not end.over:
            end.close(reason)
            self.on_end(end, reason)

    def _send_load(self, end: Any, command: SendLoad) -> None:
        is_checked = command.load.checks and command.worker in self.state.checking()
        if is_checked or is_loading(self.state.jobs[command.load.job], command.load.attempt):
            end.send(command.message(self.store.stored))

    def _plan(self, command: RunPlanner) -> None:
        if is_planning(self.state.jobs[command.job], command.attempt):
            assert command.graph in self.store.stored, "the planner was asked for a graph that is not stored"
            answer = answer_of(command, self.random, self.world.now)
            self.after(self.random.uniform(0.05, 3), lambda: self._planned(answer))

    def _consider(self, command: ConsiderPlan) -> None:
        answer = considered_of(command, self.random, self.world.now)
        self.after(self.random.uniform(0.05, 3), lambda: self._put(None, replace(answer, now=self.world.now)))

    def _planned(self, answer: events.PlanMade | events.PlanFailed | events.PlanLacks) -> None:
        self._put(None, replace(answer, now=self.world.now))
        if self.crossing is not None and isinstance(answer, events.PlanMade):
            crossing, self.crossing = self.crossing, None
            end: Any = self.registry.workers.get(crossing(answer.result.plan.workers()))
            if end is not None:
                end.give_up("connection reset by peer")  # in the same group
