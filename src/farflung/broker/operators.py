"""What operators ask for that concerns members: lists, removals, and jobs that end early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from farflung.broker.arrivals import Arrival
from farflung.broker.core.records import State
from farflung.broker.core.trusting.events import AllowAsked, CancelAsked, RemovalAsked
from farflung.broker.dispatcher import Dispatcher
from farflung.broker.security.scopes import decode_scope
from farflung.broker.security.tokens import lets_in, token_id
from farflung.broker.sessions import Origin
from farflung.broker.storage.contract import BrokerStore, Holder
from farflung.errors import StoreError
from farflung.protocol import messages
from farflung.protocol.fields import one_line
from farflung.protocol.members import MemberStatus
from farflung.protocol.messages import AllowMember, AskMembers, CancelJob, Denied, Members, RemoveMember
from farflung.text import format_utc
from farflung.transport.security.certificates import certificate_from_pem
from farflung.transport.wire.frames import MAXIMUM_CONTROL_BYTES

OperatorMessage = AskMembers | RemoveMember | AllowMember | CancelJob


class Operators:
    """Answers operators. What changes the state goes through `dispatcher` as an event."""

    def __init__(self, dispatcher: Dispatcher, store: BrokerStore, clock: Callable[[], float]) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._clock = clock

    async def handle(self, session: Origin, message: OperatorMessage, connected: Collection[str]) -> None:
        """Handle one message of an operator, or of a submitter about its job; `connected` have sessions."""
        peer = session.peer
        match message:
            case AskMembers():
                await self._list(session, connected)
            case RemoveMember(member, reason):
                await self._remove(session, member, reason)
            case AllowMember(member):
                await self._allow(session, member)
            case CancelJob(job, reason, at_once):
                asked = CancelAsked(self._clock(), job, peer.role, peer.id, reason, at_once)
                self._dispatcher.put(Arrival(session, asked))

    async def _list(self, session: Origin, connected: Collection[str]) -> None:
        try:
            holders = await asyncio.to_thread(self._store.holders)
            found = await asyncio.to_thread(members_of, holders, self._dispatcher.state, connected)
            answer = messages.encode(Members(found))
        except StoreError as error:
            answer = messages.encode(Denied(one_line(str(error))))
        if len(answer) > MAXIMUM_CONTROL_BYTES:
            answer = messages.encode(Denied("the broker has too many members for one message"))
        session.send_control(answer)

    async def _remove(self, session: Origin, member: str, reason: str) -> None:
        try:
            if (holder := await self._holder(session, member)) is None:
                return
            token = await asyncio.to_thread(self._store.token, holder.token_digest)
        except StoreError as error:
            _deny(session, str(error))
            return
        now = self._clock()
        asked = RemovalAsked(
            now,
            member,
            holder.role,
            session.peer.id,
            reason,
            token_id(holder.token_digest),
            lets_in(token, now),
        )
        self._dispatcher.put(Arrival(session, asked))

    async def _allow(self, session: Origin, member: str) -> None:
        try:
            if await self._holder(session, member) is None:
                return
        except StoreError as error:
            _deny(session, str(error))
            return
        self._dispatcher.put(Arrival(session, AllowAsked(self._clock(), member, session.peer.id)))

    async def _holder(self, session: Origin, member: str) -> Holder | None:
        """The holder of that id; without any, the operator hears so."""
        holder = await asyncio.to_thread(self._store.holder, member)
        if holder is None:
            _deny(session, f"no member {member} has joined this broker: `farflung member list` shows them")
        return holder


def _deny(session: Origin, why: str) -> None:
    session.send_control(messages.encode(Denied(one_line(why))))


def members_of(holders: Iterable[Holder], state: State, connected: Collection[str]) -> list[MemberStatus]:
    """What there is to say of each holder; `connected` are those that have a session."""
    return [_status_of(holder, state, holder.id in connected) for holder in holders]


def _status_of(holder: Holder, state: State, is_connected: bool) -> MemberStatus:
    removal = state.removed.get(holder.id)
    removed = "" if removal is None else f"{removal.words} ({format_utc(removal.at)})"
    jobs = [
        job.job
        for job in state.jobs.values()
        if not job.over and (holder.id == job.submitter or holder.id in job.members)
    ]
    ends = certificate_from_pem(holder.certificate).not_valid_after_utc.timestamp()
    suspicion, sees = state.suspicions.get(holder.id), decode_scope(holder.scope)
    return MemberStatus(
        holder.id,
        holder.role,
        is_connected,
        removed,
        token_id(holder.token_digest),
        ends,
        jobs,
        0 if suspicion is None else suspicion.count,
        "" if suspicion is None else suspicion.words,
        state.is_suspended(holder.id),
        None if sees is None else sorted(sees),
    )
