"""What each frame does that comes over a link that stands."""

from __future__ import annotations

from farflung.errors import ProtocolError
from farflung.transport.frames import (
    Cancel,
    Chunk,
    Close,
    Control,
    Credit,
    Frame,
    Open,
    Ping,
    Pong,
    Stripe,
    Taken,
    Widen,
    kind_of,
)
from farflung.transport.inbox import Inbox
from farflung.transport.lane import Lane
from farflung.transport.lanes import Lanes
from farflung.transport.sender import Sender
from farflung.transport.spread import Spread
from farflung.transport.vitals import Vitals


class Reception:
    """Gives memory for payloads, and brings what the peer says to whom it concerns.

    Parameters
    ----------
    inbox
        What has begun to come.
    lanes, spread
        Over which connections.
    vitals
        Learns how long pings take.
    dialled
        Whether this side opens further connections when it is asked to.
    """

    def __init__(self, inbox: Inbox, lanes: Lanes, spread: Spread, vitals: Vitals, dialled: bool) -> None:
        self.inbox = inbox
        self._lanes = lanes
        self._spread = spread
        self._sender: Sender = spread.sender
        self._vitals = vitals
        self._dialled = dialled

    def is_due(self, lane: Lane, frame: Frame) -> bool:
        """Over one connection all is due, over several a chunk may outrun its stream.

        Raises
        ------
        ProtocolError
            Every connection waits for another.
        """
        if not self.inbox.is_striped or self.inbox.is_due(frame):
            return True
        if not self._lanes.may_hold(lane):
            raise ProtocolError("expected the beginning of a stream, found all connections to be past it")
        return False

    def begin(self, lane: Lane, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Memory for the payload, None to drop it; ProtocolError if the frame may not come, or not here."""
        if lane is not self._lanes.primary and not isinstance(frame, Open | Chunk | Stripe | Close):
            raise ProtocolError(f"expected only data on a further connection, found a {kind_of(frame)} frame")
        if isinstance(frame, Chunk):
            self._sender.owe(payload_bytes)
            return self.inbox.begin_chunk(frame, payload_bytes)
        if isinstance(frame, Open):
            self._sender.owe(payload_bytes)
            memory = self.inbox.begin_open(frame, payload_bytes)
            self._lanes.release()
            return memory
        if isinstance(frame, Control):
            return self.inbox.begin_control(frame, payload_bytes)
        return None

    def end(self, frame: Frame, payload_bytes: int) -> None:
        """The frame is here whole; ProtocolError if it may not come."""
        match frame:
            case Chunk() | Open():
                self.inbox.end_data(frame, payload_bytes)
                self._sender.receipt(self.inbox.receipt)
            case Control():
                self.inbox.end_control(payload_bytes)
                self._lanes.release()
                self._sender.receipt(self.inbox.receipt)
            case Credit(count):
                self._sender.credit(count)
            case Ping(stamp):
                self._sender.pong(stamp)
            case Pong(stamp):
                self._vitals.answered(stamp)
            case Cancel():
                self.inbox.cancel(frame)
            case Widen(connections) if self._dialled:
                self._spread.open(connections)
            case Taken(receipt):
                self._sender.took(receipt)
            case _:
                raise ProtocolError(f"expected no {kind_of(frame)} frame on an open link, found one")
