"""The submitter's control link to the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from farflung.protocol import dialling
from farflung.protocol.broker_line import BrokerLine
from farflung.protocol.messages import Message, ToSubmitter
from farflung.transport.endpoint import Handler, Hello, Link
from farflung.transport.identity import Identity
from farflung.transport.names import BROKER_ID
from farflung.transport.timeouts import Timeouts

log = logging.getLogger("farflung.client")


def hello(identity: Identity, kind: Literal["control", "data"]) -> Hello:
    """What this process says first on a connection."""
    return Hello(id=identity.id, role=identity.role, kind=kind)


@dataclass(frozen=True)
class Lost:
    """A link is gone: `peer` is a worker's id, or `broker`."""

    peer: str
    reason: str


class _Ears:
    """Passes on what the broker says."""

    def __init__(self, hear: Callable[[Message | Lost], None]) -> None:
        self._hear = hear

    def told(self, message: Message) -> None:
        self._hear(message)

    def back(self) -> None:
        log.warning("linked to the broker again")

    def lost(self, reason: str) -> None:
        self._hear(Lost(BROKER_ID, reason))


async def dial_broker(
    identity: Identity, timeouts: Timeouts, hear: Callable[[Message | Lost], None]
) -> BrokerLine:
    """A line to the broker that the identity joined.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, or is another one.
    """

    async def dialled(handler: Handler) -> Link:
        return await dialling.dial_broker(identity, handler, timeouts)

    line = BrokerLine(ToSubmitter, _Ears(hear), dialled)
    await line.open()
    return line
