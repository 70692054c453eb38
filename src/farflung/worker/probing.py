"""A worker's part in a survey: it reaches the peers that the broker names, probes them, and says how it went.

Nothing is probed while the worker has a job. One probe is under way at a time; a new one ends the older.
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
from farflung.transport.headers import DataHeader
from farflung.transport.probe import Prober
from farflung.transport.timeouts import Timeouts
from farflung.worker.link_probe import LinkProbe

log = logging.getLogger("farflung.worker")

MOST_EARLY = 8
"""Links of peers who were told sooner than this worker."""

ProbingMessage = Probe | EndProbe | DialBack | Circuit | NotReached


class Probing:
    """Made by `Paths`, beside what reaches neighbours.

    `own` says who this is and that links are for probes; `is_busy` says whether the worker has a job.
    """

    def __init__(
        self,
        own: Hello,
        context: ssl.SSLContext,
        broker: str,
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
        self._exchange: LinkProbe | None = None
        self._task: asyncio.Task[None] | None = None
        self.tell = tell

    def hear(self, message: ProbingMessage) -> None:
        """The broker says something about a probe."""
        if isinstance(message, Probe):
            self._end()
            if self._is_busy():
                self.tell(Probed(message.number, problem="it has a job"))
            else:
                self._begin(message)
        elif isinstance(message, EndProbe):
            if self._exchange is not None and self._exchange.number == message.number:
                self._end()
        elif isinstance(message, DialBack) or (isinstance(message, Circuit) and not message.dials):
            self._answerer.hear(message, self._listener())
        else:
            self._connector.hear(message)

    def stop(self, reason: str) -> None:
        """End what is under way, without a word about what came of it."""
        self._end()
        for link in list(self._early):
            self.forget(link)
            link.abandon(reason)

    async def close(self) -> None:
        """Stop, and wait for the end."""
        task = self._task
        self.stop("this worker is shutting down")
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        await self._answerer.close()

    def seeks(self, peer: Peer) -> bool:
        """Whether a link that this peer dials back is for a probe."""
        return self._connector.seeks(peer)

    def dialled_back(self, link: Link) -> Handler:
        """Such a link is here."""
        return self._connector.admit(link)

    # paths.answerer.Sought

    @property
    def handler(self) -> Handler:
        return self

    def expects(self, job: str, attempt: int, peer: str) -> Peer | None:
        exchange = self._exchange
        if job != SURVEY or exchange is None or not exchange.awaits(attempt, peer):
            return None
        return Peer(peer, "worker")

    def entered(self, link: Link) -> Handler:
        """Somebody dialled in order to probe; ProtocolError refuses it."""
        if link.peer.role != "worker":
            raise ProtocolError("only workers are probed, and by workers")
        if self._is_busy():
            raise ProtocolError("this worker has a job: it is not probed")
        if self._exchange is None or not self._exchange.takes(link):
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

    # worker.exchange.Ends

    def forget(self, link: Link) -> None:
        self.closed(link, "probed")

    def prober(self, link: Link) -> Prober:
        """What probes over this link, or lets itself be probed."""
        if link not in self._probers:
            self._probers[link] = Prober()
        return self._probers[link]

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._exchange = self._task = None

    def _begin(self, probe: Probe) -> None:
        exchange = LinkProbe(probe, self._connector, self, self._timeouts())
        self._exchange = exchange
        for link in list(self._early):
            if exchange.takes(link):
                self._forget_early(link)
        self._task = asyncio.create_task(self._run(exchange))

    async def _run(self, exchange: LinkProbe) -> None:
        try:
            probed = await exchange.run()
        except asyncio.CancelledError:
            return
        except Exception as error:
            # A defect of ours must not keep the whole survey waiting.
            log.exception("probe %d failed", exchange.number)
            probed = Probed(exchange.number, problem=f"its part in the probe broke ({type(error).__name__})")
        if self._exchange is exchange:
            self._exchange = None
            self.tell(probed)

    def _keep_early(self, link: Link) -> None:
        """Its dialler may have heard from the broker sooner; the newest few are kept, for a moment."""
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
