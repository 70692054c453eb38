"""The routes between a worker and its peers, the circuits it relays, and its reports on links."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence

from farflung.connectivity.advertised import advertised, own_hosts
from farflung.connectivity.answerer import Answerer
from farflung.connectivity.connector import Connector, ConnectRequest
from farflung.errors import ConnectionFailed
from farflung.protocol.fields import TEXT_LENGTH, Message
from farflung.protocol.messages import Load
from farflung.protocol.probing import SURVEY, EndProbe, Probe
from farflung.protocol.reachability import (
    MAXIMUM_REPORTS,
    Circuit,
    DialBack,
    HoldCircuit,
    LinkReport,
    Links,
    NotReached,
)
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer
from farflung.transport.relay.relay import Relay
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.worker import events
from farflung.worker.linking.peers import Peers
from farflung.worker.linking.probing import Probing
from farflung.worker.records import State

PathMessage = DialBack | Circuit | NotReached | HoldCircuit | Probe | EndProbe


class Routes:
    """Connects a worker with its peers.

    The worker's service passes it the broker's messages about routes, and links that others dialled.

    Parameters
    ----------
    context
        The TLS context to dial with.
    advertise
        Addresses at which others reach this worker, as given by its owner; empty: detect them.
    relay_mbps
        Rate to relay for peers that cannot reach each other, in Mbit/s; 0 disables relaying.
    state
        Returns the worker's current state.
    tell
        Sends a message to the broker, if connected.
    """

    def __init__(
        self,
        identity: Identity,
        context: ssl.SSLContext,
        advertise: Sequence[str],
        relay_mbps: float,
        peers: Peers,
        state: Callable[[], State],
        tell: Callable[[Message], None],
        timeouts: Timeouts,
    ) -> None:
        own = Hello(identity.id, identity.role, "data")
        self._peers = peers
        self._state = state
        self._timeouts = timeouts
        self._advertise = advertise
        self._route = ""
        self._broker = ""
        self._listener: Listener | None = None
        self._relay = Relay(relay_mbps * 1e6 / 8, timeouts) if relay_mbps else None
        self._connector = Connector(own, context, self._broker_address, self._port, tell, self._limits)
        self._answerer = Answerer(own, context, self._broker_address, self, self._limits)
        self._probing = Probing(
            Hello(identity.id, identity.role, "probe"),
            context,
            self._broker_address,
            self._port,
            self._listening,
            tell,
            self._has_job,
            self._limits,
        )
        self._attempt: events.Attempt | None = None
        self._tried: dict[str, str] = {}
        self._reporting: asyncio.TimerHandle | None = None
        self.tell = tell

    def set_listener(self, listener: Listener) -> None:
        """Set the listener that peers dial; a worker that relays also accepts circuits on it."""
        self._listener = listener
        if self._relay is not None:
            listener.set_relay(self._relay)

    def on_registered(self, route: str, broker: str, timeouts: Timeouts) -> None:
        """Note the connection to the broker: its two ends, and the timeouts that hold from now on."""
        self._route, self._broker, self._timeouts = route, broker, timeouts
        if self._reporting is None:
            self.report()

    def addresses(self) -> list[str]:
        """The addresses at which peers can dial this worker."""
        return list(self._advertise) or advertised(self._listening().address, self._route, own_hosts())

    async def connect(self, peer: str, load: Load, addresses: Sequence[str]) -> Link:
        """Reach a neighbour over any route; see `Connector.connect`."""
        request = ConnectRequest(load.job, load.attempt, Peer(peer, "worker"), addresses)
        try:
            reached = await self._connector.connect(request, self._peers)
        except ConnectionFailed as error:
            self._note(peer, load, str(error))
            self.report()  # at once: without this link the job may soon end
            raise
        self._note(peer, load, reached.tried)
        return reached.link

    def on_message(self, message: PathMessage) -> None:
        """Handle a message of the broker about routes."""
        if isinstance(message, HoldCircuit):
            if self._relay is not None:
                self._relay.grant(message.label, message.tokens, message.byte_quota)
        elif isinstance(message, Probe | EndProbe) or message.job == SURVEY:
            self._probing.on_message(message)
        elif isinstance(message, DialBack) or (isinstance(message, Circuit) and not message.dials):
            self._answerer.on_request(message, self._listening())
        else:
            self._connector.on_answer(message)

    def report(self) -> None:
        """Report the status of every link to the broker, now and every few heartbeats."""
        if self._reporting is not None:
            self._reporting.cancel()
        loop = asyncio.get_running_loop()
        self._reporting = loop.call_later(self._timeouts.suspect_seconds, self.report)
        attempt = self._state().attempt
        if attempt is None:
            return
        tried = self._tried if attempt == self._attempt else {}
        port = 0 if self._listener is None else self._listener.port
        links = {link.peer.id: link.status for link in self._peers.links}
        reports = [
            LinkReport(peer, tried.get(peer, ""), port, links.get(peer))
            for peer in sorted(tried.keys() | links.keys())
        ]
        self.tell(Links(attempt[0], reports[:MAXIMUM_REPORTS]))

    def stop_probing(self, reason: str) -> None:
        """Cancel probes, because a job needs the links."""
        self._probing.stop(reason)

    async def close(self) -> None:
        """Stop reports and probes; the relay is closed by the listener."""
        if self._reporting is not None:
            self._reporting.cancel()
        await self._probing.close()
        await self._answerer.close()

    # Callbacks of the answerer (connectivity.answerer.AnswererOwner)

    @property
    def handler(self) -> Handler:
        return self._peers

    def expects(self, job: str, attempt: int, peer: str) -> Peer | None:
        state = self._state()
        load = state.load
        if load is None or (load.job, load.attempt) != (job, attempt) or peer not in state.admitted:
            return None
        return Peer(peer, "submitter" if peer == load.submitter else "worker")

    def accept(self, link: Link) -> Handler:
        """Take a link that a peer dialled; raises ProtocolError to refuse it."""
        self._peers.require_member(link.peer.id)
        if link.kind == "probe":
            return self._probing.accept(link)
        if link.kind != "reverse" or link.path != "direct":
            return self._peers.accept(link)
        is_for_probe = self._probing.expects_dial_back(link.peer)
        return self._probing.dialled_back(link) if is_for_probe else self._connector.admit(link)

    async def _port(self) -> int:
        return self._listening().port

    def _listening(self) -> Listener:
        assert self._listener is not None
        return self._listener

    def _has_job(self) -> bool:
        return self._state().phase not in ("idle", "standby")

    def _broker_address(self) -> str:
        return self._broker

    def _limits(self) -> Timeouts:
        return self._timeouts

    def _note(self, peer: str, load: Load, tried: str) -> None:
        if self._attempt != load.key:
            self._attempt, self._tried = load.key, {}
        self._tried[peer] = tried[:TEXT_LENGTH]
