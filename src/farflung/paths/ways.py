"""The ways to a peer, their order, and what to tell a user of those that failed. No sockets and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Way = Literal["direct", "reverse", "relay"]
WAYS: tuple[Way, ...] = get_args(Way)
LONGEST_REASON = 400

_WORDS: dict[Way, str] = {"direct": "dialled", "reverse": "asked to dial back", "relay": "over a relay"}


@dataclass(frozen=True)
class Tried:
    """A way that led nowhere."""

    way: Way
    reason: str


def order(last: Way | None) -> tuple[Way, ...]:
    """Which way is tried when, each once: first the one by which a lost link stood."""
    return WAYS if last is None else (last, *(way for way in WAYS if way != last))


def relayed(relay: str) -> str:
    """The path of a link through a relay (a worker's id, or `broker`)."""
    return f"relay through {relay}"


def told(tried: Sequence[Tried]) -> str:
    """What failed, for a sentence; nothing if nothing did."""
    return "; ".join(f"{_WORDS[one.way]}: {one.reason[:LONGEST_REASON]}" for one in tried)


def advice(port: int) -> str:
    """What a user can do so that peers reach each other; `port` is the one that listens here, or 0."""
    opening = f"let TCP port {port} through to this machine" if port else "let a worker's TCP port through"
    return (
        f"{opening} (join --listen '[::]:PORT' fixes it, --advertise HOST:PORT tells where it is reached),"
        " or let a relay carry the link (join --relay MBPS on a reachable machine, or broker --relay MBPS)"
    )
