"""What viewers ask for: the fleet's status, its topology, and what the workers of a job do in a step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

import msgspec

from farflung.broker.dispatcher import Dispatcher
from farflung.broker.network.allowances import Allowances
from farflung.broker.network.reports import Reports
from farflung.broker.sessions import HolderSession
from farflung.broker.status import Sighting, status_of
from farflung.broker.survey.service import SurveyService
from farflung.broker.timelines import NoTimeline, Timelines
from farflung.errors import FarflungError, ProtocolError
from farflung.protocol import messages
from farflung.protocol.messages import Ask, Denied, Status
from farflung.protocol.probing import AskTopology
from farflung.protocol.timeline import AskStep
from farflung.protocol.viewer import LinkView
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import MAXIMUM_CONTROL_BYTES

ViewerMessage = Ask | AskTopology | AskStep


class Viewers:
    """Answers viewers, each with what it may see: `scopes` has the jobs of those who may not see all.

    `reports` and `timelines` take what members say of their links and steps.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        surveys: SurveyService,
        allowances: Allowances,
        scopes: Mapping[str, frozenset[str]],
        timeouts: Timeouts,
        clock: Callable[[], float],
        relay_mbps: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._surveys = surveys
        self._allowances = allowances
        self._scopes = scopes
        self._timeouts = timeouts
        self._clock = clock
        self._relay_mbps = relay_mbps
        self._began = time.monotonic()
        self._version = version("farflung")
        self._last_seen: dict[str, tuple[str, float]] = {}
        self.reports = Reports()
        self.timelines = Timelines(lambda: dispatcher.state, dispatcher.sessions.workers)

    def handle(self, session: HolderSession, message: ViewerMessage) -> None:
        """Answer one message."""
        match message:
            case Ask():
                jobs = self._scopes.get(session.peer.id)
                status = self.status() if jobs is None else self.status().limited_to(jobs)
                session.send_control(messages.encode(status))
            case AskTopology():
                self._dispatcher.spawn(self._send_topology(session, message))
            case AskStep():
                self._dispatcher.spawn(self._send_timeline(session, message))

    def on_session_end(self, session: HolderSession) -> None:
        """Remember where and when a worker was seen last."""
        if self._dispatcher.sessions.is_worker(session):
            self._last_seen[session.peer.id] = (session.remote, session.last_received_at)

    def status(self) -> Status:
        """What `farflung status` shows."""
        now = time.monotonic()
        sightings = {id: Sighting(where, now - at) for id, (where, at) in self._last_seen.items()}
        for id, session in self._dispatcher.sessions.workers.items():
            silent, there = now - session.last_received_at, now - session.began_at
            sightings[id] = Sighting(session.remote, silent, there)
        return status_of(
            self._dispatcher.state,
            sightings,
            self._links(),
            self._version,
            now - self._began,
            self._timeouts.listed(),
            self._relay_mbps,
            self._clock(),
            self._surveys.joining,
        )

    def _links(self) -> Iterator[LinkView]:
        """All reports of links, with the rates that were measured."""
        pairs = self._dispatcher.measurements.pairs
        for view in self.reports.all():
            found = pairs.get((view.holder, view.report.peer))
            possible = found.bandwidth_mbps if found is not None and found.bandwidth_mbps else None
            yield msgspec.structs.replace(view, possible_mbps=possible)

    async def _send_topology(self, session: HolderSession, asked: AskTopology) -> None:
        answer: messages.Message
        try:
            if asked.survey:
                self._request_survey(session)
            jobs = self._scopes.get(session.peer.id)
            answer = await asyncio.to_thread(self._surveys.topology, jobs)
        except ProtocolError as error:
            answer = Denied(str(error))
        _send(session, answer, "the fleet's topology")

    def _request_survey(self, session: HolderSession) -> None:
        """Survey the fleet; ProtocolError if this holder may not ask for that, or not now."""
        if session.peer.role != "submitter":
            raise ProtocolError("only a submitter may request a survey, because it costs traffic")
        if not self._allowances.may_survey(session.peer, time.monotonic()):
            raise ProtocolError("you have requested several surveys just now: wait a minute")
        self._surveys.request()

    async def _send_timeline(self, session: HolderSession, asked: AskStep) -> None:
        answer: messages.Message
        try:
            if self._is_hidden(asked.job, session.peer.id):
                raise NoTimeline(f"there is no job {asked.job}: `farflung status` lists them")
            answer = await self.timelines.of(asked.job)
        except FarflungError as error:
            answer = Denied(str(error))
        _send(session, answer, "this step's timeline")

    def _is_hidden(self, job: str, viewer: str) -> bool:
        """Whether a viewer's token does not name a job."""
        seen, known = self._scopes.get(viewer), self._dispatcher.state.jobs.get(job)
        return seen is not None and known is not None and seen.isdisjoint((known.job, known.name))


def _send(session: HolderSession, answer: messages.Message, what: str) -> None:
    encoded = messages.encode(answer)
    if len(encoded) > MAXIMUM_CONTROL_BYTES:
        encoded = messages.encode(Denied(f"{what} is too large for one message"))
    session.send_control(encoded)
