"""A relay: carries bytes between two peers who reach it and not each other.

What passes is their own TLS session, for which the relay has no key: it sees ciphertext and sizes.

How much may pass by when: a token bucket, without a clock.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time

from farflung.transport.net.sockets import limit_unsent
from farflung.transport.relay.circuits import JOINED, MAXIMUM_CIRCUITS, UNKNOWN, Circuit, CircuitBook
from farflung.transport.timeouts import CHUNK_SECONDS, Timeouts

BURST_SECONDS = 0.05


class Allowance:
    """`bytes_per_second` for all who share it, with what 50 ms would have carried saved up."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = float("-inf")

    def take(self, count: int, now: float) -> float:
        """Take `count` bytes at time `now` (seconds); how many seconds to wait before they pass."""
        self._free_at = max(self._free_at, now - BURST_SECONDS) + count / self._bytes_per_second
        return max(0.0, self._free_at - now)


_log = logging.getLogger("farflung.transport")

_SMALLEST_PIECE, _LARGEST_PIECE = 2**14, 2**16


class Relay:
    """Carries circuits within one rate for all; a listener gives it the connections that show a token.

    Parameters
    ----------
    bytes_per_second
        For everything that passes, each byte counted once.
    timeouts
        How long a side may wait for the other.
    """

    def __init__(self, bytes_per_second: float, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._allowance = Allowance(bytes_per_second)
        self._piece = round(min(_LARGEST_PIECE, max(_SMALLEST_PIECE, CHUNK_SECONDS * bytes_per_second)))
        self._book = CircuitBook()
        self._waiting: dict[bytes, socket.socket] = {}
        self._open: set[asyncio.Task[None]] = set()

    @property
    def circuits(self) -> int:
        """How many are being carried now."""
        return len(self._open)

    def grant(self, label: str, tokens: tuple[bytes, bytes], byte_quota: int) -> None:
        """Expect the two sides of a circuit from now on, for `timeouts.circuit_seconds`."""
        deadline = time.monotonic() + self._timeouts.circuit_seconds
        self._hang_up(self._book.grant(Circuit(label, tokens, byte_quota, deadline)))
        asyncio.get_running_loop().call_later(2 * self._timeouts.circuit_seconds, self._expire)

    def admit(self, token: bytes, connection: socket.socket) -> None:
        """Take over a connection that showed a token."""
        circuit = self._book.show(token, time.monotonic())
        if circuit is None:
            _turn_away(connection)
            return
        partner = self._waiting.pop(circuit.other(token), None)
        if partner is None:
            self._waiting[token] = connection
            return
        if len(self._open) >= MAXIMUM_CIRCUITS:
            _turn_away(partner)
            _turn_away(connection)
            return
        task = asyncio.get_running_loop().create_task(self._carry(circuit, partner, connection))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """Hang up on everybody."""
        self._hang_up(list(self._waiting))
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _expire(self) -> None:
        self._hang_up(self._book.expire(time.monotonic()))

    def _hang_up(self, tokens: list[bytes]) -> None:
        for token in tokens:
            if connection := self._waiting.pop(token, None):
                connection.close()

    async def _carry(self, circuit: Circuit, a: socket.socket, b: socket.socket) -> None:
        _log.info("circuit %s: open", circuit.label)
        for end in (a, b):
            # What waits here is lost with either side, and sent again; and nothing overtakes it.
            limit_unsent(end, self._piece)
        pumps = [asyncio.create_task(self._pump(circuit, *ends)) for ends in ((a, b), (b, a))]
        ending = "both sides hung up"
        try:
            _say(a, JOINED)
            _say(b, JOINED)
            done, rest = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if rest:  # what one side said last still reaches the other, and its answer the first
                await asyncio.wait(rest, timeout=self._timeouts.close_seconds)
            ending = next((str(error) for pump in done if (error := pump.exception())), ending)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            a.close()
            b.close()
            _log.info("circuit %s: over (%s)", circuit.label, ending)

    async def _pump(self, circuit: Circuit, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        memory = memoryview(bytearray(self._piece))
        while count := await loop.sock_recv_into(source, memory):
            if not circuit.spend(count):
                raise _QuotaSpent("it has carried all that its plan can need")
            if (pause := self._allowance.take(count, time.monotonic())) > 0:
                await asyncio.sleep(pause)
            await loop.sock_sendall(target, memory[:count])
        target.shutdown(socket.SHUT_WR)


def _turn_away(connection: socket.socket) -> None:
    _say(connection, UNKNOWN)
    connection.close()


class _QuotaSpent(Exception):
    pass


def _say(connection: socket.socket, word: bytes) -> None:
    try:
        connection.send(word)
    except OSError:
        pass  # it is gone, which the next read tells
