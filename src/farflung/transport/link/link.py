"""A link: TLS connections between two holders, over which control messages and data travel both ways.

There is one, the primary; where its congestion control leaves a path unfilled, data is spread over more.

Received payloads are decrypted straight into the memory that the handler gave. What is to be sent waits in
our own queue until the kernel is ready for it, so that what is urgent overtakes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial

import msgspec

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.text import printable
from farflung.transport.failures import Cause, end_of, why_never_greeted, why_silent
from farflung.transport.handler import Handler
from farflung.transport.link.heartbeat import Heartbeat
from farflung.transport.link.inbox import FrameDispatch, Inbox
from farflung.transport.link.outbox import CutOff, Done
from farflung.transport.link.ranges import Parts
from farflung.transport.link.stats import LinkStats, LinkStatus, status_of
from farflung.transport.net.sockets import congestion_control, path_state, tune
from farflung.transport.net.tls_stream import Connection, settle
from farflung.transport.options import DEFAULT_OPTIONS, LinkOptions
from farflung.transport.security.peer import Peer
from farflung.transport.striping.stripe import Stripe
from farflung.transport.striping.stripe_set import More, StripeSet
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import (
    MAXIMUM_CONTROL_BYTES,
    STRIPE_TOKEN_BYTES,
    Close,
    Frame,
    Hello,
    Kind,
    closing,
    kind_of,
)
from farflung.transport.wire.frames import Stripe as StripeFrame
from farflung.transport.wire.headers import DataHeader, Receipt

_log = logging.getLogger("farflung.transport")


class Link(LinkStats):
    """Made by `endpoint.dial` and `endpoint.listen`; used on its event loop only.

    Attributes
    ----------
    peer : Whom the other side's certificate names.
    remote, local : HOST:PORT of either side.
    boot : The other process's nonce; another one than before means that it has restarted.
    kind : What the dialler opened the link for.
    congestion_control : The kernel's name of what paces this end's sending.
    reason : Why the link is over; None while it stands.
    cause : What kind of end that is: whether what the link was for can go on over another one.
    """

    def __init__(
        self,
        connection: Connection,
        own: Hello,
        peer: Peer,
        timeouts: Timeouts,
        admit: Callable[[Link], Handler],
        dialled: bool,
        options: LinkOptions = DEFAULT_OPTIONS,
        more: More | None = None,
        find: Callable[[bytes], Link | None] = lambda token: None,
    ) -> None:
        self.peer = peer
        self.remote = connection.remote
        self.local = connection.local
        self.boot = ""
        self.kind: Kind = own.kind
        self.congestion_control = congestion_control(connection.socket)
        self.reason: str | None = None
        self.cause: Cause = "word"
        self._settled = asyncio.Event()
        self._own = own
        self._admit = admit
        self._dialled = dialled
        self._find = find
        self._transport = connection
        self._primary = Stripe(connection, self)
        controller = options.controller(self.congestion_control, partial(path_state, connection.socket))
        stripes = StripeSet(self._primary, self, more, controller, dialled)
        super().__init__(connection.socket, stripes, timeouts)
        self._sender = stripes.sender
        self._handler: Handler | None = None
        self._dispatch: FrameDispatch | None = None
        self._heartbeat: Heartbeat | None = None
        self._lost = asyncio.Event()
        self._deadline = asyncio.get_running_loop().call_later(timeouts.dial_seconds, self._no_hello)
        if dialled:
            self._sender.write_now(own)
        else:
            self._stripes.token = secrets.token_bytes(STRIPE_TOKEN_BYTES)
        self._primary.start()

    async def send(self, header: DataHeader, buffer: memoryview) -> None:
        """Send a data message; returns when its last byte has left and `buffer` may be changed again.

        A cancelled send withdraws the message.

        Raises
        ------
        ConnectionFailed
            The link is over.
        """
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.post(header, buffer, lambda: settle(left))
        try:
            await left
        except asyncio.CancelledError:
            self.withdraw(lambda queued: queued is header)
            await (
                left
            )  # if it is past withdrawing, its last bytes are read from `buffer` until they have left
            raise
        if self.reason is not None:
            raise ConnectionFailed(f"the link to {self.peer} is over: {self.reason}")

    def post(
        self,
        header: DataHeader,
        buffer: memoryview,
        done: Done | None = None,
        taken: Done | None = None,
        cut_off: CutOff | None = None,
        start: int = 0,
    ) -> None:
        """Queue a data message of `header.bytes` bytes; `buffer` stays unchanged until `done` is called.

        `done` is called exactly once: when the last byte has left, or when it never will (the message was
        withdrawn, or the link is over: `reason` says why). `taken` is called at most once, when the peer has
        said that the message came whole. Gradients overtake activations, and those state. With `cut_off` and
        `start` a session goes on in the middle of a message; see `Outbox.post`.
        """
        payload = memoryview(buffer).cast("B")
        if len(payload) != header.bytes:
            raise ValueError(f"a buffer of {len(payload)} bytes was given for a message of {header.bytes}")
        if self.reason is None:
            self._sender.post(header, payload, done, taken, cut_off, start)
        elif done is not None:
            done()

    def send_control(self, message: bytes, taken: Done | None = None) -> None:
        """Queue a control message of at most 64 MiB; it overtakes data. Dropped if the link is over.

        `taken` as in `post`.
        """
        if len(message) > MAXIMUM_CONTROL_BYTES:
            raise ValueError(
                f"a control message of {len(message)} bytes, at most {MAXIMUM_CONTROL_BYTES} may be"
            )
        if self.reason is None:
            self._sender.post_control(message, taken)

    def withdraw(self, matches: Callable[[DataHeader], bool]) -> None:
        """Drop the data messages that match and have not left whole."""
        if self.reason is None:
            self._sender.withdraw(matches)

    async def close(self, reason: str) -> None:
        """Tell the peer why, and return when the connection is gone: within a bounded time.

        Data that has not left is dropped. The handler's `closed` is called before this returns.
        """
        self._end(reason, tell=reason)
        await self._lost.wait()
        await self._stripes.closed()

    def abandon(self, reason: str) -> None:
        """Be over at once, because another link takes the place of this one; the handler is not told."""
        self._handler = None
        self._end(reason, tell=reason)

    def go_on_from(self, kept: Parts) -> None:
        """Take the rest of messages that earlier links of the same session have begun."""
        if self._inbox is not None:
            self._inbox.kept = kept

    def took(self, receipt: Receipt) -> None:
        """The peer's receipt for this link came over the one that took its place: it is the last."""
        self._sender.concluded(receipt)

    async def greeted(self) -> Link:
        """Give back this link once the dialled peer has greeted it; ConnectionFailed if it refuses.

        The handler hears nothing of it before `release`.
        """
        await self._settled.wait()
        if self._handler is None:
            raise ConnectionFailed(f"{self.remote}: {self.reason}")
        return self

    def release(self) -> Link:
        """Let the handler hear, from the moment that the caller awaits something else."""
        self._primary.go_on()
        self._stripes.open_wanted()
        return self

    @property
    def token(self) -> bytes | None:
        """Whoever shows it may open a further connection of this link; None before the peer has told it."""
        return self._stripes.token

    @property
    def status(self) -> LinkStatus:
        """What commands and metrics show of it."""
        return status_of(self)

    # transport.stripe.Owner

    def is_due(self, stripe: Stripe, frame: Frame) -> bool:
        """Called by a stripe."""
        return self._dispatch is None or self._dispatch.is_due(stripe, frame)

    def begin(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Called by a stripe."""
        if self.reason is not None:
            return None
        if self._dispatch is None:
            if not isinstance(frame, Hello | Close | StripeFrame):
                raise ProtocolError(f"expected a hello first, found a {kind_of(frame)} frame")
            return None
        memory = self._dispatch.begin(stripe, frame, payload_bytes)
        # The handler may have closed the link just now; nothing is written to its memory after that.
        return memory if self.reason is None else None

    def end(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> None:
        """Called by a stripe."""
        if isinstance(frame, Close):
            self._closed(stripe, frame)
        elif self.reason is not None:
            return
        elif isinstance(frame, StripeFrame):
            self._striped(stripe, frame)
        elif self._dispatch is None:
            self._greet(frame)
        else:
            self._dispatch.end(frame, payload_bytes)

    def drained(self, stripe: Stripe) -> None:
        """Called by a stripe."""
        self._sender.drained(stripe)

    def failed(self, stripe: Stripe, reason: str) -> None:
        """Called by a stripe."""
        self._end(reason, tell=reason)

    def lost(self, stripe: Stripe, error: OSError | None) -> None:
        """Called by a stripe: without any of its stripes the link is over, for data may be lost with it."""
        if stripe is not self._primary and not self._stripes.forget(stripe):
            _log.info("a further connection to %s did not come about: %s", self.peer, error or "it hung up")
            return
        if self._dialled and self._handler is None:
            self._end(why_never_greeted(error), tell=None)
        else:
            was_silent = time.monotonic() - self.last_heard > self._timeouts.suspect_seconds
            reason, cause = end_of(error, was_silent, self._timeouts.unacknowledged_seconds)
            self._end(reason, None if stripe is self._primary else reason, cause)
        if stripe is self._primary:
            self._deadline.cancel()
            self._stripes.abort_further()
            self._stripes.let_go()
            self._lost.set()

    def adopt(self, stripe: Stripe) -> bool:
        """Take a connection that a listener let in, whose holder showed the token; False if it has enough."""
        return self.reason is None and self._stripes.accept(stripe)

    def _closed(self, stripe: Stripe, frame: Close) -> None:
        if stripe not in self._stripes:
            stripe.connection.abort()  # the peer wants no more connections
            return
        cause: Cause = "trouble" if frame.is_trouble else "word"
        self._end(f"{self.peer} closed the link: {printable(frame.reason)}", None, cause)
        self._stripes.abort()

    def _striped(self, stripe: Stripe, frame: StripeFrame) -> None:
        """A connection shows a token: it is a further one of some link, or the peer takes ours as such."""
        if stripe is not self._primary:
            self._stripes.greeted(stripe, frame.token)
            return
        link = self._find(frame.token)
        if self._dispatch is not None or link is None or link.peer != self.peer or not link.adopt(stripe):
            raise ProtocolError("expected the token of a link that stands and has room, found another")
        self.reason = "it became a further connection of another link"
        self._deadline.cancel()
        self._settled.set()
        self._lost.set()

    def _greet(self, frame: Frame) -> None:
        assert isinstance(frame, Hello)
        _check(frame, self.peer, self.kind if self._dialled else frame.kind)
        self.boot, self.kind = frame.boot, frame.kind
        if self._dialled and self.peer.role == "broker" and frame.lease_seconds is not None:
            self._timeouts = Timeouts(frame.lease_seconds)
            tune(self._transport.socket, self._timeouts)
        handler = self._admit(self)
        if self.reason is not None:
            return
        self._handler, self._inbox = handler, (inbox := Inbox(self, handler))
        self._dispatch = FrameDispatch(inbox, self._stripes, self.answered, self._dialled)
        self._stripes.begin(inbox, self._timeouts)
        if self._dialled:
            # The caller of `dial` must have the link in its hands before the handler hears of it.
            self._primary.hold()
            self._stripes.token = frame.stripe
        else:
            greeting = msgspec.structs.replace(self._own, kind=self.kind, stripe=self._stripes.token)
            self._sender.write_now(greeting)
            self._stripes.widen()
        self._deadline.cancel()
        self._heartbeat = Heartbeat(
            self._timeouts, lambda: self.bytes_received, self._beat, self._fall_silent
        )
        self._settled.set()

    def _beat(self) -> None:
        self._sender.ping(time.monotonic())

    def _fall_silent(self) -> None:
        reason = why_silent(str(self.peer), self._timeouts.silence_seconds)
        self._end(reason, reason, "trouble")

    def _no_hello(self) -> None:
        reason = f"no hello from {self.peer} within {self._timeouts.dial_seconds:g} s"
        self._end(reason, tell=reason)

    def _end(self, reason: str, tell: str | None, cause: Cause = "word") -> None:
        """Be over, once. Whoever says why waits for the other to hang up, so that the words arrive."""
        if self.reason is not None:
            return
        self.reason, self.cause = reason, cause
        self._stripes.ignore()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._sender.stop()
        if tell is not None:
            self._sender.write_now(closing(tell, cause != "word"))
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(
            self._timeouts.close_seconds, self._stripes.abort
        )
        was_let_in = self._settled.is_set()
        self._settled.set()
        if self._handler is not None:
            try:
                self._handler.closed(self, reason)
            except Exception:
                # A defect of ours must not keep the connection from ending.
                _log.exception("the end of the link to %s could not be handled", self.peer)
        elif not (self._dialled or was_let_in):
            _log.warning("%s at %s was not let in: %s", self.peer, self.remote, reason)


def _check(hello: Hello, peer: Peer, kind: Kind) -> None:
    said = Peer(hello.id, hello.role)
    if said != peer:
        raise ProtocolError(f"the certificate is of {peer}, the hello says {said}")
    if hello.kind != kind:
        raise ProtocolError(f"expected a hello for a {kind} connection, found {hello.kind}")
