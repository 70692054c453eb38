"""A link: TLS connections between two holders, which carry control messages and data in both directions.

It has one connection, the primary. If its congestion control does not fill the path, data is spread over
more.

Received payloads are decrypted straight into the handler's memory. Data to send waits in our own queue until
the kernel is ready for it, so that urgent messages overtake it.
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
from farflung.transport.failures import Cause, reason_and_cause, why_never_greeted, why_silent
from farflung.transport.handler import ControlGuard, Handler
from farflung.transport.link.governor import Governor
from farflung.transport.link.heartbeat import Heartbeat
from farflung.transport.link.inbox import FrameDispatch, Inbox
from farflung.transport.link.outbox import Done, OnPartial
from farflung.transport.link.ranges import Parts
from farflung.transport.link.stats import LinkStats, LinkStatus, status_of
from farflung.transport.net.sockets import congestion_control, path_state, tune
from farflung.transport.net.tls_stream import TlsStream, settle
from farflung.transport.options import DEFAULT_OPTIONS, LinkOptions
from farflung.transport.security.peer import Peer
from farflung.transport.striping.stripe import Stripe
from farflung.transport.striping.stripe_set import OpenStripe, StripeSet
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
    """Made by `endpoint.dial` and `endpoint.listen`; use it on its event loop only.

    Attributes
    ----------
    peer : The holder that the other side's certificate names.
    remote, local : HOST:PORT of either side.
    boot : The other process's random id; a different one than before means that it has restarted.
    kind : The purpose for which it was dialled.
    congestion_control : The kernel's name of the congestion control for what this end sends.
    reason : Why the link is over; None while it is open.
    cause : How it ended, which decides whether its session may continue over another link.
    guard : May refuse control messages by their size. The side that admits the link may set it.
    on_over : Called once when the link is over, but not if it becomes a further connection of another one.
    """

    def __init__(
        self,
        connection: TlsStream,
        own: Hello,
        peer: Peer,
        timeouts: Timeouts,
        admit: Callable[[Link], Handler],
        dialled: bool,
        options: LinkOptions = DEFAULT_OPTIONS,
        open_stripe: OpenStripe | None = None,
        find: Callable[[bytes], Link | None] = lambda token: None,
    ) -> None:
        self.peer = peer
        self.remote = connection.remote
        self.local = connection.local
        self.boot = ""
        self.kind: Kind = own.kind
        self.congestion_control = congestion_control(connection.socket)
        self.reason: str | None = None
        self.cause: Cause = "closed"
        self.guard: ControlGuard | None = None
        self.on_over: Callable[[], None] = lambda: None
        self._settled = asyncio.Event()
        self._own = own
        self._admit = admit
        self._dialled = dialled
        self._find = find
        self._transport = connection
        self._primary = Stripe(connection, self)
        controller = options.controller(self.congestion_control, partial(path_state, connection.socket))
        stripes = StripeSet(self._primary, self, open_stripe, controller, dialled)
        super().__init__(connection.socket, stripes, timeouts)
        self._sender = stripes.sender
        self._handler: Handler | None = None
        self._dispatch: FrameDispatch | None = None
        self._heartbeat: Heartbeat | None = None
        self._lost = asyncio.Event()
        self._deadline = asyncio.get_running_loop().call_later(timeouts.dial_seconds, self._on_no_hello)
        if dialled:
            self._sender.write_now(own)
        else:
            self._stripes.token = secrets.token_bytes(STRIPE_TOKEN_BYTES)
        self._primary.start()

    async def send(self, header: DataHeader, buffer: memoryview) -> None:
        """Send a data message; returns when its last byte has left, so that `buffer` may be changed again.

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
            # If it is too late to withdraw it, its last bytes are still read from `buffer`.
            await left
            raise
        if self.reason is not None:
            raise ConnectionFailed(f"the link to {self.peer} is over: {self.reason}")

    def post(
        self,
        header: DataHeader,
        buffer: memoryview,
        done: Done | None = None,
        on_ack: Done | None = None,
        on_partial: OnPartial | None = None,
        start: int = 0,
    ) -> None:
        """Queue a data message of `header.bytes` bytes; do not change `buffer` until `done` is called.

        `done` is called exactly once: when the last byte has left, or when it never will (the message was
        withdrawn, or the link is over, for `reason`). `on_ack` is called at most once, when the peer has
        confirmed that the message arrived completely. Gradients overtake activations, and activations
        overtake state. A session uses `on_partial` and `start` to continue in the middle of a message; see
        `Outbox.post`.
        """
        payload = memoryview(buffer).cast("B")
        if len(payload) != header.bytes:
            raise ValueError(f"the buffer has {len(payload)} bytes, but the header says {header.bytes}")
        if self.reason is None:
            self._sender.post(header, payload, done, on_ack, on_partial, start)
        elif done is not None:
            done()

    def send_control(self, message: bytes, on_ack: Done | None = None) -> None:
        """Queue a control message of at most 64 MiB; it overtakes data. Dropped if the link is over.

        `on_ack` is as in `post`.
        """
        if len(message) > MAXIMUM_CONTROL_BYTES:
            raise ValueError(
                f"a control message may have at most {MAXIMUM_CONTROL_BYTES} bytes, found {len(message)}"
            )
        if self.reason is None:
            self._sender.post_control(message, on_ack)

    def govern(self, governor: Governor) -> None:
        """Send state only when the governor of all links of this holder says so."""
        self._sender.govern(governor, lambda: self.least_round_trip_seconds)

    def withdraw(self, matches: Callable[[DataHeader], bool]) -> None:
        """Drop the data messages that match and are not completely sent."""
        if self.reason is None:
            self._sender.withdraw(matches)

    async def close(self, reason: str) -> None:
        """Send the reason to the peer, and wait until the connection is gone, within a bounded time.

        Data that has not left is dropped. The handler's `closed` is called before this returns.
        """
        self._end(reason, tell=reason)
        await self._lost.wait()
        await self._stripes.closed()

    def abandon(self, reason: str) -> None:
        """End the link at once, because another one replaces it; the handler is not called."""
        self._handler = None
        self._end(reason, tell=reason)

    def cut_off(self, reason: str) -> None:
        """End the link at once, because the other side breaks a rule or a limit, and tell it the reason.

        Hardly anything more of it is read. The handler's `closed` is called before this returns.
        """
        self._end(reason, tell=reason)
        self._stripes.refuse()

    def resume_from(self, parts: Parts) -> None:
        """Continue messages whose beginnings earlier links of the same session have saved."""
        if self._inbox is not None:
            self._inbox.saved_parts = parts

    def on_ack(self, receipt: Receipt) -> None:
        """Process the peer's last receipt for this link, which arrived over the link that replaces it."""
        self._sender.on_final_ack(receipt)

    async def greeted(self) -> Link:
        """Wait for the dialled peer's hello and return this link; ConnectionFailed if it refuses.

        The handler is not called before `release`.
        """
        await self._settled.wait()
        if self._handler is None:
            raise ConnectionFailed(f"{self.remote}: {self.reason}")
        return self

    def release(self) -> Link:
        """Allow calls of the handler, from the moment that the caller next awaits something."""
        self._primary.resume()
        self._stripes.open_wanted()
        return self

    @property
    def is_ungreeted(self) -> bool:
        """Whether the other side has not said yet what this connection is for."""
        return not self._settled.is_set()

    @property
    def token(self) -> bytes | None:
        """The token for opening further connections of this link; None before the peer has sent it."""
        return self._stripes.token

    @property
    def status(self) -> LinkStatus:
        """The link's status, for commands and metrics."""
        return status_of(self)

    # stripe.Owner

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
        # The handler may have closed the link just now; do not write to its memory after that.
        return memory if self.reason is None else None

    def end(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> None:
        """Called by a stripe."""
        if isinstance(frame, Close):
            self._on_close_frame(stripe, frame)
        elif self.reason is not None:
            return
        elif isinstance(frame, StripeFrame):
            self._on_stripe_frame(stripe, frame)
        elif self._dispatch is None:
            self._on_hello(frame)
        else:
            self._dispatch.end(frame, payload_bytes)

    def on_drained(self, stripe: Stripe) -> None:
        """Called by a stripe."""
        self._sender.on_drained(stripe)

    def on_failed(self, stripe: Stripe, reason: str) -> None:
        """Called by a stripe."""
        self.cut_off(reason)

    def on_lost(self, stripe: Stripe, error: OSError | None) -> None:
        """Called by a stripe. The link is over if any of its stripes is lost, because data may be lost with
        it.
        """
        if stripe is not self._primary and not self._stripes.forget(stripe):
            _log.info("could not open a further connection to %s: %s", self.peer, error or "it hung up")
            return
        if self._dialled and self._handler is None:
            self._end(why_never_greeted(error), tell=None)
        else:
            was_silent = time.monotonic() - self.last_received_at > self._timeouts.suspect_seconds
            reason, cause = reason_and_cause(error, was_silent, self._timeouts.unacknowledged_seconds)
            self._end(reason, None if stripe is self._primary else reason, cause)
        if stripe is self._primary:
            self._deadline.cancel()
            self._stripes.abort_further()
            self._stripes.release_batches()
            self._lost.set()

    def adopt(self, stripe: Stripe) -> bool:
        """Accept a connection whose peer presented the token; False if the link has enough."""
        return self.reason is None and self._stripes.accept(stripe)

    def _on_close_frame(self, stripe: Stripe, frame: Close) -> None:
        if stripe not in self._stripes:
            stripe.connection.abort()  # the peer refuses this further connection
            return
        cause: Cause = "network" if frame.is_network_failure else "closed"
        self._end(f"{self.peer} closed the link: {printable(frame.reason)}", None, cause)
        self._stripes.abort()

    def _on_stripe_frame(self, stripe: Stripe, frame: StripeFrame) -> None:
        """Handle a token: the connection joins another link, or the peer accepts it for this one."""
        if stripe is not self._primary:
            self._stripes.greeted(stripe, frame.token)
            return
        link = self._find(frame.token)
        if self._dispatch is not None or link is None or link.peer != self.peer or not link.adopt(stripe):
            raise ProtocolError(
                "expected the token of an open link that accepts more connections, found another"
            )
        self.reason = "it became a further connection of another link"
        self._deadline.cancel()
        self._settled.set()
        self._lost.set()

    def _on_hello(self, frame: Frame) -> None:
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
        self._dispatch = FrameDispatch(inbox, self._stripes, self.on_pong, self._dialled)
        self._stripes.begin(inbox, self._timeouts)
        if self._dialled:
            # The caller of `dial` must have the link before its handler is called.
            self._primary.hold()
            self._stripes.token = frame.stripe
        else:
            greeting = msgspec.structs.replace(self._own, kind=self.kind, stripe=self._stripes.token)
            self._sender.write_now(greeting)
            self._stripes.widen()
        self._deadline.cancel()
        self._heartbeat = Heartbeat(self._timeouts, lambda: self.bytes_received, self._beat, self._on_silence)
        self._settled.set()

    def _beat(self) -> None:
        self._sender.ping(time.monotonic())

    def _on_silence(self) -> None:
        reason = why_silent(str(self.peer), self._timeouts.silence_seconds)
        self._end(reason, reason, "network")

    def _on_no_hello(self) -> None:
        reason = f"no hello from {self.peer} within {self._timeouts.dial_seconds:g} s"
        self.cut_off(reason)

    def _end(self, reason: str, tell: str | None, cause: Cause = "closed") -> None:
        """End the link, once. The side that sends the reason waits for the other to hang up, so that it
        arrives.
        """
        if self.reason is not None:
            return
        self.reason, self.cause = reason, cause
        self.on_over()
        self._stripes.ignore()
        if self._inbox is not None:
            self._inbox.forget_control()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._sender.stop()
        if tell is not None:
            self._sender.write_now(closing(tell, cause != "closed"))
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(
            self._timeouts.close_seconds, self._stripes.abort
        )
        was_admitted = self._settled.is_set()
        self._settled.set()
        if self._handler is not None:
            try:
                self._handler.closed(self, reason)
            except Exception:
                # A bug in the handler must not prevent the connection from ending.
                _log.exception("internal error while closing the link to %s", self.peer)
        elif not (self._dialled or was_admitted):
            _log.warning("refused %s at %s: %s", self.peer, self.remote, reason)


def _check(hello: Hello, peer: Peer, kind: Kind) -> None:
    claimed = Peer(hello.id, hello.role)
    if claimed != peer:
        raise ProtocolError(f"the certificate is of {peer}, but the hello is from {claimed}")
    if hello.kind != kind:
        raise ProtocolError(f"expected a hello for a {kind} connection, found {hello.kind}")
