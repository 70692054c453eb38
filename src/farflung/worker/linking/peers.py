"""The data links of a worker: which peers are admitted, what they may send, and where it goes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol import messages
from farflung.protocol.messages import AskBase, Claim, Load, Message, Pull, Welcome
from farflung.protocol.sessions import BaseLacking, BaseList
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.state import StateKey
from farflung.transport.link.governor import Governor
from farflung.transport.link.link import Link
from farflung.transport.link.session import Session
from farflung.transport.wire.headers import DataHeader, SliceHeader, ValueHeader, slices
from farflung.worker.computing.outcomes import Outgoing
from farflung.worker.computing.replay_sides import ReplaySides
from farflung.worker.computing.state_receiver import EMPTY, StateReceiver
from farflung.worker.linking.intake import Deliver, Intake
from farflung.worker.linking.pending_links import PendingLinks
from farflung.worker.step_watch import StepWatch
from farflung.worker.storing.copying import Copying

NOTHING = Coded(0, EMPTY)


class PeerEvents(Protocol):
    """Callbacks for events of data links; all calls are made on the event loop."""

    def peer_linked(self, peer: str) -> None:
        """A data link to `peer` is up, for the first time in this attempt or again."""

    def peer_disconnected(self, peer: str, reason: str) -> None:
        """That link is lost; the session with `peer` continues if another link is made in time."""

    def peer_lost(self, peer: str, reason: str) -> None:
        """That link is lost for good, or could not be made."""

    def state_arrived(self) -> None:
        """The whole state has been received, but not verified."""

    def base_listed(self, peer: str, base: BaseList) -> None:
        """`peer` names pieces of the state that this worker may have; ProtocolError if it may not."""


@dataclass(frozen=True)
class _Dialled:
    """A dialled link, the session's `number`th, that has sent its claim and is not welcomed yet."""

    number: int
    settled: asyncio.Event


