"""A worker's part in a survey: connect to the peers that the broker names, probe the links, and report.

Nothing is probed while the worker has a job. Only one probe runs at a time; a new one ends the old one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

from farflung.connectivity.answerer import Answerer
from farflung.connectivity.connector import Connector
from farflung.errors import ProtocolError
from farflung.protocol.fields import Message
from farflung.protocol.probing import SURVEY, EndProbe, Probe, Probed
from farflung.protocol.reachability import Circuit, DialBack, NotReached
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer
from farflung.transport.probing.probe import Prober
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader
from farflung.worker.linking.link_probe import LinkProbe

log = logging.getLogger("farflung.worker")

MOST_EARLY = 8
"""Limit on links kept from peers that learned of a probe earlier than this worker."""

ProbingMessage = Probe | EndProbe | DialBack | Circuit | NotReached


class Probing:
    """Runs the broker's probes; made by `Routes`.

    `own` identifies this worker and marks links as being for probes; `is_busy` says whether it has a job.
    """

    def __init__(
        self,
        own: Hello,
        context: ssl.SSLContext,
        broker: Callable[[], str],
        port: Callable[[], Awaitable[int]],
        listener: Callable[[], Listener],
        tell: Callable[[Message], None],
        is_busy: Callable[[], bool],
        timeouts: Callable[[], Timeouts],
    ) -> None:
        self._listener = listener
        self._is_busy = is_busy
        self._timeouts = timeouts
        self._connector = Connector(own, context, broker, port, tell, self._limits)
        self._answerer = Answerer(own, context, broker, self, self._limits)
        self._probers: dict[Link, Prober] = {}
        self._early: dict[Link, asyncio.TimerHandle] = {}
        self._link_probe: LinkProbe | None = None
        self._task: asyncio.Task[None] | None = None
        self.tell = tell

    def on_message(self, message: ProbingMessage) -> None:
        """Handle a message of the broker about a probe."""
        if isinstance(message, Probe):
            self._end()
            if self._is_busy():
                self.tell(Probed(message.number, problem="it has a job"))
            else:
                self._begin(message)
        elif isinstance(message, EndProbe):
            if self._link_probe is not None and self._link_probe.number == message.number:
                self._end()
        elif isinstance(message, DialBack) or (isinstance(message, Circuit) and not message.dials):
            self._answerer.on_request(message, self._listener())
        else:
            self._connector.on_answer(message)

    def stop(self, reason: str) -> None:
        """Cancel the current probe without reporting results."""
        self._end()
        for link in list(self._early):
            self.forget(link)
            link.abandon(reason)

    async def close(self) -> None:
        """Cancel the current probe and wait for its end."""
        task = self._task
        self.stop("this worker is shutting down")
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        await self._answerer.close()

    def expects_dial_back(self, peer: Peer) -> bool:
        """Whether this peer was asked to dial back for a probe."""
        return self._connector.has_asked(peer)

    def dialled_back(self, link: Link) -> Handler:
        """Take a link that a peer dialled back for a probe."""
        return self._connector.admit(link)

    # Callbacks of the answerer (connectivity.answerer.AnswererOwner)

    @property
    def handler(self) -> Handler:
        return self

    def expects(self, job: str, attempt: int, peer: str) -> Peer | None:
        link_probe = self._link_probe
        if job != SURVEY or link_probe is None or not link_probe.awaits(attempt, peer):
            return None
        return Peer(peer, "worker")

    def accept(self, link: Link) -> Handler:
        """Take a link that was dialled for a probe; raises ProtocolError to refuse it."""
        if link.peer.role != "worker":
            raise ProtocolError("only workers may probe a worker")
        if self._is_busy():
            raise ProtocolError("this worker has a job and cannot be probed now")
        if self._link_probe is None or not self._link_probe.take(link):
            self._keep_early(link)
        return self

    # transport.handler.Handler: each link has a prober of its own

    def control(self, link: Link, message: bytes) -> None:
        self.prober(link).control(link, message)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        return self.prober(link).opening(link, header)

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        self.prober(link).complete(link, header, buffer)

    def closed(self, link: Link, reason: str) -> None:
        self._forget_early(link)
        if (prober := self._probers.pop(link, None)) is not None:
            prober.closed(link, reason)

    # link_probe.Ends

    def forget(self, link: Link) -> None:
        self.closed(link, "probed")

    def prober(self, link: Link) -> Prober:
        """The `Prober` of this link, which measures it or answers the other side's measurement."""
        if link not in self._probers:
            self._probers[link] = Prober()
        return self._probers[link]

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._link_probe = self._task = None

    def _begin(self, probe: Probe) -> None:
        link_probe = LinkProbe(probe, self._connector, self, self._timeouts())
        self._link_probe = link_probe
        for link in list(self._early):
            if link_probe.take(link):
                self._forget_early(link)
        self._task = asyncio.create_task(self._run(link_probe))

    async def _run(self, link_probe: LinkProbe) -> None:
        try:
            probed = await link_probe.run()
        except asyncio.CancelledError:
            return
        except Exception as error:
            # A bug here must not keep the whole survey waiting.
            log.exception("probe %d failed", link_probe.number)
            probed = Probed(
                link_probe.number, problem=f"the probe failed on this worker ({type(error).__name__})"
            )
        if self._link_probe is link_probe:
            self._link_probe = None
            self.tell(probed)

    def _keep_early(self, link: Link) -> None:
        """Keep the newest few links for a while: the broker may have notified their peers earlier."""
        for older in list(self._early)[: max(0, len(self._early) + 1 - MOST_EARLY)]:
            self._refuse(older)
        loop = asyncio.get_running_loop()
        limit = self._limits().lease_seconds
        self._early[link] = loop.call_later(limit, self._refuse, link)

    def _refuse(self, link: Link) -> None:
        self.forget(link)
        link.abandon("the broker has not asked for this probe")

    def _forget_early(self, link: Link) -> None:
        if (timer := self._early.pop(link, None)) is not None:
            timer.cancel()

    def _limits(self) -> Timeouts:
        return Timeouts(self._timeouts().probe_dial_seconds)
