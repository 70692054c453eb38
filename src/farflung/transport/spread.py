"""Over how many connections a link's data goes: opens, takes and uses them as either side wants."""

from __future__ import annotations

from farflung.errors import ProtocolError
from farflung.transport.frames import Stripe, Widen
from farflung.transport.inbox import Inbox
from farflung.transport.lane import Lane
from farflung.transport.lanes import Lanes
from farflung.transport.sender import Sender
from farflung.transport.timeouts import Timeouts
from farflung.transport.width import Width


class Spread:
    """Begins once the peer has greeted; before that there is one connection.

    Parameters
    ----------
    lanes
        The connections that stand.
    width
        How many are worth it, for what this side sends.
    dialled
        Whether this side opens them; otherwise it asks the other one to.

    Attributes
    ----------
    sender : What writes over them.
    """

    def __init__(self, lanes: Lanes, width: Width, dialled: bool) -> None:
        self.sender = Sender(lanes.primary, width, self.widen)
        self._lanes = lanes
        self._width = width
        self._dialled = dialled
        self._inbox: Inbox | None = None
        self._timeouts: Timeouts | None = None

    def begin(self, inbox: Inbox, timeouts: Timeouts) -> None:
        """The peer has greeted: what comes over further connections goes to `inbox`."""
        self._inbox, self._timeouts = inbox, timeouts

    def release(self) -> None:
        """The dialler has the link in its hands: open what is wanted from the beginning."""
        self.open(self._width.wanted)

    def open(self, count: int) -> None:
        """Have `count` connections in all before long, where this side can open them."""
        # Striped from now on, and not when they stand: what comes may wait for what is behind an answer.
        if self._inbox is None or self._timeouts is None:
            return
        if self._lanes.want(count, self._timeouts):
            self._inbox.is_striped = True

    def take(self, lane: Lane) -> bool:
        """Use a connection that showed the token; False if it comes too early or there are enough."""
        if self._inbox is None or not self._lanes.take(lane):
            return False
        lane.write_now(Stripe(self._lanes.token or b""))
        self._use(lane, self._inbox)
        return True

    def greeted(self, lane: Lane, token: bytes) -> None:
        """The other side took a connection that was opened here; ProtocolError if it was not."""
        if self._inbox is None or not self._lanes.greeted(lane, token):
            raise ProtocolError("expected the token of this link once, found another or one more")
        self._use(lane, self._inbox)

    def widen(self) -> None:
        """Another number of connections is wanted for what is sent from here."""
        if self._dialled:
            self.open(self._width.wanted)
        elif len(self._lanes) < self._width.wanted:
            self.sender.write_now(Widen(self._width.wanted))
        self._width.opened(len(self._lanes))

    @property
    def connections(self) -> int:
        """Over how many data is spread at the moment, of those that stand."""
        return min(self._width.wanted, len(self._lanes))

    def _use(self, lane: Lane, inbox: Inbox) -> None:
        inbox.is_striped = True
        self.sender.add(lane)
        self._width.opened(len(self._lanes))
