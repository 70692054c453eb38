"""Survey a live fleet: let idle workers measure the links between them, and keep the results.

When a fleet has been idle for a moment, its unmeasured links are surveyed automatically; failed probes are
repeated at growing intervals (`Retries`). Jobs have priority: a survey releases workers that a job needs at
once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from farflung.broker.core.events import OpenCircuit, Send
from farflung.broker.core.records import QUEUED, State, Worker
from farflung.broker.dispatcher import Dispatcher
from farflung.broker.network.relays import Circuits
from farflung.broker.survey.machine import (
    AccessLine,
    Member,
    PlannedProbe,
    Survey,
    SurveyTransition,
    begin,
    leave,
    on_answer,
    on_tick,
)
from farflung.broker.survey.measurements import Measurement, Measurements, MeasurementStore, PairMeasurement
from farflung.broker.survey.passive import PassiveMeasurement
from farflung.broker.survey.paths import PathQuestion, help_reach
from farflung.broker.survey.plan import WORKER_BYTES, Meeting, SurveyPlan, is_known, survey_plan
from farflung.broker.survey.topology import topology_of
from farflung.errors import ProtocolError
from farflung.plans.topology import MOST_WORKERS
from farflung.protocol import messages
from farflung.protocol.fields import Message
from farflung.protocol.probing import FleetTopology, MeasuredLink, Probed
from farflung.protocol.reachability import Links
from farflung.text import count_of
from farflung.transport.net.addresses import parse_address
from farflung.transport.timeouts import Timeouts

Subject = frozenset[str] | AccessLine
"""Two workers, or an access line."""


@dataclass(frozen=True)
class _Attempts:
    at: float
    times: int


class Retries:
    """When failed measurements may be repeated: for a pair soon, and with a doubled pause each time.

    An access line always waits for the longest pause, because most of them show no sharing at all.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._attempts: dict[Subject, _Attempts] = {}

    def begin(self, subject: Subject, now: float, was_known: bool = False) -> None:
        """Note that a measurement begins; if the subject `was_known`, its next failure counts as a first."""
        before = self._attempts.get(subject)
        times = 0 if before is None or was_known else before.times
        self._attempts[subject] = _Attempts(now, times + 1)

    def forget(self, worker: str) -> None:
        """Allow all measurements of a worker at once, because it was restarted or moved."""
        self._attempts = {
            subject: attempts for subject, attempts in self._attempts.items() if worker not in subject
        }

    def is_due(self, subject: Subject, now: float) -> bool:
        """Whether the subject may be measured now."""
        attempts = self._attempts.get(subject)
        return attempts is None or now - attempts.at >= self._pause(subject, attempts.times)

    def _pause(self, subject: Subject, times: int) -> float:
        longest = self._timeouts.survey_retry_seconds
        if not isinstance(subject, frozenset):
            return longest
        return min(self._timeouts.survey_soon_seconds * 2.0 ** (min(times, 32) - 1), longest)


def fleet_topology(
    state: State,
    measurements: Measurements,
    survey: Survey | None,
    surveys: int,
    now: float,
    jobs: Collection[str] | None = None,
) -> FleetTopology:
    """The topology of all connected workers, idle or not, and where its numbers come from.

    With `jobs`, by name or id, of their workers only.
    """
    present = {name: worker for name, worker in state.workers.items() if worker.connected}
    if jobs is not None:
        ids = {one.job for one in state.jobs.values() if one.name in jobs or one.job in jobs}
        present = {name: worker for name, worker in present.items() if worker.job in ids}
        survey = None  # of which others' workers could be part
    under_way = "" if survey is None else survey.progress_text()
    if not 1 <= len(present) <= MOST_WORKERS:
        return FleetTopology(None, [], [], surveys, under_way)
    measured = topology_of(present.values(), measurements)
    links = [
        MeasuredLink(
            measurement.sender,
            measurement.receiver,
            max(0.0, now - measurement.at),
            measurement.source,
            measurement.path,
            measurement.is_settled,
            measurement.problem,
            measurement.state,
        )
        for pair, measurement in sorted(measurements.pairs.items())
        if {*pair} <= present.keys()
    ]
    return FleetTopology(measured.topology, list(measured.assumed), links, surveys, under_way)


_log = logging.getLogger("farflung.broker")


