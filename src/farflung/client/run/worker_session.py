"""The submitter's sessions with the workers of its plan, and the routes by which it reaches them.

A session outlives its links: a lost link is dialled again. The submitter opens a listening port only once a
worker cannot be dialled.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence

from farflung.client.run.base_transfer import BaseRequests
from farflung.client.run.broker_client import Lost
from farflung.client.run.feeder import Feeder
from farflung.client.run.state_collector import StateCollectors
from farflung.connectivity.connector import Connector, ConnectRequest
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol.fields import TEXT_LENGTH, Message
from farflung.protocol.messages import Claim, FromPeer, Planned, Pull, Welcome, decode, encode
from farflung.protocol.reachability import Answers, LinkReport, Links
from farflung.protocol.sessions import BaseLacking, BaseList
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer, listen
from farflung.transport.link.session import Session
from farflung.transport.link.stats import LinkStatus
from farflung.transport.net.redial import redial
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader, SliceHeader, ValueHeader

ANYWHERE = "[::]:0"


class WorkerRoutes:
    """Finds routes to workers, with the broker's help.

    `tell` sends a message to the broker, which `broker` says the address of; pass its answers to
    `on_message`. `contexts` are the TLS contexts in use, into which a renewed certificate must be loaded.
    """

    def __init__(
        self,
        identity: Identity,
        timeouts: Timeouts,
        tell: Callable[[Message], None],
        broker: Callable[[], str],
    ) -> None:
        self._identity = identity
        self._own = Hello(identity.id, identity.role, "data")
        self._timeouts = timeouts
        self._tell = tell
        self._listener: Listener | None = None
        self._opening = asyncio.Lock()
        self._job = ""
        self._known: dict[str, tuple[str, Link | None]] = {}
        self._reporting: asyncio.TimerHandle | None = None
        context = identity.client_context()
        self.contexts = [context]
        self._connector = Connector(self._own, context, broker, self._port, tell, lambda: timeouts)

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of the links."""
        return self._timeouts

    async def connect(
        self, planned: Planned, worker: str, addresses: Sequence[str], handler: Handler
    ) -> Link:
        """Reach a worker of the plan over any route; see `Connector.connect`."""
        errand = ConnectRequest(planned.job, planned.attempt, Peer(worker, "worker"), addresses)
        try:
            reached = await self._connector.connect(errand, handler)
        except ConnectionFailed as error:
            self._note(planned.job, worker, str(error), None)
            raise
        self._note(planned.job, worker, reached.tried, reached.link)
        return reached.link

    def on_message(self, answer: Answers) -> None:
        """Handle the broker's answer to a request for help."""
        self._connector.on_answer(answer)

    async def close(self, reason: str) -> None:
        """Stop reporting, and close the listening port, if any, with the links that came in over it."""
        if self._reporting is not None:
            self._reporting.cancel()
        if self._listener is not None:
            await self._listener.close(reason)

    async def _port(self) -> int:
        async with self._opening:
            if self._listener is None:
                context = self._identity.server_context(admit_joiners=False)
                self.contexts.append(context)
                self._listener = await listen(ANYWHERE, context, self._own, self._accept, self._timeouts)
        return self._listener.port

    def _accept(self, link: Link) -> Handler:
        if link.kind != "reverse":
            raise ProtocolError("a submitter's port takes only links that it asked for")
        return self._connector.admit(link)

    def _note(self, job: str, worker: str, tried: str, link: Link | None) -> None:
        self._job, self._known[worker] = job, (tried[:TEXT_LENGTH], link)
        self._report()

    def _report(self) -> None:
        """Report the status of every link to the broker, now and every few heartbeats."""
        if self._reporting is not None:
            self._reporting.cancel()
        loop = asyncio.get_running_loop()
        self._reporting = loop.call_later(self._timeouts.suspect_seconds, self._report)
        port = 0 if self._listener is None else self._listener.port
        reports = [
            LinkReport(worker, tried, port, _standing(link)) for worker, (tried, link) in self._known.items()
        ]
        self._tell(Links(self._job, reports))


def _standing(link: Link | None) -> LinkStatus | None:
    """The status of a link; of a link that was closed because the job is over, its last status."""
    if link is None or (link.reason is not None and link.cause != "closed"):
        return None
    return link.status


log = logging.getLogger("farflung.client")


