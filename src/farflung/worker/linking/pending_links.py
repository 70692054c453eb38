"""Links whose attempt is not known to this worker yet. Pure, except that it closes links."""

from __future__ import annotations

from collections.abc import Callable

from farflung.errors import ProtocolError
from farflung.protocol.messages import Claim, Load
from farflung.transport.link.link import Link

MAX_PENDING_LINKS = 64
MAX_PENDING_LINKS_PER_PEER = 4


class PendingLinks:
    """Links that others dialled, each with its claim once that has been received.

    `close` is called for a link that has to make room.
    """

    def __init__(self, close: Callable[[Link, str], None]) -> None:
        self._close = close
        self._claims: dict[Link, Claim | None] = {}

    @property
    def links(self) -> list[Link]:
        """The waiting links, oldest first."""
        return list(self._claims)

    def add(self, link: Link) -> None:
        """Add a link; raises ProtocolError if there is no room.

        Only the newest links of each peer stay, so that no peer can use all the room.
        """
        of_this_peer = [other for other in self._claims if other.peer == link.peer]
        for older in of_this_peer[: max(0, len(of_this_peer) + 1 - MAX_PENDING_LINKS_PER_PEER)]:
            del self._claims[older]
            self._close(older, "superseded by newer connections")
        if len(self._claims) >= MAX_PENDING_LINKS:
            raise ProtocolError("this worker has too many connections that wait for a plan: try again later")
        self._claims[link] = None

    def remove(self, link: Link) -> None:
        """Remove a link, if it waits here."""
        self._claims.pop(link, None)

    def claim(self, link: Link, claim: Claim) -> None:
        """Record what a link is for; only the newest link of a holder for an attempt stays.

        Raises ProtocolError if the link has sent a claim before, or does not wait here.
        """
        if self._claims.get(link, claim) is not None:
            raise ProtocolError("found a second claim on a link, or one from the side that was dialled")
        for older in [
            o
            for o, earlier in self._claims.items()
            if o.peer == link.peer and _is_same_attempt(earlier, claim)
        ]:
            del self._claims[older]
            self._close(older, "superseded by a newer connection")
        self._claims[link] = claim

    def pop_due(self, link: Link, load: Load | None, admitted: frozenset[str]) -> Claim | None:
        """Remove a link and return its claim, if it is for this attempt and its holder is admitted."""
        claim = self._claims[link]
        if claim is None or load is None or (claim.job, claim.attempt) != (load.job, load.attempt):
            return None
        if link.peer.id not in admitted:
            return None
        del self._claims[link]
        return claim


def _is_same_attempt(earlier: Claim | None, claim: Claim) -> bool:
    return earlier is not None and (earlier.job, earlier.attempt) == (claim.job, claim.attempt)
