"""The two ends of a session, and who holds them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tests.simulation.world import Process

from farflung.transport.security.peer import Peer

Kind = Literal["control", "data"]


class Handler(Protocol):
    """A process that holds an end of a session."""

    def on_message(self, end: End, message: Any) -> None:
        """A message has arrived."""

    def on_back(self, end: End) -> None:
        """Another connection has replaced the one that was lost."""

    def on_end(self, end: End, reason: str) -> None:
        """The session is over."""


@dataclass(frozen=True)
class Closing:
    """The last message of an end that was closed, or whose process died."""

    reason: str


class End:
    """One end of a session. `peer`, `remote` and `last_received_at` are what the broker's registry reads."""

    other: End
    handler: Handler
    last_received_at = 0.0

    def __init__(self, process: Process, peer: Peer, kind: Kind, dialled: bool) -> None:
        self.process, self.life = process, process.life
        self.peer, self.kind, self.dialled = peer, kind, dialled
        self.remote = f"192.0.2.{1 + len(peer.id)}:50000"
        self.outbox: deque[Any] = deque()
        self.closing = self.pumping = False
        self.over_at: float | None = None
        self.silent_since: float | None = None
        self.down_since: float | None = None  # these two of the dialler's end only
        self.back_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether this end was closed, has given the session up, or died with its process."""
        return self.over_at is not None

    def end(self) -> None:
        """Nothing is sent or taken here any more."""
        self.over_at = self.process.world.now

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has arrived here."""
        since = self.other.over_at if self.silent_since is None else self.silent_since
        return 0.1 if since is None else self.process.world.now - since

    def send(self, message: Any) -> None:
        """Send a message; without effect if this end is over."""
        if not self.over:
            self.outbox.append(message)
            self.process.world.network.pump(self)

    def close(self, reason: str) -> None:
        """End the session and tell the other side why, after everything that was sent before."""
        if not self.over:
            self.send(Closing(reason))
            self.end()
            self.closing = True
            self.process.world.network.refresh_session(self)

    def give_up(self, reason: str) -> None:
        """End the session here; the other side finds out by itself."""
        if not self.over:
            self.end()
            self.outbox.clear()
            self.process.world.network.refresh_session(self)
            self.handler.on_end(self, reason)
