"""The routes to a peer, their order, and how failed ones are explained to users. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Route = Literal["direct", "reverse", "relay"]
ROUTES: tuple[Route, ...] = get_args(Route)
LONGEST_REASON = 400
HELPS = ". What helps: "
_RELAYED = "relay through "

_WORDS: dict[Route, str] = {"direct": "dialled", "reverse": "asked to dial back", "relay": "over a relay"}


@dataclass(frozen=True)
class FailedRoute:
    """A route that failed."""

    route: Route
    reason: str


def route_order(last: Route | None) -> tuple[Route, ...]:
    """The order in which routes are tried: first the `last` one that worked."""
    return ROUTES if last is None else (last, *(route for route in ROUTES if route != last))


def relay_path(relay: str) -> str:
    """The path of a link through a relay (a worker's id, or `broker`)."""
    return f"{_RELAYED}{relay}"


def is_relayed(path: str) -> bool:
    """Whether a path leads through a relay."""
    return path.startswith(_RELAYED)


def describe_failures(tried: Sequence[FailedRoute]) -> str:
    """Describe failed routes, as a part of a sentence; empty if there are none."""
    return "; ".join(f"{_WORDS[one.route]}: {one.reason[:LONGEST_REASON]}" for one in tried)


def split_failures(text: str) -> list[str]:
    """Split a message that contains the text of `describe_failures` into one entry per route."""
    routes = "|".join(_WORDS.values())
    tried, _, _ = text.partition(HELPS)
    return re.findall(rf"(?:^|[;:] )((?:{routes}): .*?)(?=; (?:{routes}): |$)", tried, re.DOTALL)


def advice(ports: Mapping[str, int]) -> str:
    """Advise users how to make peers reachable.

    `ports` maps the ids of peers that could not be dialled to their ports, 0 if unknown; opening one of them
    is enough.
    """
    openings = [
        f"{f'TCP port {port}' if port else 'a TCP port'} through to {name}" for name, port in ports.items()
    ]
    opening = " or ".join(openings) or "a worker's TCP port through"
    return (
        f"let {opening} (join --listen '[::]:PORT' fixes it, --advertise HOST:PORT gives its address),"
        " or let a relay carry the link (join --relay MBPS on a reachable machine, or broker --relay MBPS)"
    )
