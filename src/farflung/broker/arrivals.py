"""What comes in over links, made into events of the state machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from farflung.broker import events
from farflung.broker.switchboard import Switchboard
from farflung.broker.wording import one_line
from farflung.errors import ConnectionFailed, ProtocolError
from farflung.protocol.messages import (
    AskCircuit,
    AskReverse,
    Broken,
    Cancel,
    Collected,
    Loaded,
    Message,
    NotReached,
    Refused,
    Register,
    Submit,
    UnitReady,
)
from farflung.transport.addresses import format_address, parse_address
from farflung.transport.link import Link
from farflung.transport.timeouts import Timeouts

EVERY_INTERFACE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Closed:
    """The link is gone, for this reason."""

    reason: str


@dataclass(frozen=True)
class Arrival:
    """A message, the end of a link, or an event that came over none."""

    origin: Link | None
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
    link, content = arrival.origin, arrival.content
    if isinstance(content, events.Event):
        yield content
        return
    assert link is not None
    if isinstance(content, AskReverse):
        content = msgspec.structs.replace(content, addresses=reachable(content.addresses, link.remote))
    match content:
        case Closed(reason):
            yield from _departures(link, reason, switchboard, now)
        case Register():
            yield _registration(link, content, switchboard, timeouts, now)
        case AskReverse() | AskCircuit() if link.peer.role == "submitter":
            yield events.SubmitterSays(now, link.peer.id, content)
        case Loaded() | Refused() | UnitReady() | Broken() | AskReverse() | AskCircuit() | NotReached():
            if not switchboard.is_worker(link):
                raise ProtocolError(f"worker {link.peer.id} must register before it says anything else")
            yield events.WorkerSays(now, link.peer.id, content)
        case Submit() | Collected() | Cancel():
            yield events.SubmitterSays(now, link.peer.id, content)


def _departures(
    link: Link, reason: str, switchboard: Switchboard, now: float
) -> Iterator[events.WorkerLeaves | events.SubmitterLeaves]:
    was_worker = switchboard.is_worker(link)
    jobs = switchboard.jobs_over(link)
    switchboard.drop(link)
    if was_worker:
        yield events.WorkerLeaves(now, link.peer.id, reason)
    for job in jobs:
        yield events.SubmitterLeaves(now, job, reason)


def _registration(
    link: Link, register: Register, switchboard: Switchboard, timeouts: Timeouts, now: float
) -> events.WorkerJoins:
    older = switchboard.workers.get(link.peer.id)
    if older is link:
        raise ProtocolError(f"worker {link.peer.id} registered twice over one connection")
    if not register.addresses:
        raise ProtocolError(f"worker {link.peer.id} gave no address: peers could not reach it")
    heard = None if older is None else time.monotonic() - older.last_heard
    device = msgspec.structs.replace(
        register.device, name=one_line(register.device.name), kind=one_line(register.device.kind)
    )
    addresses = reachable(register.addresses, link.remote)
    seen = msgspec.structs.replace(register, addresses=addresses, site=one_line(register.site), device=device)
    return events.WorkerJoins(now, link.peer.id, seen, heard, timeouts.suspect_seconds)


def reachable(addresses: Sequence[str], seen_from: str) -> list[str]:
    """A worker's addresses as its peers can use them; one without a host is where the broker sees it.

    Raises
    ------
    ProtocolError
        One is no HOST:PORT.
    """
    found: list[str] = []
    try:
        here, _ = parse_address(seen_from)
        for address in addresses:
            host, port = parse_address(address)
            found.append(format_address(here if host in EVERY_INTERFACE else host, port))
    except ConnectionFailed as error:
        raise ProtocolError(f"a worker's address was refused: {error}") from None
    return list(dict.fromkeys(found))
