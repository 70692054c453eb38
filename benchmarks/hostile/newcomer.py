"""An honest worker that joins a fleet while this is attacked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from farflung.protocol import messages
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Register, Registered
from farflung.protocol.registration import Device
from farflung.transport.endpoint import Hello, Link, Peer, dial
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.names import BROKER_ID
from farflung.transport.security.tokens import Token
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader

LONGEST_SECONDS = 60.0
NO_MEMORY = Device("cpu", "a newcomer's", 1, 1, "2.13.0", Opset.own())
"""It offers so little memory that no job is placed on it: it leaves again at once."""


class _Waiting:
    """A handler that waits until the broker has registered the worker."""

    def __init__(self) -> None:
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def control(self, link: Link, message: bytes) -> None:
        if isinstance(messages.decode(message, messages.ToWorker), Registered) and not self.registered.done():
            self.registered.set_result(None)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        return None

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        pass

    def closed(self, link: Link, reason: str) -> None:
        if not self.registered.done():
            self.registered.set_exception(ConnectionError(reason))


def join_seconds(address: str, token: str, folder: Path) -> float:
    """How long a worker takes from its token to its registration; `LONGEST_SECONDS` if it is not let in.

    A refusal counts as waiting: the newcomer tries again until the time is over, as `farflung join` does.
    """
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < LONGEST_SECONDS:
        try:
            asyncio.run(_join(address, token, folder))
        except OSError:  # ConnectionFailed too
            time.sleep(0.2)
        else:
            return time.monotonic() - begin
    return took


async def _join(address: str, token: str, folder: Path) -> None:
    identity = (await enrol(address, Token.parse(token), folder, "worker", folder.name)).identity
    waiting, hello = _Waiting(), Hello(identity.id, identity.role, "control")
    expected = Peer(BROKER_ID, "broker")
    link = await dial(address, identity.client_context(), hello, expected, waiting, Timeouts())
    try:
        register = Register(NO_MEMORY, "nowhere", ["203.0.113.6:7001"], f"boot-{identity.id}")
        link.send_control(messages.encode(register))
        await asyncio.wait_for(waiting.registered, Timeouts().join_seconds)
    finally:
        await link.close("the newcomer leaves")
