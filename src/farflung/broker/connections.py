"""The open connections of holders, and the session that each of them carries."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from farflung.broker.network.allowances import Allowances
from farflung.broker.sessions import HolderSession
from farflung.errors import ProtocolError
from farflung.protocol.messages import Attach
from farflung.transport.link.link import Link
from farflung.transport.security.peer import Peer

_log = logging.getLogger("farflung.broker")


class Connections:
    """Lets connections in, joins them to sessions, and limits what arrives over them (`ControlGuard`).

    A member for which `refusal` has words may not connect. `on_end` is called with each session that ended,
    and why.
    """

    def __init__(self, refusal: Callable[[str], str], on_end: Callable[[HolderSession, str], None]) -> None:
        self._refusal = refusal
        self._on_end = on_end
        self._by_connection: dict[Link, HolderSession] = {}
        self._sessions: dict[tuple[Peer, str], HolderSession] = {}
        self.allowances = Allowances()

    @property
    def members(self) -> frozenset[str]:
        """The ids of holders that are connected."""
        return frozenset(session.peer.id for session in self._by_connection.values())

    def session_of(self, link: Link) -> HolderSession:
        """The session that a connection carries."""
        return self._by_connection[link]

    def sessions_of(self, member: str) -> list[HolderSession]:
        """All sessions of a member, registered or not, also those that are between connections."""
        of_member = [one for one in self._by_connection.values() if one.peer.id == member]
        suspended = [one for one in self._sessions.values() if one.peer.id == member]
        return list(dict.fromkeys([*of_member, *suspended]))

    def admit(self, link: Link) -> None:
        """Begin a session on a new connection; ProtocolError if its holder may not have it."""
        if refusal := self._refusal(link.peer.id):
            raise ProtocolError(refusal)
        own = sum(one.peer == link.peer for one in self._by_connection)
        self.allowances.admit(link.peer, own)
        link.guard = self
        self._by_connection[link] = HolderSession(link, self._on_session_end)

    def attach(self, link: Link, attach: Attach) -> None:
        """Let a connection carry the session that its holder names; ProtocolError if that cannot be."""
        session, key = self._by_connection[link], (link.peer, attach.session)
        known = self._sessions.get(key)
        if known is None:
            session.attach(attach)
            self._sessions[key] = session
            return
        known.resume(attach, link)
        self._forget_links_of(known)
        self._by_connection[link] = known
        _log.info("%s is back, from %s", link.peer, link.remote)

    def on_closed(self, link: Link, reason: str) -> None:
        """Note that a connection closed; its session may continue on another one."""
        self.allowances.end(link)
        session = self._by_connection.pop(link, None)
        if session is not None:
            session.on_connection_closed(reason)

    def _on_session_end(self, session: HolderSession, reason: str) -> None:
        self._sessions.pop((session.peer, session.session), None)
        self._forget_links_of(session)
        self._on_end(session, reason)

    def _forget_links_of(self, session: HolderSession) -> None:
        for link in [link for link, carried in self._by_connection.items() if carried is session]:
            del self._by_connection[link]

    # Callbacks of links that arrive (transport.handler.ControlGuard)

    def on_control_begins(self, link: Link, total: int) -> None:
        """Refuse a message that is too large for its sender."""
        self.allowances.begin(link, link.peer, total, time.monotonic())

    def on_control_head(self, link: Link, head: bytes, total: int) -> None:
        """Refuse a message that is too large for its kind, before the rest of it arrives."""
        self.allowances.check_kind(head, total)

    def on_control_ends(self, link: Link) -> None:
        """Note that a message is complete."""
        self.allowances.end(link)

    def drop_overdue(self) -> None:
        """Close links whose message does not get complete."""
        for link in self.allowances.overdue(time.monotonic()):
            assert isinstance(link, Link)
            self.allowances.end(link)
            link.cut_off("the message that you began was not complete in time")
