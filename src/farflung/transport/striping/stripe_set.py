"""The stripes of a link: opens, accepts and uses as many as either side wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.link.sender import Sender
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.striping.controller import MAXIMUM_CONNECTIONS, StripeController
from farflung.transport.striping.stripe import Owner, Stripe
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Stripe as StripeFrame
from farflung.transport.wire.frames import Widen

if TYPE_CHECKING:
    from farflung.transport.link.inbox import Inbox

_log = logging.getLogger("farflung.transport")

OpenStripe = Callable[[], Awaitable[TlsStream]]
"""Opens one more connection to the same peer."""


class StripeSet:
    """Opens stripes if this side dialled, else accepts those that the other side opens.

    There is one stripe until `begin`.

    Parameters
    ----------
    primary
        The connection that made the link.
    owner
        The link.
    open_stripe
        Opens another connection; None if this side cannot.
    controller
        Decides how many stripes to use for data that this side sends.
    dialled
        Whether this side opens stripes; otherwise it asks the other one to.

    Attributes
    ----------
    token : Identifies the link to a further connection; None until it is known.
    sender : Writes to the stripes.
    """

    def __init__(
        self,
        primary: Stripe,
        owner: Owner,
        open_stripe: OpenStripe | None,
        controller: StripeController,
        dialled: bool,
    ) -> None:
        self.primary = primary
        self.token: bytes | None = None
        self.sender = Sender(primary, controller, self.widen)
        self._controller = controller
        self._dialled = dialled
        self._inbox: Inbox | None = None
        self._timeouts: Timeouts | None = None
        self._owner = owner
        self._open_stripe = open_stripe
        self._further: list[Stripe] = []
        self._greeting: dict[Stripe, asyncio.TimerHandle] = {}
        self._dialling: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many are usable."""
        return 1 + len(self._further)

    def __contains__(self, stripe: Stripe) -> bool:
        """Whether the stripe is usable."""
        return stripe is self.primary or stripe in self._further

    @property
    def connections(self) -> int:
        """Over how many of the open ones data is spread at the moment."""
        return min(self._controller.wanted, len(self))

    def begin(self, inbox: Inbox, timeouts: Timeouts) -> None:
        """The peer has sent its hello: frames of further stripes go to `inbox`."""
        self._inbox, self._timeouts = inbox, timeouts

    def open_wanted(self) -> None:
        """Open as many as are wanted from the start."""
        self.open(self._controller.wanted)

    def open(self, count: int) -> None:
        """Start to open stripes until there are `count`, if this side can open them."""
        missing = min(count, MAXIMUM_CONNECTIONS) - len(self) - len(self._greeting) - len(self._dialling)
        if self._inbox is None or self._timeouts is None or self._open_stripe is None or self.token is None:
            return
        for _ in range(missing):
            dialling = self._dial(self._open_stripe, self.token, self._timeouts)
            task = asyncio.get_running_loop().create_task(dialling)
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        # Set it now, not when they are open: the peer may use them before it has read our answer.
        if missing > 0:
            self._inbox.is_striped = True

    def accept(self, stripe: Stripe) -> bool:
        """Use a connection that presented the token; False if it comes too early or there are enough."""
        if self._inbox is None or len(self) >= MAXIMUM_CONNECTIONS:
            return False
        stripe.adopt(self._owner)
        stripe.write_now(StripeFrame(self.token or b""))
        self._use(stripe, self._inbox)
        return True

    def greeted(self, stripe: Stripe, token: bytes) -> None:
        """The other side accepted a stripe that this side opened; ProtocolError if it was not opened here."""
        deadline = None if self._inbox is None else self._greeting.pop(stripe, None)
        if self._inbox is None or deadline is None or token != self.token:
            raise ProtocolError("expected this link's token once, found a different or a repeated one")
        deadline.cancel()
        self._use(stripe, self._inbox)

    def widen(self) -> None:
        """The controller wants another number of stripes for what this side sends."""
        if self._dialled:
            self.open(self._controller.wanted)
        elif len(self) < self._controller.wanted:
            self.sender.write_now(Widen(self._controller.wanted))
        self._controller.on_opened(len(self))

    def release(self) -> None:
        """Resume the stripes that are held."""
        for stripe in (self.primary, *self._further):
            if stripe.is_held:
                stripe.resume()

    def may_hold(self, stripe: Stripe) -> bool:
        """Whether another stripe may bring what this one waits for."""
        others = [other for other in (self.primary, *self._further) if other is not stripe]
        return bool(self._greeting or self._dialling) or not all(other.is_held for other in others)

    def ignore(self) -> None:
        """Stop writing to the handler's memory, and read on only to notice when the other side hangs up."""
        for stripe in (self.primary, *self._further):
            stripe.ignore()

    def refuse(self) -> None:
        """After `ignore`: read hardly anything more from a side that broke the rules."""
        for stripe in (self.primary, *self._further):
            stripe.refuse()

    def release_batches(self) -> None:
        """The batches that were being written have left, or never will."""
        for stripe in (self.primary, *self._further):
            stripe.release_batches()

    def abort(self) -> None:
        """Close all connections."""
        self.primary.connection.abort()
        self.abort_further()

    def abort_further(self) -> None:
        """Close all connections but the primary one."""
        for task in self._dialling:
            task.cancel()
        for stripe in (*self._further, *self._greeting):
            stripe.connection.abort()

    def forget(self, stripe: Stripe) -> bool:
        """Handle the loss of a connection; returns whether it was in use."""
        if deadline := self._greeting.pop(stripe, None):
            deadline.cancel()
        return stripe in self

    async def closed(self) -> None:
        """Wait until no connection is being opened any more."""
        await asyncio.gather(*self._dialling, return_exceptions=True)

    def _use(self, stripe: Stripe, inbox: Inbox) -> None:
        self._further.append(stripe)
        inbox.is_striped = True
        self.sender.add(stripe)
        self._controller.on_opened(len(self))

    async def _dial(self, open_stripe: OpenStripe, token: bytes, timeouts: Timeouts) -> None:
        try:
            async with asyncio.timeout(timeouts.dial_seconds):
                connection = await open_stripe()
        except (OSError, ConnectionFailed) as error:
            _log.info("could not open a further connection to %s: %s", self.primary.connection.remote, error)
            return
        stripe = Stripe(connection, self._owner)
        loop = asyncio.get_running_loop()
        self._greeting[stripe] = loop.call_later(timeouts.dial_seconds, connection.abort)
        stripe.start()
        stripe.write_now(StripeFrame(token))
