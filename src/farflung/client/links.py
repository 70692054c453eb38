"""The submitter's control link to the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from farflung.errors import ProtocolError
from farflung.protocol.messages import Message, ToSubmitter, decode
from farflung.transport.endpoint import Hello, Link, Peer, dial
from farflung.transport.headers import DataHeader
from farflung.transport.identity import Identity
from farflung.transport.names import BROKER_ID
from farflung.transport.timeouts import Timeouts


def hello(identity: Identity, kind: Literal["control", "data"]) -> Hello:
    """What this process says first on a connection."""
    return Hello(id=identity.id, role=identity.role, kind=kind)


@dataclass(frozen=True)
class Lost:
    """A link is gone: `peer` is a worker's id, or `broker`."""

    peer: str
    reason: str


class BrokerHandler:
    """Passes on what the broker says."""

    def __init__(self, hear: Callable[[Message | Lost], None]) -> None:
        self._hear = hear

    def control(self, link: Link, message: bytes) -> None:
        self._hear(decode(message, ToSubmitter))

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        raise ProtocolError("the broker sent data: it only ever sends control messages")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        raise AssertionError("nothing was opened")

    def closed(self, link: Link, reason: str) -> None:
        self._hear(Lost(BROKER_ID, reason))


async def dial_broker(identity: Identity, timeouts: Timeouts, hear: Callable[[Message | Lost], None]) -> Link:
    """The control link to the broker that the identity joined.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, or is another one.
    """
    return await dial(
        identity.broker,
        identity.client_context(),
        hello(identity, "control"),
        Peer(BROKER_ID, "broker"),
        BrokerHandler(hear),
        timeouts,
    )
