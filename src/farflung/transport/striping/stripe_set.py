"""A link's stripes: the primary one, and as many more as either side wants. Opens, accepts and uses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.link.sender import Sender
from farflung.transport.net.tls_stream import Connection
from farflung.transport.striping.controller import MAXIMUM_CONNECTIONS, StripeController
from farflung.transport.striping.stripe import Owner, Stripe
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Stripe as StripeFrame
from farflung.transport.wire.frames import Widen

if TYPE_CHECKING:
    from farflung.transport.link.inbox import Inbox

_log = logging.getLogger("farflung.transport")

More = Callable[[], Awaitable[Connection]]
"""Makes one connection more to the same peer."""


class StripeSet:
    """Opens stripes where its side dialled, accepts those that the other side opened where not.

    There is one stripe until `begin`.

    Parameters
    ----------
    primary
        The connection that made the link.
    owner
        The link.
    more
        How this side opens another; None where it cannot.
    controller
        How many stripes are worth it, for what this side sends.
    dialled
        Whether this side opens them; otherwise it asks the other one to.

    Attributes
    ----------
    token : Belongs to the link, and proves that a connection does; None until it is known.
    sender : What writes over them.
    """

    def __init__(
        self, primary: Stripe, owner: Owner, more: More | None, controller: StripeController, dialled: bool
    ) -> None:
        self.primary = primary
        self.token: bytes | None = None
        self.sender = Sender(primary, controller, self.widen)
        self._controller = controller
        self._dialled = dialled
        self._inbox: Inbox | None = None
        self._timeouts: Timeouts | None = None
        self._owner = owner
        self._more = more
        self._further: list[Stripe] = []
        self._greeting: dict[Stripe, asyncio.TimerHandle] = {}
        self._dialling: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many can be used."""
        return 1 + len(self._further)

    def __contains__(self, stripe: Stripe) -> bool:
        """Whether it can be used."""
        return stripe is self.primary or stripe in self._further

    @property
    def connections(self) -> int:
        """Over how many data is spread at the moment, of those that stand."""
        return min(self._controller.wanted, len(self))

    def begin(self, inbox: Inbox, timeouts: Timeouts) -> None:
        """The peer has greeted: what comes over further stripes goes to `inbox`."""
        self._inbox, self._timeouts = inbox, timeouts

    def open_wanted(self) -> None:
        """Open as many as are wanted from the beginning."""
        self.open(self._controller.wanted)

    def open(self, count: int) -> None:
        """Have `count` stripes in all before long, where this side can open them."""
        missing = min(count, MAXIMUM_CONNECTIONS) - len(self) - len(self._greeting) - len(self._dialling)
        if self._inbox is None or self._timeouts is None or self._more is None or self.token is None:
            return
        for _ in range(missing):
            dialling = self._dial(self._more, self.token, self._timeouts)
            task = asyncio.get_running_loop().create_task(dialling)
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        # Striped from now on, and not when they stand: what comes may wait for what is behind an answer.
        if missing > 0:
            self._inbox.is_striped = True

    def accept(self, stripe: Stripe) -> bool:
        """Use a connection that showed the token; False if it comes too early or there are enough."""
        if self._inbox is None or len(self) >= MAXIMUM_CONNECTIONS:
            return False
        stripe.adopt(self._owner)
        stripe.write_now(StripeFrame(self.token or b""))
        self._use(stripe, self._inbox)
        return True

    def greeted(self, stripe: Stripe, token: bytes) -> None:
        """The other side answered on a stripe that was opened here; ProtocolError if it was not."""
        deadline = None if self._inbox is None else self._greeting.pop(stripe, None)
        if self._inbox is None or deadline is None or token != self.token:
            raise ProtocolError("expected the token of this link once, found another or one more")
        deadline.cancel()
        self._use(stripe, self._inbox)

    def widen(self) -> None:
        """Another number of stripes is wanted for what is sent from here."""
        if self._dialled:
            self.open(self._controller.wanted)
        elif len(self) < self._controller.wanted:
            self.sender.write_now(Widen(self._controller.wanted))
        self._controller.opened(len(self))

    def release(self) -> None:
        """Let those go on that are held."""
        for stripe in (self.primary, *self._further):
            if stripe.is_held:
                stripe.go_on()

    def may_hold(self, stripe: Stripe) -> bool:
        """Whether another one may bring what this one waits for."""
        others = [other for other in (self.primary, *self._further) if other is not stripe]
        return bool(self._greeting or self._dialling) or not all(other.is_held for other in others)

    def ignore(self) -> None:
        """Write to no memory that the link's handler gave, and notice when the other side hangs up."""
        for stripe in (self.primary, *self._further):
            stripe.ignore()

    def let_go(self) -> None:
        """What was on its way has left, or never will."""
        for stripe in (self.primary, *self._further):
            stripe.let_go()

    def abort(self) -> None:
        """Hang up on all of them."""
        self.primary.connection.abort()
        self.abort_further()

    def abort_further(self) -> None:
        """Hang up on all but the primary one."""
        for task in self._dialling:
            task.cancel()
        for stripe in (*self._further, *self._greeting):
            stripe.connection.abort()

    def forget(self, stripe: Stripe) -> bool:
        """A connection is gone; whether it was in use."""
        if deadline := self._greeting.pop(stripe, None):
            deadline.cancel()
        return stripe in self

    async def closed(self) -> None:
        """Return when none is being opened any more."""
        await asyncio.gather(*self._dialling, return_exceptions=True)

    def _use(self, stripe: Stripe, inbox: Inbox) -> None:
        self._further.append(stripe)
        inbox.is_striped = True
        self.sender.add(stripe)
        self._controller.opened(len(self))

    async def _dial(self, more: More, token: bytes, timeouts: Timeouts) -> None:
        try:
            async with asyncio.timeout(timeouts.dial_seconds):
                connection = await more()
        except (OSError, ConnectionFailed) as error:
            _log.info("no further connection to %s: %s", self.primary.connection.remote, error)
            return
        stripe = Stripe(connection, self._owner)
        loop = asyncio.get_running_loop()
        self._greeting[stripe] = loop.call_later(timeouts.dial_seconds, connection.abort)
        stripe.start()
        stripe.write_now(StripeFrame(token))
