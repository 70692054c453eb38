"""The ways to a peer, their order, and what to tell a user of those that failed. No sockets and no clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Route = Literal["direct", "reverse", "relay"]
WAYS: tuple[Route, ...] = get_args(Route)
LONGEST_REASON = 400
HELPS = ". What helps: "
_RELAYED = "relay through "

_WORDS: dict[Route, str] = {"direct": "dialled", "reverse": "asked to dial back", "relay": "over a relay"}


@dataclass(frozen=True)
class Tried:
    """A way that led nowhere."""

    way: Route
    reason: str


def order(last: Route | None) -> tuple[Route, ...]:
    """Which way is tried when, each once: first the one by which a lost link stood."""
    return WAYS if last is None else (last, *(way for way in WAYS if way != last))


def relayed(relay: str) -> str:
    """The path of a link through a relay (a worker's id, or `broker`)."""
    return f"{_RELAYED}{relay}"


def is_relayed(path: str) -> bool:
    """Whether a link's path leads through a relay."""
    return path.startswith(_RELAYED)


def told(tried: Sequence[Tried]) -> str:
    """What failed, for a sentence; nothing if nothing did."""
    return "; ".join(f"{_WORDS[one.way]}: {one.reason[:LONGEST_REASON]}" for one in tried)


def parts(told: str) -> list[str]:
    """What `told` put into one sentence, whatever was said around it, a way each."""
    ways = "|".join(_WORDS.values())
    tried, _, _ = told.partition(HELPS)
    return re.findall(rf"(?:^|[;:] )((?:{ways}): .*?)(?=; (?:{ways}): |$)", tried, re.DOTALL)


def advice(closed: Mapping[str, int]) -> str:
    """What users can do so that peers reach each other.

    `closed` are the ids of those who could not be dialled and the ports on which they listen, 0 if unknown;
    it is enough if one of them opens it.
    """
    doors = [
        f"{f'TCP port {port}' if port else 'a TCP port'} through to {name}" for name, port in closed.items()
    ]
    opening = " or ".join(doors) or "a worker's TCP port through"
    return (
        f"let {opening} (join --listen '[::]:PORT' fixes it, --advertise HOST:PORT tells where it is),"
        " or let a relay carry the link (join --relay MBPS on a reachable machine, or broker --relay MBPS)"
    )