class Peers:
    """Sessions of the current attempt, and links that wait because their attempt is not known here yet.

    When a link is lost, its session continues over another one: both sides say what they have received, and
    only the rest is sent again. The plan's window bounds the memory for that.

    The side that dials first says for which attempt. Its plan may arrive before ours does, so the link waits
    until that attempt is ours and admits its holder; until then it may send nothing. `allocate` returns the
    memory into which a value is received.

    `replays` is this worker's part in a replay, `watch` notes when values arrive.
    """

    def __init__(self, events: PeerEvents, allocate: Callable[[int], memoryview]) -> None:
        self._events = events
        self.watch = StepWatch()
        self._intake = Intake(allocate, events.state_arrived, self.watch)
        self.replays = ReplaySides()
        self._pending = PendingLinks(self._close)
        self._dialled: dict[Link, _Dialled] = {}
        self._links: dict[str, Link] = {}
        self._sessions: dict[str, Session] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._load: Load | None = None
        self._admitted: frozenset[str] = frozenset()
        self._governor = Governor(time.monotonic)
        self._sent_by_closed: Counter[str] = Counter()
        self._state_by_closed = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._removed: dict[str, str] = {}

    def admit(self, worker: str, load: Load, receiver: StateReceiver | None, peers: frozenset[str]) -> None:
        """Begin an attempt: admit links of `peers` from now on.

        Without a `receiver` the worker has its state already.
        """
        self._loop, self._worker = asyncio.get_running_loop(), worker
        self._load, self._admitted = load, peers
        self._intake.begin(worker, load, receiver)
        self.replays.begin(worker, load, keeps=receiver is None)
        self._welcome_due()

    def admit_also(self, peers: frozenset[str]) -> None:
        """Admit links of these peers from now on; the attempt goes on."""
        self._admitted = peers
        self._welcome_due()

    def _welcome_due(self) -> None:
        for link in self._pending.links:
            try:
                self._welcome_if_due(link)
            except ProtocolError as error:
                self._pending.remove(link)
                self._close(link, str(error))

    def dismiss(self, reason: str) -> None:
        """End the attempt and close its links."""
        self._load, self._admitted = None, frozenset()
        self._intake.end()
        self.replays.end()
        over = [*self._links.values(), *self._dialled]
        sessions, self._sessions = self._sessions, {}
        self._links, self._dialled = {}, {}
        for session in sessions.values():
            session.close()
        for link in over:
            self._close(link, reason)

    def expel(self, removed: Mapping[str, str]) -> list[str]:
        """Close all links with members that the fleet has removed, for these reasons, and accept none.

        Returns those with which there was a link of the attempt.
        """
        self._removed.update(removed)
        linked = []
        for peer in removed.keys() & {*self._links, *(link.peer.id for link in self._dialled)}:
            self._forget_dialled(peer, removed[peer])
            if current := self._links.get(peer):
                self._detach(current)
                self._close(current, removed[peer])
            linked.append(peer)
        for link in [link for link in self._pending.links if link.peer.id in removed]:
            self._pending.remove(link)
            self._close(link, removed[link.peer.id])
        return sorted(linked)

    def allow(self, member: str) -> None:
        """Accept links again of a member that had been removed."""
        self._removed.pop(member, None)

    def forget_removed(self) -> None:
        """Accept links of all members: the broker is about to name those that are removed now."""
        self._removed.clear()

    def require_member(self, peer: str) -> None:
        """Raise ProtocolError if a peer was removed from the fleet."""
        if peer in self._removed:
            raise ProtocolError(f"{peer} {self._removed[peer]}")

    def give_up(self, peer: str) -> None:
        """Stop keeping messages for `peer`, and stop waiting for its welcome."""
        self._forget_dialled(peer, "it was given up")
        self.replays.unlinked(peer)
        if session := self._sessions.pop(peer, None):
            session.close()

    def trust(self) -> None:
        """Accept values, because the programs and the plan's sizes are verified."""
        self._intake.verified = True

    def advance(self) -> None:
        """Go on to the next unit, because the current one is decided."""
        if self._intake.admission is not None:
            self._intake.admission.advance()

    def begin_replay(self) -> None:
        """Pull what was sent in the units of the load's history, now that the state is restored."""
        self.replays.restored()
        self._pull()

    def advance_replay(self) -> None:
        """Go on to the next unit of the load's history."""
        self.advance()
        self.replays.advance()
        self._pull()

    def _pull(self) -> None:
        for peer, pull in self.replays.due(self._worker, set(self._sessions)):
            self._sessions[peer].send_control(messages.encode(pull))

    def _on_pull(self, peer: str, pull: Pull) -> None:
        for parcel in self.replays.served(peer, pull):
            self._post(parcel, peer, is_answered=not self.replays.is_checker(peer))

    @property
    def bytes_sent(self) -> int:
        """Bytes sent over data links since the worker started, including framing, without state."""
        return self._sent_by_closed.total() + sum(map(_values_sent, self._links.values()))

    @property
    def state_bytes_sent(self) -> int:
        """Bytes of copies and other state sent since the worker started, including framing."""
        return self._state_by_closed + sum(link.state_bytes_sent for link in self._links.values())

    def bytes_sent_to(self, peer: str) -> int:
        """Bytes sent to one peer since the worker started, including framing, without state."""
        link = self._links.get(peer)
        return self._sent_by_closed[peer] + (0 if link is None else _values_sent(link))

    def rate_from(self, peer: str) -> float | None:
        """Rate of the link from a peer in bytes per second, as seen in recent traffic; None if unknown."""
        link = self._links.get(peer)
        return None if link is None else link.recent_bytes_per_second

    @property
    def links(self) -> list[Link]:
        """The links of the current attempt."""
        return list(self._links.values())

    def accept(self, link: Link) -> Peers:
        """Accept a link that a peer dialled; ProtocolError if it is not for data or too many links wait."""
        if link.kind not in ("data", "reverse") or link.peer.role not in ("worker", "submitter"):
            raise ProtocolError("a worker's port takes data links of workers and submitters")
        self._pending.add(link)
        return self

    def is_linked(self, peer: str) -> bool:
        """Whether there is a link to `peer`."""
        return peer in self._links

    def dialled(self, link: Link) -> asyncio.Event:
        """Take a link that this worker dialled; it is used once the peer welcomes it.

        The returned event is set when the link is welcomed or closed.
        """
        settled = asyncio.Event()
        if (load := self._load) is None:
            settled.set()
            return settled
        self._drop_older(link.peer.id)
        session = self._sessions.setdefault(link.peer.id, Session(secrets.token_hex(16)))
        number = session.next_number()
        self._dialled[link] = _Dialled(number, settled)
        claim = Claim(load.job, load.attempt, session.nonce, number, session.number, session.receipt)
        link.send_control(messages.encode(claim))
        return settled

    def deliver_to(self, deliver: Deliver) -> None:
        """Call `deliver` with each value or gradient that has been received completely."""
        self._intake.deliver = deliver

    def copies_to(self, copies: Copying) -> None:
        """Pass slices of copies on to `copies`."""
        self._intake.copies = copies

    async def send_slice(self, peer: str, header: SliceHeader, buffer: memoryview) -> None:
        """Send a slice to a peer, and wait until it has left; ConnectionFailed if there is no link."""
        session = self._sessions.get(peer)
        if session is None:
            raise ConnectionFailed(f"there is no link to {peer}")
        await session.send(header, buffer)

    def ask_base(self, peer: str, message: AskBase) -> None:
        """Ask a peer for the base of a copy that it sent; nothing if there is no link."""
        if session := self._sessions.get(peer):
            session.send_control(messages.encode(message))

    def send_from_thread(self, outgoing: Outgoing) -> None:
        """Send a parcel from the compute or codec thread; it is dropped if its attempt is over."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the worker is shutting down
                self._loop.call_soon_threadsafe(self._send, outgoing)

    def _send(self, outgoing: Outgoing) -> None:
        load = self._load
        if load is not None and outgoing.attempt == load.key:
            self.send_parcel(outgoing.parcel, outgoing.peer)

    def send_parcel(self, parcel: Parcel[Coded], peer: str) -> None:
        """Queue a value or gradient for a peer; it is only logged if the peer is lost (already reported)."""
        if self._load is not None and self.replays.sends(parcel, peer):
            self._post(parcel, peer)

    def part(self, peer: str, reason: str) -> None:
        """Close the link with a peer that is not needed for the attempt, and forget their session."""
        if current := self._links.get(peer):
            self._detach(current)
            self._close(current, reason)
        self.give_up(peer)

    def _post(self, parcel: Parcel[Coded], peer: str, is_answered: bool = True) -> None:
        if (load := self._load) is None or (session := self._sessions.get(peer)) is None:
            return
        codec, buffer = parcel.payload if parcel.payload is not None else NOTHING
        header = ValueHeader(
            load.job, load.attempt, parcel.unit, parcel.microbatch, parcel.source, parcel.target,
            parcel.value, parcel.gradient, codec, len(buffer), parcel.bucket,
        )  # fmt: skip
        if self._intake.admission is not None and is_answered:
            self._intake.admission.on_sent(header)
        session.post(header, buffer)

    def send_state(
        self,
        segment: int,
        key: StateKey,
        whole: memoryview,
        sha256: bytes,
        unit: int | None = None,
        peer: str | None = None,
    ) -> None:
        """Queue one piece of a segment's state for `peer`, or the submitter; `unit` as in `SliceHeader`."""
        load = self._load
        if load is None or (session := self._sessions.get(peer or load.submitter)) is None:
            return
        for offset, size in slices(len(whole)):
            header = SliceHeader(
                load.job, load.attempt, segment, key.name, offset, size, len(whole), sha256, key.slot, unit
            )
            session.post(header, whole[offset : offset + size])

    def tell_submitter(self, message: Message) -> None:
        """Send a control message to the submitter, once and in order; dropped if it is lost."""
        if (load := self._load) is not None and (session := self._sessions.get(load.submitter)) is not None:
            session.send_control(messages.encode(message))

    # transport.link.Handler

    def control(self, link: Link, message: bytes) -> None:
        """Handle a claim (of the side that dialled), a welcome (of the other), or what a peer asks for."""
        decoded = messages.decode(message, messages.FromPeer)
        if isinstance(decoded, Claim):
            self._pending.claim(link, decoded)
            self._welcome_if_due(link)
            return
        if isinstance(decoded, Pull):
            self._on_pull(link.peer.id, decoded)
            return
        if isinstance(decoded, AskBase):
            if self._intake.copies is not None:
                self._intake.copies.asked(link.peer.id, decoded)
            return
        load = self._load
        if isinstance(decoded, BaseList):
            if load is not None and (decoded.job, decoded.attempt) == (load.job, load.attempt):
                self._events.base_listed(link.peer.id, decoded)
            return
        if isinstance(decoded, BaseLacking):
            raise ProtocolError(f"{link.peer.id} asks for base weights, which only a submitter gives")
        if load is None or link not in self._dialled:
            raise ProtocolError("found a welcome for a link that was not dialled from here")
        if (decoded.job, decoded.attempt) != (load.job, load.attempt):
            raise ProtocolError(
                f"found a welcome for attempt {decoded.attempt} of job {decoded.job}, not for ours"
            )
        awaited = self._dialled.pop(link)
        session = self._sessions[link.peer.id]
        session.exchange_receipts(awaited.number, session.number, decoded.received)
        awaited.settled.set()
        self._attach(link, session, awaited.number)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        """Memory for a message that the plan expects from this peer; None if its attempt or unit is over."""
        if self._links.get(link.peer.id) is not link or self._load is None:
            if self._load is None:
                return None
            raise ProtocolError(f"{link.peer.id} sent data before it was welcomed")
        return self._intake.opening(link.peer.id, header)

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """Pass on a message that was received completely."""
        if self._links.get(link.peer.id) is link:
            self._intake.complete(link.peer.id, header, buffer)

    def closed(self, link: Link, reason: str) -> None:
        """Report the loss of a link that is in use."""
        self._pending.remove(link)
        awaited = self._dialled.pop(link, None)
        peer = link.peer.id
        if self._links.get(peer) is link:
            self._detach(link)
        elif awaited is None:
            return
        else:
            awaited.settled.set()
            if self._sessions[peer].number:  # the side that dials again has its own deadline
                return
            reason = f"it did not welcome the link: {reason}"
        if link.cause == "closed":
            self.give_up(peer)
            self._events.peer_lost(peer, reason)
        else:
            self._events.peer_disconnected(peer, reason)

    async def close(self, reason: str) -> None:
        """Close every link and wait for it."""
        self.dismiss(reason)
        for link in self._pending.links:
            self._close(link, reason)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _welcome_if_due(self, link: Link) -> None:
        if claim := self._pending.pop_due(link, self._load, self._admitted):
            self._welcome(link, claim)

    def _welcome(self, link: Link, claim: Claim) -> None:
        session = self._sessions.get(link.peer.id) or Session(claim.session)
        if session.nonce != claim.session:
            raise ProtocolError(f"{link.peer} was restarted, so its state of this attempt is lost")
        received = session.exchange_receipts(claim.number, claim.previous, claim.received)
        self._sessions[link.peer.id] = session
        link.send_control(messages.encode(Welcome(claim.job, claim.attempt, received)))
        self._attach(link, session, claim.number)

    def _attach(self, link: Link, session: Session, number: int) -> None:
        peer = link.peer.id
        self._drop_older(peer)
        self._links[peer] = link
        link.govern(self._governor)
        session.carry(link, number)
        self._pull()
        self._events.peer_linked(peer)

    def _drop_older(self, peer: str) -> None:
        # What a link has received must not change any more once a claim or a welcome has reported it.
        superseded = "superseded by a newer connection"
        self._forget_dialled(peer, superseded)
        if current := self._links.get(peer):
            self._detach(current)
            current.abandon(superseded)

    def _forget_dialled(self, peer: str, reason: str) -> None:
        for link in [link for link in self._dialled if link.peer.id == peer]:
            self._dialled.pop(link).settled.set()
            link.abandon(reason)

    def _detach(self, link: Link) -> None:
        """Detach the link from its session; unfinished messages will arrive over another link."""
        del self._links[link.peer.id]
        self._count(link)
        self._sessions[link.peer.id].on_link_lost()
        self._intake.retract(link.peer.id, link.unfinished)

    def _count(self, link: Link) -> None:
        self._sent_by_closed[link.peer.id] += _values_sent(link)
        self._state_by_closed += link.state_bytes_sent

    def _close(self, link: Link, reason: str) -> None:
        self._count(link)
        self._spawn(link.close(reason))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _values_sent(link: Link) -> int:
    return link.bytes_sent - link.state_bytes_sent
