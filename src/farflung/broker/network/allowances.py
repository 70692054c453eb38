"""How much each holder may ask of the broker: links, messages, their sizes and how often. Pure.

A holder has shown its certificate, so what it takes is counted for it alone, over all of its links. All
limits are far above what any honest holder needs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from farflung.errors import ProtocolError
from farflung.protocol import messages
from farflung.protocol.fields import Message
from farflung.text import printable
from farflung.transport.security.names import Role
from farflung.transport.security.peer import Peer
from farflung.transport.wire.frames import MAXIMUM_CONTROL_BYTES

KB, MB = 2**10, 2**20


@dataclass(frozen=True)
class RoleLimits:
    """Of one holder: the largest message, how many links it may have, and what it may leave unread, in bytes.

    All unfinished messages of a holder together may be as large as one message.
    """

    message_bytes: int
    links: int
    unread_bytes: int


OF_ROLE: dict[Role, RoleLimits] = {
    "viewer": RoleLimits(8 * KB, 16, 16 * MB),
    "operator": RoleLimits(8 * KB, 16, 16 * MB),
    "worker": RoleLimits(16 * MB, 16, 4 * MAXIMUM_CONTROL_BYTES),
    "submitter": RoleLimits(MAXIMUM_CONTROL_BYTES, 64, 4 * MAXIMUM_CONTROL_BYTES),
}

OF_KIND: dict[type[Message], int] = {
    messages.Submit: MAXIMUM_CONTROL_BYTES,
    messages.UnitReady: 16 * MB,
    messages.Checked: 16 * MB,
    messages.Register: 4 * MB,
    messages.Links: 4 * MB,
    messages.StepShown: 4 * MB,
}
"""The largest message of a kind, in bytes, where that is more than `USUAL_BYTES`."""

USUAL_BYTES = MB

_MOST = {kind.__name__: most for kind, most in OF_KIND.items()}


@dataclass(frozen=True)
class Rate:
    """So many messages a second, and so many at once after a pause."""

    per_second: float
    burst: float


OF_MESSAGES: dict[type[Message], Rate] = {
    messages.Renew: Rate(0.1, 10),
    messages.Ask: Rate(10, 50),
    messages.AskTopology: Rate(2, 20),
    messages.AskMembers: Rate(5, 50),
    messages.AskStep: Rate(2, 20),
    messages.StepShown: Rate(2, 20),
    messages.Submit: Rate(2, 100),
    messages.Moved: Rate(0.2, 60),
}
USUAL_RATE = Rate(2000, 20_000)
SURVEYS = Rate(1 / 60, 3)
"""Surveys that a submitter may request: each measures every line of the fleet."""

SLOWEST_BYTES_PER_SECOND = 1e5
LEAST_SECONDS = 30.0
"""A message must be complete after so long, and as long as it takes at the slowest rate."""


def kind_of(head: bytes) -> str:
    """The kind of the message that begins with `head`; empty if it does not begin with its kind.

    A message is a msgpack map whose first key is "type", as `protocol.messages.encode` writes it.
    """
    key, wide_maps = b"\xa4type", {0xDE: 3, 0xDF: 5}  # maps of more than 15 fields begin with more bytes
    at = wide_maps.get(head[0], 1) if head else 0
    end = at + len(key)
    if head[at:end] != key or len(head) == end or head[end] >> 5 != 0b101:  # a string of up to 31 bytes
        return ""
    return head[end + 1 : end + 1 + (head[end] & 0x1F)].decode("ascii", "replace")


class Bucket:
    """A token bucket for one rate; times are in seconds of any clock."""

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._left, self._at = rate, rate.burst, now

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self._left = min(self._rate.burst, self._left + (now - self._at) * self._rate.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def is_full(self, now: float) -> bool:
        """Whether it has forgotten all that was taken."""
        return self._left + (now - self._at) * self._rate.per_second >= self._rate.burst


@dataclass(frozen=True)
class _Unfinished:
    peer: Peer
    total: int
    deadline: float


class Allowances:
    """Counts what each holder takes. Links are named by handles that the caller chooses."""

    def __init__(self) -> None:
        self._unfinished: dict[Hashable, _Unfinished] = {}
        self._buckets: dict[tuple[Peer, type], Bucket] = {}

    def admit(self, peer: Peer, links: int) -> None:
        """Let a holder that has `links` have one more; ProtocolError if these are too many."""
        most = OF_ROLE[peer.role].links if peer.role in OF_ROLE else 0
        if links >= most:
            raise ProtocolError(f"{peer} has {links} connections to this broker already, and may have {most}")

    def begin(self, link: Hashable, peer: Peer, total: int, now: float) -> None:
        """A message of `total` bytes begins on a link; ProtocolError if it is, or they are, too large."""
        most = OF_ROLE[peer.role].message_bytes
        if total > most:
            raise ProtocolError(f"a {peer.role}'s message may have {most:,} bytes, found one of {total:,}")
        unfinished = sum(one.total for one in self._unfinished.values() if one.peer == peer)
        if unfinished + total > most:
            raise ProtocolError(f"{peer} has {unfinished:,} bytes of unfinished messages: send one by one")
        deadline = now + LEAST_SECONDS + total / SLOWEST_BYTES_PER_SECOND
        self._unfinished[link] = _Unfinished(peer, total, deadline)

    def check_kind(self, head: bytes, total: int) -> None:
        """A message of `total` bytes begins with `head`; ProtocolError if it is too large for its kind."""
        kind = kind_of(head)
        most = _MOST.get(kind, USUAL_BYTES)
        if total > most:
            name = printable(kind) or "message without a kind"
            raise ProtocolError(f"a {name} may have {most:,} bytes, found one of {total:,}")

    def end(self, link: Hashable) -> None:
        """The message on the link is complete, or never will be."""
        self._unfinished.pop(link, None)

    def overdue(self, now: float) -> list[Hashable]:
        """The links whose message should have been complete by now; forgets buckets that are full again."""
        self._buckets = {key: one for key, one in self._buckets.items() if not one.is_full(now)}
        return [link for link, one in self._unfinished.items() if now > one.deadline]

    def take(self, peer: Peer, message: Message, size: int, now: float) -> None:
        """A holder sends a message of `size` bytes; ProtocolError if it is too large or one too many."""
        kind = type(message)
        most = OF_KIND.get(kind, USUAL_BYTES)
        if size > most:
            raise ProtocolError(f"a {kind.__name__} may have {most:,} bytes, found one of {size:,}")
        rate = OF_MESSAGES.get(kind, USUAL_RATE)
        if not self._take(peer, kind if kind in OF_MESSAGES else Message, rate, now):
            raise ProtocolError(
                f"{peer} sends too many messages ({kind.__name__}): {rate.per_second:g} a second are allowed"
            )

    def may_survey(self, peer: Peer, now: float) -> bool:
        """Whether a holder may request one more survey."""
        return self._take(peer, Rate, SURVEYS, now)

    def _take(self, peer: Peer, kind: type, rate: Rate, now: float) -> bool:
        bucket = self._buckets.get((peer, kind))
        if bucket is None:
            bucket = self._buckets[peer, kind] = Bucket(rate, now)
        return bucket.take(now)