class SurveyService:
    """Runs surveys and updates the measurements of a dispatcher; call `update` every heartbeat.

    Without `is_automatic` it surveys only on request. `ended` counts finished surveys.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        store: MeasurementStore,
        timeouts: Timeouts,
        clock: Callable[[], float],
        is_automatic: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._timeouts = timeouts
        self._clock = clock
        self._is_automatic = is_automatic
        self._traffic = PassiveMeasurement(3 * timeouts.suspect_seconds)
        self._retries = Retries(timeouts)
        self._workers: Mapping[str, Worker] = {}
        self._changed_at = clock()
        self._next_number = 1
        self._is_requested = False
        self.survey: Survey | None = None
        self.ended = 0
        stored = store.read()
        dispatcher.measurements = dispatcher.measurements.updated(stored)
        for subject, at in {
            frozenset(one.pair): one.at for one in stored if isinstance(one, PairMeasurement)
        }.items():
            self._retries.begin(subject, at)

    def update(self) -> None:
        """Take note of changed workers; continue the current survey, or begin one if it is time."""
        self._update_workers()
        self._update_survey()
        if self.survey is None and self._is_automatic and self._is_calm:
            due = survey_plan(self._idle(), self._pair_is_due, self._line_is_due)
            if due:
                self._begin(due)
        self._store.write()

    def request(self) -> None:
        """Measure all idle workers again; ProtocolError if there is nothing to measure.

        A survey that is already running counts as the requested one.
        """
        if self.survey is not None:
            self._is_requested = True
            return
        everything = survey_plan(self._idle(), lambda meeting: True, lambda line: True)
        if not everything:
            raise ProtocolError(
                "a survey needs two idle workers that may be probed: wait for the job to end, or join more"
            )
        self._begin(everything)
        self._is_requested = True

    @property
    def joining(self) -> set[str]:
        """The workers of the survey under way of which no link is known yet."""
        if self.survey is None:
            return set()
        known = {name for pair in self._dispatcher.measurements.pairs for name in pair}
        return self.survey.members.keys() - self.survey.gone.keys() - known

    def on_answer(self, worker: str, probed: Probed) -> None:
        """Handle a worker's answer to a probe."""
        if self.survey is not None:
            self._carry_out(on_answer(self.survey, self._clock(), worker, probed))

    def on_help_request(self, worker: str, message: PathQuestion, circuits: Circuits) -> None:
        """Help a worker that cannot reach its peer of a probe, or pass its failure on."""
        command = help_reach(self._dispatcher.state, self.survey, worker, message)
        commands = circuits.open(command) if isinstance(command, OpenCircuit) else [command]
        for one in commands:
            if isinstance(one, Send):
                self.send(one.worker, one.message)

    def topology(self, jobs: Collection[str] | None = None) -> FleetTopology:
        """The topology of the fleet, or of these jobs' workers; takes a moment, and may run on a thread."""
        dispatcher = self._dispatcher
        return fleet_topology(
            dispatcher.state, dispatcher.measurements, self.survey, self.ended, self._clock(), jobs
        )

    def on_link_report(self, holder: str, links: Links) -> None:
        """Measure links from the traffic that a member of a job reports."""
        dispatcher = self._dispatcher
        if links.job in dispatcher.state.jobs:
            workers, known = dispatcher.state.workers.keys(), dispatcher.measurements
            self.add_measurements(self._traffic.on_report(holder, links, workers, known, self._clock()))

    def add_measurements(self, found: Iterable[Measurement]) -> None:
        """Keep new measurements."""
        found = list(found)
        if not found:
            return
        known = self._dispatcher.measurements = self._dispatcher.measurements.updated(found)
        self._store.note(known.current(found))

    def send(self, worker: str, message: Message) -> None:
        """Send a message to a worker, if it is connected."""
        session = self._dispatcher.sessions.workers.get(worker)
        if session is not None:
            session.send_control(messages.encode(message))

    def _begin(self, due: SurveyPlan) -> None:
        now = self._clock()
        known = self._dispatcher.measurements
        for meeting in due.meetings:
            self._retries.begin(frozenset(meeting), now, is_known(meeting, known))
        for line in due.lines:
            self._retries.begin(line, now)
        members = {name: Member(name, worker.where) for name, worker in self._idle().items()}
        survey = Survey(
            members=members,
            known=known,
            pairs=tuple(PlannedProbe("pair", meeting) for meeting in due.meetings),
            lines=due.lines,
            byte_limit=due.byte_limit,
            patience_seconds=self._timeouts.probe_answer_seconds,
            next_number=self._next_number,
            began_at=now,
        )
        _log.info(
            "survey: probing %s of %s, then %s; a worker sends %d MB at most"
            " (broker --no-survey and join --no-probe prevent it)",
            count_of(len(due.meetings), "pair"), count_of(len(members), "worker"),
            count_of(len(due.lines), "line"), WORKER_BYTES // 2**20,
        )  # fmt: skip
        self._is_requested = False
        self._carry_out(begin(survey))

    def _carry_out(self, turn: SurveyTransition) -> None:
        """Carry out the result of an event."""
        survey = self.survey = turn.survey
        self._next_number = survey.next_number
        self.add_measurements(turn.measurements)
        for found in turn.measurements:
            if isinstance(found, PairMeasurement) and found.problem:
                _log.info("survey: no link from %s to %s: %s", found.sender, found.receiver, found.problem)
        for worker, message in turn.messages:
            self.send(worker, message)
        if survey.is_over:
            seconds, sent = self._clock() - survey.began_at, survey.bytes_sent / 1e6
            _log.info("survey: finished after %.0f s; %.0f MB were sent in total", seconds, sent)
            self.survey = None
            self.ended += 1

    def _update_workers(self) -> None:
        """Find workers that were restarted or that moved, and forget what was known about them."""
        before, now = self._workers, self._dispatcher.state.workers
        if before is now:
            return
        for name, worker in now.items():
            known = before.get(name)
            if known is not None and (_hosts(known), known.idle, known.boot) == (
                _hosts(worker), worker.idle, worker.boot,
            ):  # fmt: skip
                continue
            self._changed_at = self._clock()
            if known is None or known.boot != worker.boot:
                self._retries.forget(name)
            if known is not None and _hosts(known) != _hosts(worker):
                self._retries.forget(name)
                self._dispatcher.measurements = self._dispatcher.measurements.without(name)
                self._store.forget(name)
        self._workers = now

    def _update_survey(self) -> None:
        if self.survey is None:
            return
        is_unwanted = self._has_job_at_work and not self._is_requested
        for name in list(self.survey.members):
            worker = self._dispatcher.state.workers[name]
            if not worker.idle or is_unwanted:
                self._leave(name, "a job comes first" if worker.connected else "it is gone", is_fault=False)
            elif self._is_silent(name):
                limit = self._timeouts.suspect_seconds
                self._leave(name, f"it was silent for {limit:g} s", is_fault=True)
        if self.survey is not None:
            self._carry_out(on_tick(self.survey, self._clock()))

    def _leave(self, name: str, reason: str, is_fault: bool) -> None:
        if self.survey is None or name in self.survey.gone:
            return
        if not is_fault:
            self._retries.forget(name)
        self._carry_out(leave(self.survey, self._clock(), name, reason, is_fault))

    def _is_silent(self, name: str) -> bool:
        session = self._dispatcher.sessions.workers.get(name)
        return session is None or time.monotonic() - session.last_received_at > self._timeouts.suspect_seconds

    def _idle(self) -> dict[str, Worker]:
        """Idle workers that may be probed."""
        state = self._dispatcher.state
        workers = {name: state.workers[name] for name in state.backup_pool()}
        return {name: worker for name, worker in workers.items() if worker.line.probes}

    @property
    def _is_calm(self) -> bool:
        calm = self._clock() - self._changed_at >= self._timeouts.survey_calm_seconds
        return calm and not self._has_job_at_work

    @property
    def _has_job_at_work(self) -> bool:
        jobs = self._dispatcher.state.jobs.values()
        return any(not job.over and job.state != QUEUED for job in jobs)

    def _pair_is_due(self, meeting: Meeting) -> bool:
        return not is_known(meeting, self._dispatcher.measurements) and self._is_due(frozenset(meeting))

    def _line_is_due(self, line: AccessLine) -> bool:
        return line not in self._dispatcher.measurements.lines and self._is_due(line)

    def _is_due(self, subject: Subject) -> bool:
        return self._retries.is_due(subject, self._clock())


def _hosts(worker: Worker) -> set[str]:
    return {parse_address(address)[0] for address in worker.where.all}
