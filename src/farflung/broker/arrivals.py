"""What arrives at a broker over sessions, and the events of the state machine that it becomes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from farflung.broker.core import events
from farflung.broker.network.worker_addresses import WorkerAddresses, worker_addresses
from farflung.broker.sessions import Caller, HolderSession, Origin, SessionRegistry
from farflung.errors import ProtocolError
from farflung.protocol.fields import one_line
from farflung.protocol.membership import Drain, Leaving
from farflung.protocol.messages import (
    AskCircuit,
    AskReverse,
    Broken,
    Cancel,
    CheckBegun,
    Checked,
    Collected,
    Copied,
    CopyLost,
    Keep,
    Kept,
    Loaded,
    Measured,
    Message,
    Moved,
    NotReached,
    Refused,
    Register,
    Return,
    Stalled,
    Submit,
    UnitReady,
)
from farflung.transport.timeouts import Timeouts


@dataclass(frozen=True)
class Generation:
    """Which start of a broker this is, by the epoch of its store; `seal` proves it within the fleet."""

    number: int
    seal: bytes


FIRST = Generation(0, b"")


@dataclass(frozen=True)
class Closed:
    """The session ended, for this reason."""

    reason: str


@dataclass(frozen=True)
class Arrival:
    """A message from `origin` or the end of that session, or an event without one.

    What a `Caller` may ask for are events and `Drain`.
    """

    origin: Origin | None
    content: Message | Closed | events.Event


def events_of(
    arrival: Arrival,
    sessions: SessionRegistry,
    timeouts: Timeouts,
    now: float,
    broker: Generation = FIRST,
    alarm: str = "",
) -> Iterator[events.Event]:
    """Convert an arrival at `broker` into events; `alarm` says why it takes no new jobs, if it does not.

    Raises
    ------
    ProtocolError
        A worker sent a message before it registered, it registered twice, or an address is invalid.
    """
    session, content = arrival.origin, arrival.content
    if isinstance(content, events.Event):
        yield content
        return
    assert session is not None
    if isinstance(content, Drain):
        yield events.LeaveAsked(now, content.worker, content.within_seconds, session.peer.id)
        return
    assert not isinstance(session, Caller)
    match content:
        case Closed(reason):
            yield from _end_events(session, reason, sessions, now)
        case Register():
            yield _register_event(session, content, sessions, timeouts, now, broker)
        case Moved(addresses):
            yield events.WorkerMoves(
                now, session.peer.id, _addresses_of(_require_registered(session, sessions), addresses)
            )
        case Measured():
            yield events.WorkerMeasures(now, _require_registered(session, sessions).peer.id, content)
        case AskReverse() | AskCircuit() if session.peer.role == "submitter":
            yield _submitter_event(session, content, sessions, timeouts, now)
        case (
            Loaded() | Refused() | UnitReady() | Broken() | Copied() | CopyLost() | CheckBegun() | Checked()
            | AskReverse() | AskCircuit() | NotReached()
        ):  # fmt: skip
            yield events.WorkerMessage(now, _require_registered(session, sessions).peer.id, content)
        case Leaving(within):
            yield events.LeaveAsked(now, _require_registered(session, sessions).peer.id, within)
        case Submit() | Return() | Stalled() | Keep() | Kept() | Collected() | Cancel():
            said = _submitter_event(session, content, sessions, timeouts, now)
            yield replace(said, alarm=alarm, draws=secrets.randbits(63))


def _submitter_event(
    session: HolderSession, content: Any, sessions: SessionRegistry, timeouts: Timeouts, now: float
) -> events.SubmitterMessage:
    silent = {
        job: time.monotonic() - owner.last_received_at
        for job, owner in sessions.held_elsewhere(session).items()
    }
    return events.SubmitterMessage(
        now,
        session.peer.id,
        content,
        session.remote,
        silent,
        timeouts.suspect_seconds,
        patience_seconds=timeouts.patience_seconds,
    )


def _end_events(
    session: HolderSession, reason: str, sessions: SessionRegistry, now: float
) -> Iterator[events.WorkerLeaves | events.SubmitterLeaves]:
    was_worker = sessions.is_worker(session)
    jobs = sessions.jobs_of(session)
    sessions.drop(session)
    if was_worker:
        yield events.WorkerLeaves(now, session.peer.id, reason)
    for job in jobs:
        yield events.SubmitterLeaves(now, job, reason)


def _register_event(
    session: HolderSession,
    register: Register,
    sessions: SessionRegistry,
    timeouts: Timeouts,
    now: float,
    broker: Generation,
) -> events.WorkerRegisters:
    replaced = sessions.workers.get(session.peer.id)
    if replaced is session:
        raise ProtocolError(f"worker {session.peer.id} registered twice over one connection")
    silent_seconds = None if replaced is None else time.monotonic() - replaced.last_received_at
    device = msgspec.structs.replace(
        register.device, name=one_line(register.device.name), kind=one_line(register.device.kind)
    )
    printable = msgspec.structs.replace(register, site=one_line(register.site), device=device)
    where = _addresses_of(session, register.addresses)
    return events.WorkerRegisters(
        now,
        session.peer.id,
        printable,
        where,
        silent_seconds,
        timeouts.suspect_seconds,
        broker.number,
        broker.seal,
    )


def _require_registered(session: HolderSession, sessions: SessionRegistry) -> HolderSession:
    if not sessions.is_worker(session):
        raise ProtocolError(f"worker {session.peer.id} must register before it sends other messages")
    return session


def _addresses_of(session: HolderSession, addresses: Sequence[str]) -> WorkerAddresses:
    if not addresses:
        raise ProtocolError(f"worker {session.peer.id} sent no address, so peers could not reach it")
    return worker_addresses(addresses, session.remote)