class WorkerSession:
    """Sends inputs and state to one worker; receives its answers to the feeder and the trained state.

    A lost link is dialled again for up to `Timeouts.resume_seconds`; only what the worker has not received is
    sent again. `hear` is called when the worker is lost for good, `pulled` with a unit whose inputs it asks
    for again.
    """

    def __init__(
        self,
        worker: str,
        attempt: Welcome,
        feeder: Feeder,
        collectors: StateCollectors,
        hear: Callable[[Lost], None],
        pulled: Callable[[str, int], None] = lambda worker, unit: None,
    ) -> None:
        self._pulled = pulled
        self._worker = worker
        self._attempt = attempt
        self._feeder = feeder
        self._collectors = collectors
        self._hear = hear
        self._session = Session(secrets.token_hex(16))
        self._addresses: Sequence[str] = ()
        self._link: Link | None = None
        self._claimed: tuple[Link, int] | None = None
        self._settled = asyncio.Event()
        self._sent_by_closed = 0
        self._redialling: asyncio.Task[None] | None = None
        self._requests: BaseRequests | None = None

    @property
    def bytes_sent(self) -> int:
        """Bytes sent over all links of the session, including framing."""
        return self._sent_by_closed + (0 if self._link is None else self._link.bytes_sent)

    def post(self, header: DataHeader, buffer: memoryview) -> None:
        """Queue a data message; the buffer must not change until the worker has received it."""
        self._session.post(header, buffer)

    async def send(self, header: DataHeader, buffer: memoryview) -> None:
        """Queue a data message and wait until it is sent; ConnectionFailed if the worker is lost before."""
        await self._session.send(header, buffer)

    def list_base(self, base: BaseList, sizes: Mapping[str, int]) -> BaseRequests:
        """Tell the worker of the base weights, whose `sizes` are in bytes; what it asks for will come."""
        self._requests = BaseRequests(self._worker, base, sizes)
        self._session.send_control(encode(base))
        return self._requests

    def moved(self, addresses: Sequence[str]) -> None:
        """Use new addresses for the worker from now on."""
        self._addresses = addresses

    async def connect(self, paths: WorkerRoutes, planned: Planned) -> None:
        """Dial the first link and wait until the worker welcomes it.

        Raises
        ------
        ConnectionFailed
            No route leads to the worker, or it did not welcome the link in time.
        """
        self._paths, self._planned, self._timeouts = paths, planned, paths.timeouts
        self._addresses = planned.addresses.get(self._worker, [])
        timeouts = paths.timeouts
        try:
            async with asyncio.timeout(timeouts.link_seconds):
                while self._link is None:
                    link = await self._dialled()
                    await self._settled.wait()
                    if self._link is None and link.cause == "closed":
                        raise ConnectionFailed(
                            f"worker {self._worker} did not welcome its link: {link.reason}"
                        )
        except TimeoutError:
            raise ConnectionFailed(
                f"worker {self._worker} did not welcome its data link within {timeouts.link_seconds:.0f} s"
            ) from None

    async def close(self, reason: str) -> None:
        """Close the link and do not dial another."""
        if self._redialling is not None:
            self._redialling.cancel()
            await asyncio.gather(self._redialling, return_exceptions=True)
        self._end_session()
        links = [link for link in (self._link, self._claimed and self._claimed[0]) if link is not None]
        await asyncio.gather(*(link.close(reason) for link in links))

    # transport.handler.Handler

    def control(self, link: Link, message: bytes) -> None:
        welcome = decode(message, FromPeer)
        if isinstance(welcome, Pull):
            if (welcome.job, welcome.attempt) == (self._attempt.job, self._attempt.attempt):
                self._pulled(self._worker, welcome.unit)
            return
        if isinstance(welcome, BaseLacking):
            if self._requests is None:
                raise ProtocolError(f"worker {self._worker} asks for base weights, of which it was told none")
            self._requests.answered(welcome)
            return
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"worker {self._worker} claims a link that this process dialled")
        if (welcome.job, welcome.attempt) != (self._attempt.job, self._attempt.attempt):
            raise ProtocolError(f"worker {self._worker} welcomed {welcome.job}, attempt {welcome.attempt}")
        if self._claimed is None or self._claimed[0] is not link:
            raise ProtocolError(f"worker {self._worker} sent a welcome that was not expected")
        number = self._claimed[1]
        self._session.exchange_receipts(number, self._session.number, welcome.received)
        self._claimed, self._link = None, link
        self._session.carry(link, number)
        self._settled.set()

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        if link is not self._link:
            raise ProtocolError(f"worker {self._worker} sent data before it welcomed the link")
        if isinstance(header, SliceHeader):
            return self._collectors.opening(self._worker, header)
        if not isinstance(header, ValueHeader):
            raise ProtocolError(f"worker {self._worker} sent a probe's bytes on a link for data")
        self._feeder.finished(self._worker, header)
        return memoryview(bytearray())

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        if isinstance(header, SliceHeader):
            self._collectors.complete(header)

    def closed(self, link: Link, reason: str) -> None:
        if self._claimed is not None and self._claimed[0] is link:
            self._claimed = None
            self._settled.set()
        if link is not self._link:
            return
        self._part(link)
        if link.cause == "closed":
            self._lose(reason)
        else:
            log.warning("lost the link to worker %s (%s)", self._worker, reason)
            if self._redialling is None or self._redialling.done():  # else it has not seen the welcome yet
                self._redialling = asyncio.create_task(self._redial(reason))

    def _part(self, link: Link) -> None:
        self._link = None
        self._sent_by_closed += link.bytes_sent
        self._session.on_link_lost()
        for header in link.unfinished:
            if isinstance(header, SliceHeader):
                self._collectors.retract(header)

    def _end_session(self) -> None:
        self._session.close()
        if self._requests is not None:
            self._requests.lost()

    def _lose(self, reason: str) -> None:
        self._end_session()
        self._hear(Lost(self._worker, reason))

    async def _redial(self, reason: str) -> None:
        async def attempt() -> None:
            await self._dialled()
            await self._settled.wait()

        limit = self._timeouts.resume_seconds
        failure = await redial(attempt, lambda: self._link is not None, self._timeouts, limit)
        if failure:
            self._lose(f"{reason}; no other link to it within {limit:g} s: {failure}")
        else:
            log.warning("linked to worker %s again", self._worker)

    async def _dialled(self) -> Link:
        """Connect, and claim the link for the session; `_settled` is set when it is welcomed or over."""
        link = await self._paths.connect(self._planned, self._worker, self._addresses, self)
        if self._link is not None:  # an earlier one was welcomed after all
            link.abandon("not needed any more")
            return link
        if self._claimed is not None:
            self._claimed[0].abandon("superseded by a newer connection")
        self._settled.clear()
        session, number = self._session, self._session.next_number()
        self._claimed = (link, number)
        claim = Claim(
            self._attempt.job, self._attempt.attempt, session.nonce, number, session.number, session.receipt
        )
        link.send_control(encode(claim))
        return link
