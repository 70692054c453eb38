"""One connection to the broker, on which an attacker says what it likes, whole or not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from farflung.protocol import messages
from farflung.protocol.messages import Message
from farflung.transport.net.addresses import parse_address
from farflung.transport.security.identity import BROKER_NAME, Identity
from farflung.transport.wire.frames import (
    MAXIMUM_CHUNK_BYTES,
    PREFIX_BYTES,
    Close,
    Control,
    Frame,
    Hello,
    Ping,
    Pong,
    encode,
    read_header,
    read_prefix,
)

HUNG_UP = "the broker hung up"
MOST_REASONS = 8


class Tally(msgspec.Struct):
    """What an attacker tried, how often it was refused, and why: the first `MOST_REASONS` reasons."""

    tries: int = 0
    refused: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)

    def refuse(self, reason: str) -> None:
        """Count one refusal."""
        self.refused += 1
        if reason in self.reasons or len(self.reasons) < MOST_REASONS:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def add(self, other: Tally) -> None:
        """Count what another attacker has counted."""
        self.tries += other.tries
        self.refused += other.refused
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


@dataclass(frozen=True)
class Target:
    """The broker at HOST:PORT, and as whom it is attacked: a holder, or a stranger without a certificate."""

    address: str
    identity: Identity | None
    tally: Tally = field(default_factory=Tally)

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where it listens."""
        return parse_address(self.address)

    @property
    def holder(self) -> Identity:
        """As whom; only for attackers with a certificate."""
        assert self.identity is not None
        return self.identity


class RawLink:
    """A control link to the broker, greeted by a hello. Made by `open`; end it with `abort`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, at: Target, context: ssl.SSLContext) -> RawLink:
        """Dial the broker; OSError if it refuses."""
        host, port = at.host_and_port
        link = cls(*await asyncio.open_connection(host, port, ssl=context, server_hostname=BROKER_NAME))
        link._writer.write(encode(Hello(at.holder.id, at.holder.role, "control")))
        return link

    async def say(self, message: Message) -> None:
        """Send a whole message."""
        await self.send(messages.encode(message))

    async def send(self, data: bytes, total: int | None = None) -> None:
        """Send the first bytes of a message of `total` bytes, or a whole one; OSError if the link is over."""
        for offset in range(0, len(data), MAXIMUM_CHUNK_BYTES):
            if self._writer.is_closing():
                raise ConnectionResetError(HUNG_UP)
            chunk = data[offset : offset + MAXIMUM_CHUNK_BYTES]
            self._writer.write(encode(Control(offset, total or len(data)), len(chunk)) + chunk)
            await self._writer.drain()

    async def until_closed(self, hear: Callable[[bytes], None] | None = None) -> str:
        """Answer pings until the broker closes the link: why it did. `hear` gets each whole message."""
        message = bytearray()
        try:
            while True:
                frame, payload = await self._frame()
                if isinstance(frame, Close):
                    return frame.reason
                if isinstance(frame, Ping):
                    self._writer.write(encode(Pong(frame.stamp)))
                elif isinstance(frame, Control) and hear is not None:
                    message += payload
                    if len(message) >= frame.total:
                        hear(bytes(message))
                        message.clear()
        except (OSError, EOFError):
            return HUNG_UP

    def abort(self) -> None:
        """Hang up."""
        self._writer.transport.abort()

    async def _frame(self) -> tuple[Frame, bytes]:
        prefix = await self._reader.readexactly(PREFIX_BYTES)
        number, header_bytes, payload_bytes = read_prefix(memoryview(prefix))
        header = await self._reader.readexactly(header_bytes)
        return read_header(number, memoryview(header)), await self._reader.readexactly(payload_bytes)
