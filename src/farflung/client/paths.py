"""The submitter's ways to its workers. It listens only once one of them cannot be dialled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.paths.connector import Connector
from farflung.paths.errand import Errand
from farflung.protocol.fields import TEXT_LENGTH, Message
from farflung.protocol.messages import Planned
from farflung.protocol.reaching import Answers, LinkReport, Links
from farflung.transport.endpoint import Handler, Hello, Link, Listener, Peer, listen
from farflung.transport.identity import Identity
from farflung.transport.link_stats import LinkStatus
from farflung.transport.timeouts import Timeouts

ANYWHERE = "[::]:0"


class Paths:
    """Made once the broker is there: `tell` sends a message to it.

    The broker's answers are given to `hear`. `contexts` are the TLS contexts in use: a new certificate is to
    be shown in them.
    """

    def __init__(self, identity: Identity, timeouts: Timeouts, tell: Callable[[Message], None]) -> None:
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
        self._connector = Connector(self._own, context, identity.broker, self._port, tell, lambda: timeouts)

    @property
    def timeouts(self) -> Timeouts:
        """The limits that hold for its links."""
        return self._timeouts

    async def connect(
        self, planned: Planned, worker: str, addresses: Sequence[str], handler: Handler
    ) -> Link:
        """Reach a worker of the plan, whichever way leads there; see `Connector.connect`."""
        errand = Errand(planned.job, planned.attempt, Peer(worker, "worker"), addresses)
        try:
            reached = await self._connector.connect(errand, handler)
        except ConnectionFailed as error:
            self._note(planned.job, worker, str(error), None)
            raise
        self._note(planned.job, worker, reached.tried, reached.link)
        return reached.link

    def hear(self, answer: Answers) -> None:
        """The broker says what came of asking for help."""
        self._connector.hear(answer)

    async def close(self, reason: str) -> None:
        """Report no more, and close the port, if one was opened, with the links that came in over it."""
        if self._reporting is not None:
            self._reporting.cancel()
        if self._listener is not None:
            await self._listener.close(reason)

    async def _port(self) -> int:
        async with self._opening:
            if self._listener is None:
                context = self._identity.server_context(admit_strangers=False)
                self.contexts.append(context)
                self._listener = await listen(ANYWHERE, context, self._own, self._entered, self._timeouts)
        return self._listener.port

    def _entered(self, link: Link) -> Handler:
        if link.kind != "reverse":
            raise ProtocolError("a submitter's port takes only links that it asked for")
        return self._connector.admit(link)

    def _note(self, job: str, worker: str, tried: str, link: Link | None) -> None:
        self._job, self._known[worker] = job, (tried[:TEXT_LENGTH], link)
        self._report()

    def _report(self) -> None:
        """Tell the broker how every link stands, now and then every few heartbeats."""
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
    """How a link does; one that was closed for good, because the job is over, as it did in the end."""
    if link is None or (link.reason is not None and link.cause != "word"):
        return None
    return link.status
