"""What comes in over links, made into events of the state machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from farflung.broker import events
from farflung.broker.line import Line
from farflung.broker.switchboard import Switchboard
from farflung.broker.whereabouts import Whereabouts, whereabouts
from farflung.errors import ProtocolError
from farflung.protocol.fields import one_line
from farflung.protocol.messages import (
    AskCircuit,
    AskReverse,
    Broken,
    Cancel,
    Collected,
    Loaded,
    Message,
    Moved,
    NotReached,
    Refused,
    Register,
    Submit,
    UnitReady,
)
from farflung.transport.timeouts import Timeouts


@dataclass(frozen=True)
class Closed:
    """The line is gone, for this reason."""

    reason: str


@dataclass(frozen=True)
class Arrival:
    """A message, the end of a line, or an event that came over none."""

    origin: Line | None
    content: Message | Closed | events.Event


def events_of(
    arrival: Arrival, switchboard: Switchboard, timeouts: Timeouts, now: float
) -> Iterator[events.Event]:
    """The events that an arrival stands for.

    Raises
    ------
    ProtocolError
        A worker's message came before its registration, it registered twice, or an address is none.
    """
    line, content = arrival.origin, arrival.content
    if isinstance(content, events.Event):
        yield content
        return
    assert line is not None
    match content:
        case Closed(reason):
            yield from _departures(line, reason, switchboard, now)
        case Register():
            yield _registration(line, content, switchboard, timeouts, now)
        case Moved(addresses):
            yield events.WorkerMoves(now, line.peer.id, _where(_known(line, switchboard), addresses))
        case AskReverse() | AskCircuit() if line.peer.role == "submitter":
            yield events.SubmitterSays(now, line.peer.id, content, line.remote)
        case Loaded() | Refused() | UnitReady() | Broken() | AskReverse() | AskCircuit() | NotReached():
            yield events.WorkerSays(now, _known(line, switchboard).peer.id, content)
        case Submit() | Collected() | Cancel():
            yield events.SubmitterSays(now, line.peer.id, content, line.remote)


def _departures(
    line: Line, reason: str, switchboard: Switchboard, now: float
) -> Iterator[events.WorkerLeaves | events.SubmitterLeaves]:
    was_worker = switchboard.is_worker(line)
    jobs = switchboard.jobs_over(line)
    switchboard.drop(line)
    if was_worker:
        yield events.WorkerLeaves(now, line.peer.id, reason)
    for job in jobs:
        yield events.SubmitterLeaves(now, job, reason)


def _registration(
    line: Line, register: Register, switchboard: Switchboard, timeouts: Timeouts, now: float
) -> events.WorkerJoins:
    older = switchboard.workers.get(line.peer.id)
    if older is line:
        raise ProtocolError(f"worker {line.peer.id} registered twice over one connection")
    heard = None if older is None else time.monotonic() - older.last_heard
    device = msgspec.structs.replace(
        register.device, name=one_line(register.device.name), kind=one_line(register.device.kind)
    )
    plain = msgspec.structs.replace(register, site=one_line(register.site), device=device)
    where = _where(line, register.addresses)
    return events.WorkerJoins(now, line.peer.id, plain, where, heard, timeouts.suspect_seconds)


def _known(line: Line, switchboard: Switchboard) -> Line:
    if not switchboard.is_worker(line):
        raise ProtocolError(f"worker {line.peer.id} must register before it says anything else")
    return line


def _where(line: Line, addresses: Sequence[str]) -> Whereabouts:
    if not addresses:
        raise ProtocolError(f"worker {line.peer.id} gave no address: peers could not reach it")
    return whereabouts(addresses, line.remote)
