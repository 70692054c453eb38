"""A relay passes bytes on between two peers that both reach it but not each other.

The bytes are the peers' TLS stream, for which the relay has no key: it sees ciphertext and sizes.

A token bucket, without a clock, limits the rate.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time

from farflung.transport.net.sockets import limit_unsent
from farflung.transport.relay.circuits import JOINED, MAXIMUM_CIRCUITS, UNKNOWN, Circuit, CircuitTable
from farflung.transport.timeouts import CHUNK_SECONDS, Timeouts

BURST_SECONDS = 0.05


class TokenBucket:
    """Allows `bytes_per_second` for all its users, with bursts of what 50 ms would carry."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = float("-inf")

    def take(self, count: int, now: float) -> float:
        """Take `count` bytes at time `now` (seconds); returns the seconds to wait before sending them."""
        self._free_at = max(self._free_at, now - BURST_SECONDS) + count / self._bytes_per_second
        return max(0.0, self._free_at - now)


_log = logging.getLogger("farflung.transport")

_SMALLEST_PIECE, _LARGEST_PIECE = 2**14, 2**16


class Relay:
    """Carries circuits within one common rate; a listener passes it the connections that begin with a token.

    Parameters
    ----------
    bytes_per_second
        For all circuits together, each byte counted once.
    timeouts
        How long a side may wait for the other.
    """

    def __init__(self, bytes_per_second: float, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._bucket = TokenBucket(bytes_per_second)
        self._piece = round(min(_LARGEST_PIECE, max(_SMALLEST_PIECE, CHUNK_SECONDS * bytes_per_second)))
        self._table = CircuitTable()
        self._waiting: dict[bytes, socket.socket] = {}
        self._open: set[asyncio.Task[None]] = set()

    @property
    def circuits(self) -> int:
        """The number of circuits that are open now."""
        return len(self._open)

    def grant(self, label: str, tokens: tuple[bytes, bytes], byte_quota: int) -> None:
        """Expect the two sides of a circuit from now on, for `timeouts.circuit_seconds`."""
        deadline = time.monotonic() + self._timeouts.circuit_seconds
        self._hang_up(self._table.grant(Circuit(label, tokens, byte_quota, deadline)))
        asyncio.get_running_loop().call_later(2 * self._timeouts.circuit_seconds, self._expire)

    def admit(self, token: bytes, connection: socket.socket) -> None:
        """Take over a connection that sent a token."""
        circuit = self._table.show(token, time.monotonic())
        if circuit is None:
            _refuse(connection)
            return
        partner = self._waiting.pop(circuit.other(token), None)
        if partner is None:
            self._waiting[token] = connection
            return
        if len(self._open) >= MAXIMUM_CIRCUITS:
            _refuse(partner)
            _refuse(connection)
            return
        task = asyncio.get_running_loop().create_task(self._carry(circuit, partner, connection))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """Close all connections."""
        self._hang_up(list(self._waiting))
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _expire(self) -> None:
        self._hang_up(self._table.expire(time.monotonic()))

    def _hang_up(self, tokens: list[bytes]) -> None:
        for token in tokens:
            if connection := self._waiting.pop(token, None):
                connection.close()

    async def _carry(self, circuit: Circuit, a: socket.socket, b: socket.socket) -> None:
        _log.info("circuit %s: open", circuit.label)
        for end in (a, b):
            # Bytes that wait here are lost with either side and sent again, and nothing overtakes them.
            limit_unsent(end, self._piece)
        pumps = [asyncio.create_task(self._pump(circuit, *ends)) for ends in ((a, b), (b, a))]
        ending = "both sides hung up"
        try:
            _send_answer(a, JOINED)
            _send_answer(b, JOINED)
            done, rest = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if rest:  # let the last bytes of one side, and the answer to them, pass
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
                raise _QuotaSpent("it has carried all the bytes that its plan can need")
            if (pause := self._bucket.take(count, time.monotonic())) > 0:
                await asyncio.sleep(pause)
            await loop.sock_sendall(target, memory[:count])
        target.shutdown(socket.SHUT_WR)


def _refuse(connection: socket.socket) -> None:
    _send_answer(connection, UNKNOWN)
    connection.close()


class _QuotaSpent(Exception):
    pass


def _send_answer(connection: socket.socket, answer: bytes) -> None:
    try:
        connection.send(answer)
    except OSError:
        pass  # it is gone, as the next read shows
