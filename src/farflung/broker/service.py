"""The broker process: one port for workers, submitters, viewers and joiners."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from farflung.broker.acting import Acting
from farflung.broker.arrivals import Arrival, Closed, Generation
from farflung.broker.connections import Connections
from farflung.broker.core.events import Restarted, Tick, WorkerVerified
from farflung.broker.core.trusting.records import MOST_SUSPICIONS
from farflung.broker.dispatcher import Dispatcher
from farflung.broker.journal import Journal
from farflung.broker.network.relays import Circuits
from farflung.broker.network.verification import AddressVerifier
from farflung.broker.operators import OperatorMessage, Operators
from farflung.broker.planning.what_if import WhatIfs
from farflung.broker.security.authority import Authority
from farflung.broker.security.authority_key import IN_FOLDER, KeySource
from farflung.broker.sessions import HolderSession
from farflung.broker.storage import disk_alarm
from farflung.broker.storage.contract import BrokerStore
from farflung.broker.storage.opening import open_as_owner
from farflung.broker.storage.store import Store
from farflung.broker.survey.measurements import MeasurementStore
from farflung.broker.survey.paths import PathQuestion
from farflung.broker.survey.service import SurveyService
from farflung.broker.view import FleetView
from farflung.broker.viewers import ViewerMessage, Viewers
from farflung.errors import FarflungError, ProtocolError
from farflung.protocol import messages
from farflung.protocol.messages import Attach, Denied, Links, Register, Renew, Renewed
from farflung.protocol.probing import SURVEY, Probed
from farflung.protocol.timeline import StepShown
from farflung.transport.endpoint import Listener, listen
from farflung.transport.link.link import Link
from farflung.transport.net.address_file import write_address
from farflung.transport.net.addresses import parse_address
from farflung.transport.net.sockets import require_free
from farflung.transport.relay.relay import Relay
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import LIFETIME_SECONDS
from farflung.transport.security.names import BROKER_ID
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Hello
from farflung.transport.wire.headers import DataHeader

_log = logging.getLogger("farflung.broker")

Pages = Callable[[FleetView], Coroutine[Any, Any, None]]
"""Shows the fleet to viewers with a browser, until it is cancelled."""

_UNIONS: dict[str, Any] = {
    "worker": messages.FromWorker,
    "submitter": messages.FromSubmitter,
    "viewer": messages.FromViewer,
    "operator": messages.FromOperator,
}


async def serve(
    folder: Path,
    address: str,
    lease_seconds: float,
    relay_mbps: float = 0.0,
    surveys: bool = True,
    store_address: str | None = None,
    standby: bool = False,
    most_suspicions: int = MOST_SUSPICIONS,
    certificate_seconds: float = LIFETIME_SECONDS,
    pages: Pages | None = None,
    key: KeySource = IN_FOLDER,
) -> None:
    """Run a broker on `folder` until cancelled; the first start creates the folder and its authority.

    `relay_mbps` is the rate at which the broker relays links between peers that cannot reach each other.
    Without `surveys`, links are measured only on request. `store_address` names a database for the store
    (postgresql://...). With `standby`, the broker waits while another one owns the store. A worker
    gets no jobs after `most_suspicions`. Certificates end after `certificate_seconds`. `pages`
    shows its status to viewers with a browser. `key` says where the authority's key is, and what opens it.

    Raises
    ------
    FarflungError
        Another broker owns the store, it is damaged, the port is in use, or a decision cannot be stored.
    """
    if not await asyncio.to_thread(folder.exists):  # do not create it if the port is in use
        await require_free(*parse_address(address))
    timeouts = Timeouts(lease_seconds)
    with await open_as_owner(folder, timeouts, store_address, standby) as store:
        service = BrokerService(
            folder,
            store,
            timeouts,
            relay_mbps,
            certificate_seconds=certificate_seconds,
            surveys=surveys,
            most_suspicions=most_suspicions,
            key=key,
        )
        await service.start(address)
        try:
            await service.run(pages)
        finally:
            await service.stop()


class BrokerService:
    """A broker on an open store: call `start`, then `run` until it is cancelled, then `stop`."""

    def __init__(
        self,
        folder: Path,
        store: BrokerStore,
        timeouts: Timeouts,
        relay_mbps: float = 0.0,
        certificate_seconds: float = LIFETIME_SECONDS,
        surveys: bool = False,
        most_suspicions: int = MOST_SUSPICIONS,
        key: KeySource = IN_FOLDER,
    ) -> None:
        self._authority = Authority.open(
            folder, store, lifetime_seconds=certificate_seconds, refusal=self._refusal, source=key
        )
        self._timeouts = timeouts
        self._started = time.monotonic()
        self._started_at = time.time()
        self._store = store
        self._journal = Journal(store)
        self._relay = Relay(relay_mbps * 1e6 / 8, timeouts) if relay_mbps else None
        self._circuits = Circuits(self._relay)
        self._generation = Generation(store.epoch, self._authority.seal(store.epoch))
        self._replaced: asyncio.Future[None] = asyncio.get_event_loop().create_future()
        self._dispatcher = Dispatcher(
            self._journal, store, timeouts, self._clock, self._circuits, self._generation, self._expel
        )
        topology = self._dispatcher.topology_of
        self._what_ifs = WhatIfs(lambda: self._dispatcher.state, topology, store)
        self._operators = Operators(self._dispatcher, store, self._clock)
        self._connections = Connections(self._refusal, self._on_session_end)
        self._acting = Acting(
            self._dispatcher, self._operators, store, self._clock, lambda: self._connections.members
        )
        measurement_store = MeasurementStore(store, self._dispatcher.spawn)
        self._surveys = SurveyService(self._dispatcher, measurement_store, timeouts, self._clock, surveys)
        self._viewers = Viewers(
            self._dispatcher,
            self._surveys,
            self._connections.allowances,
            self._authority.scopes,
            timeouts,
            self._clock,
            relay_mbps,
        )
        self._dispatcher.put(Arrival(None, Restarted(self._clock(), most_suspicions)))
        self._verifier = AddressVerifier(lambda: self._identity.client_context(), timeouts, self._on_verified)
        self._listener: Listener | None = None
        self._is_disk_asked = False

    @property
    def address(self) -> str:
        """HOST:PORT on which the broker listens."""
        assert self._listener is not None
        return self._listener.address

    @property
    def view(self) -> FleetView:
        """What a page of the fleet is made of."""
        log = self._dispatcher.job_log.of
        return FleetView(
            self._viewers.status, self._viewers.timelines.of, self._what_ifs.answer, log, self._acting.act
        )

    async def start(self, address: str) -> None:
        """Listen on `address` (HOST:PORT); ConnectionFailed if that is impossible."""
        self._identity = await asyncio.to_thread(self._authority.identity)
        self._listener = await listen(
            address,
            self._identity.server_context(admit_joiners=True),
            Hello(BROKER_ID, "broker", "control", secrets.token_hex(8), self._timeouts.lease_seconds),
            self._admit,
            self._timeouts,
            on_joiner=self._on_joiner,
        )
        if self._relay is not None:
            self._listener.set_relay(self._relay)
        await asyncio.to_thread(write_address, self._authority.folder, self.address)
        _log.info("the broker listens on %s", self.address)

    async def run(self, pages: Pages | None = None) -> None:
        """Work until cancelled; `pages` shows the status meanwhile.

        Raises
        ------
        StoreError
            A decision cannot be stored, or another broker took over.
        FarflungError
            A worker has seen a broker of a later generation, so that one decides now.
        """
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._dispatcher.run(),
                self._tick(),
                self._renew_own(),
                self._renew_store(),
                self._until_replaced(),
                *([] if pages is None else [self._show(pages)]),
            )
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Close all connections with a reason, and free the port."""
        self._store.stop_waiting()
        await self._verifier.close()
        await self._dispatcher.stop()
        if self._listener is not None:
            await self._listener.close("the broker is shutting down")
        await asyncio.to_thread(self._journal.close)

    # Callbacks of connections (transport.endpoint.Handler)

    def control(self, link: Link, message: bytes) -> None:
        """Handle one message; ProtocolError, which closes the connection, if its sender may not send it."""
        union = _UNIONS.get(link.peer.role)
        if union is None:
            raise ProtocolError(f"a {link.peer.role} may not send messages to a broker")
        decoded, session = messages.decode(message, union), self._connections.session_of(link)
        self._connections.allowances.take(link.peer, decoded, len(message), time.monotonic())
        if isinstance(decoded, Attach):
            self._connections.attach(link, decoded)
        elif isinstance(decoded, ViewerMessage):
            self._viewers.handle(session, decoded)
        elif isinstance(decoded, Links):
            self._viewers.reports.add(self._dispatcher.state.jobs, link.peer.id, decoded)
            self._surveys.on_link_report(link.peer.id, decoded)
        elif isinstance(decoded, StepShown):
            self._viewers.timelines.add(link.peer.id, decoded)
        elif isinstance(decoded, Probed) or (isinstance(decoded, PathQuestion) and decoded.job == SURVEY):
            self._survey(session, decoded)
        elif isinstance(decoded, Renew):
            self._dispatcher.spawn(self._renew(session, decoded))
        elif isinstance(decoded, OperatorMessage):
            self._dispatcher.spawn(self._operators.handle(session, decoded, self._connections.members))
        else:
            if isinstance(decoded, Register):
                self._require_newest(link.peer.id, decoded)
            self._dispatcher.put(Arrival(session, decoded))

    def _require_newest(self, worker: str, register: Register) -> None:
        """End this broker if the worker shows that it was replaced.

        Raises
        ------
        ProtocolError
            The worker names a later generation, but cannot show it.
        """
        own, seen = self._generation.number, register.generation
        if seen <= own or self._replaced.done():
            return
        if not hmac.compare_digest(self._authority.seal(seen), register.seal):
            raise ProtocolError(f"worker {worker} names generation {seen} of the broker, but cannot show it")
        self._replaced.set_exception(
            FarflungError(
                f"another broker has taken over this fleet: worker {worker} has heard generation {seen}, "
                f"this one is {own}; leave the fleet to that one, or stop it and restore a backup of it here"
            )
        )

    async def _show(self, pages: Pages) -> None:
        """Show the status to viewers. If that cannot be or breaks, the broker goes on without it."""
        try:
            await pages(self.view)
        except FarflungError as error:
            _log.warning("there is no page of the fleet: %s", error)
        except Exception:
            _log.exception("the page of the fleet has ended: restart the broker to have it again")

    async def _until_replaced(self) -> None:
        await self._replaced

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        """Refuse data."""
        raise ProtocolError("a broker takes no data: values go from worker to worker")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """Never called, because `opening` refuses all data."""

    def closed(self, link: Link, reason: str) -> None:
        """Note that a connection closed; its session may continue on another one."""
        self._connections.on_closed(link, reason)

    def _admit(self, link: Link) -> BrokerService:
        self._connections.admit(link)
        return self

    def _refusal(self, member: str) -> str:
        """Why a member may not connect; empty if it may."""
        removal = self._dispatcher.state.removed.get(member)
        return "" if removal is None else removal.refusal

    def _expel(self, member: str, reason: str) -> None:
        """Close every session of a member that was removed."""
        for session in self._connections.sessions_of(member):
            session.send_control(messages.encode(Denied(reason)))  # so that it does not come back
            self._dispatcher.close(session, reason)

    async def _on_joiner(self, request: bytes, remote: str) -> bytes:
        """The authority's answer to a peer without a certificate, in the time in which it waits for one."""
        answering = asyncio.create_task(self._authority.on_joiner(request, remote))
        try:
            limit = 0.8 * self._timeouts.join_seconds
            return await asyncio.wait_for(asyncio.shield(answering), limit)
        except TimeoutError:
            reason = "the broker's store does not answer now: try again in a minute"
            return join_messages.encode(join_messages.Refuse(reason))

    def _on_session_end(self, session: HolderSession, reason: str) -> None:
        self._viewers.on_session_end(session)
        self._dispatcher.put(Arrival(session, Closed(reason)))

    def _survey(self, session: HolderSession, message: Probed | PathQuestion) -> None:
        if not self._dispatcher.sessions.is_worker(session):
            return  # an older session of a worker that has registered again
        if isinstance(message, Probed):
            self._surveys.on_answer(session.peer.id, message)
        else:
            self._surveys.on_help_request(session.peer.id, message, self._circuits)

    async def _renew(self, session: HolderSession, asked: Renew) -> None:
        peer = session.peer
        try:
            certificate = await asyncio.to_thread(self._authority.renew, peer.id, peer.role, asked.request)
        except FarflungError as error:
            _log.warning("the certificate of %s is not renewed: %s", peer, error)
            await session.close(f"your certificate is not renewed: {error}")
            return
        session.send_control(messages.encode(Renewed(certificate, self._authority.new_roots)))
        _log.info("the certificate of %s was renewed", peer)

    def _on_verified(self, worker: str, claims: tuple[str, ...], addresses: tuple[str, ...]) -> None:
        self._dispatcher.put(Arrival(None, WorkerVerified(self._clock(), worker, claims, addresses)))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.heartbeat_seconds)
            limits = self._timeouts
            tick = Tick(
                self._clock(),
                limits.patience_seconds,
                limits.return_seconds,
                limits.hold_seconds,
                limits.replace_seconds,
            )
            self._dispatcher.put(Arrival(None, tick))
            self._connections.drop_overdue()
            if not self._is_disk_asked:  # one that does not answer must not stop the ticks
                self._is_disk_asked = True
                self._dispatcher.spawn(self._watch_disk())
            self._verifier.update(self._dispatcher.state.workers)
            self._surveys.update()

    async def _watch_disk(self) -> None:
        """Take no new jobs while the disk of the store is nearly full."""
        if not isinstance(self._store, Store):
            return  # a database has an owner of its own
        alarm = await asyncio.to_thread(disk_alarm.alarm, self._authority.folder)
        self._is_disk_asked = False
        before, self._dispatcher.alarm = self._dispatcher.alarm, alarm
        if bool(alarm) != bool(before):
            _log.warning("%s", alarm or "the broker's disk has room again: it takes new jobs")

    async def _renew_own(self) -> None:
        while True:
            left = max(0.0, self._identity.renewal_due_at - time.time())
            await asyncio.sleep(min(left, self._timeouts.certificate_check_seconds))
            identity = await asyncio.to_thread(self._authority.identity)
            if identity.certificate != self._identity.certificate:
                self._identity = identity
                if (
                    self._listener is not None
                ):  # one of its own, which trusts no authority that does not count
                    self._listener.set_context(identity.server_context(admit_joiners=True))

    async def _renew_store(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.store_renewal_seconds)
            await asyncio.to_thread(self._store.renew)

    def _clock(self) -> float:
        # Unix time that never runs backwards, so that setting the system clock cannot end a wait.
        return self._started_at + time.monotonic() - self._started
