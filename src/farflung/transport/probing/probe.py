"""Measure the latency and bandwidth of a path.

The probing side sends random data, first a little and then as much as the path takes. The other side reports
arrivals by its own clock, so that no buffer at the sender can make a path look fast. Both sides may probe
over one link at the same time. They should then start together: if one side's questions wait behind the
other's data, it overestimates the latency.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from dataclasses import dataclass

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.link.link import Link
from farflung.transport.link.rate_estimator import Arrival, line_mbps
from farflung.transport.probing.estimator import ProbeEstimator
from farflung.transport.probing.messages import Answer, Done, Question, Report, decode, encode
from farflung.transport.timeouts import PROBE_SECONDS
from farflung.transport.wire.headers import DataHeader, ProbeHeader

MINIMUM_MESSAGE_BYTES = 4 * 2**10
MAXIMUM_MESSAGE_BYTES = 2**20
MAXIMUM_BYTES = 2**30
_FIRST_BYTES = 32 * 2**10
_GROWTH = 4
_MESSAGE_SECONDS = 0.005
_REPORT_SECONDS = 0.005
_QUESTION_SECONDS = 0.005
_QUESTIONING_SECONDS = 0.1
_LEAST_ANSWERS = 5
_LATEST_SHARE = 0.9
_POLL_SECONDS = 0.05

_DISCARDED = memoryview(bytearray(MAXIMUM_MESSAGE_BYTES))


@dataclass(frozen=True)
class PairEstimate:
    """The result of one probe of the path from this side to the peer.

    Attributes
    ----------
    latency_ms
        One way: half of the least round trip, because the two directions cannot be measured separately.
    bandwidth_mbps
        Of the line, packet headers included, as lines are sold; 0.965 of it is left for payload.
    bytes_sent
        Payload that the probe sent.
    seconds
        Duration of the probe.
    is_settled
        Whether the rate had stopped growing; if not, the path may be faster than the probe had time to show.
    """

    latency_ms: float
    bandwidth_mbps: float
    bytes_sent: int
    seconds: float
    is_settled: bool


class Prober:
    """The handler at either end of a link of kind `probe`.

    `peer_done` is set when the other side sends no more: it has said so, or the link is over.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._total_bytes = 0
        self._last: Arrival | None = None
        self._report: asyncio.TimerHandle | None = None
        self._probe: _Probe | None = None
        self.peer_done = asyncio.Event()

    @property
    def received_bytes(self) -> int:
        """How many bytes have arrived here."""
        return self._total_bytes

    @property
    def acked_bytes(self) -> int:
        """How many of this side's bytes the other side has reported as arrived."""
        return 0 if self._probe is None else self._probe.acked_bytes

    async def probe(
        self, link: Link, byte_limit: int = MAXIMUM_BYTES, seconds: float = PROBE_SECONDS
    ) -> PairEstimate:
        """Measure the path from here to the other end, within `seconds`.

        Sends at most 32 KiB plus five times what has arrived, never more than `byte_limit`, and stops as soon
        as the rate no longer grows.

        Raises
        ------
        ConnectionFailed
            The link was lost, or the other side did not answer in time.
        """
        probe = self._begin(link, byte_limit)
        try:
            estimate = await probe.run(seconds)
        finally:
            probe.stop()
        if link.reason is not None:
            raise ConnectionFailed(f"the path to {link.peer} could not be probed: {link.reason}")
        return estimate

    def fill(self, link: Link, byte_limit: int) -> None:
        """Send as fast as the other side reads, within the limits of `probe`, until `stop`."""
        self._begin(link, byte_limit).send()

    def stop(self, link: Link) -> None:
        """Stop sending, and report that to the other side."""
        if self._probe is not None:
            self._probe.stop()
        link.send_control(encode(Done()))

    def _begin(self, link: Link, byte_limit: int) -> _Probe:
        if self._probe is not None:
            raise ValueError("this side has already probed this link: open another link")
        self._probe = _Probe(link, byte_limit)
        return self._probe

    # handler.Handler

    def control(self, link: Link, message: bytes) -> None:
        """Answer a question; pass answers and reports to the probe."""
        decoded = decode(message)
        if isinstance(decoded, Question):
            link.send_control(encode(Answer(decoded.number)))
        elif isinstance(decoded, Done):
            self.peer_done.set()
        elif self._probe is not None:
            self._probe.on_message(decoded)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        """Let all messages share the same memory, which is never read."""
        if not isinstance(header, ProbeHeader):
            raise ProtocolError("expected only a probe's messages on this link")
        return _DISCARDED[: header.bytes]

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """Record the arrival; those within a few milliseconds are reported together, as the last one."""
        self._total_bytes += header.bytes
        self._last = Arrival(time.monotonic(), self._total_bytes)
        if self._report is None:
            self._report = self._loop.call_later(_REPORT_SECONDS, self._send_report, link)

    def closed(self, link: Link, reason: str) -> None:
        """Stop reporting; a probe that runs here checks the link by itself."""
        self.peer_done.set()
        if self._report is not None:
            self._report.cancel()

    def _send_report(self, link: Link) -> None:
        self._report = None
        assert self._last is not None
        link.send_control(encode(Report(self._last.seconds, self._last.total_bytes)))


class _Probe:
    """One side's probe over one link."""

    def __init__(self, link: Link, byte_limit: int) -> None:
        self._link = link
        self._byte_limit = byte_limit
        self._estimator = ProbeEstimator()
        self._payload = memoryview(os.urandom(MAXIMUM_MESSAGE_BYTES))
        self._asked: list[float] = []
        self._bytes_sent = 0
        self._unsent = 0
        self._is_sending = False

    async def run(self, limit_seconds: float) -> PairEstimate:
        started = time.monotonic()
        deadline = started + limit_seconds * _LATEST_SHARE
        await self._ask(started, deadline)
        if not self._estimator.answers and self._link.reason is None:
            raise ConnectionFailed(f"{self._link.peer} did not answer a probe within {limit_seconds:g} s")
        self._poll_kernel()
        self.send()
        await self._settle(deadline)
        rate, is_settled = self._estimator.bytes_per_second, self._estimator.is_settled
        if rate is None and self._link.reason is None:
            raise ConnectionFailed(
                f"too few bytes of a probe reached {self._link.peer} in {limit_seconds:g} s"
            )
        # A busy process answers questions late; if the kernel has measured the same path, it knows better.
        least = self._link.least_round_trip_seconds or math.inf
        latency_ms = min(self._estimator.round_trip_seconds, least) / 2 * 1e3
        seconds = time.monotonic() - started
        return PairEstimate(latency_ms, line_mbps(rate or 0.0), self._bytes_sent, seconds, is_settled)

    @property
    def acked_bytes(self) -> int:
        """How many bytes the other side has reported as arrived."""
        return self._estimator.total_bytes

    def send(self) -> None:
        """Start sending."""
        self._is_sending = True
        self._send()

    def stop(self) -> None:
        """Stop sending."""
        self._is_sending = False
        self._link.withdraw(lambda header: isinstance(header, ProbeHeader))

    def on_message(self, decoded: Answer | Report) -> None:
        """Process the other side's message; ProtocolError if it cannot be true."""
        if isinstance(decoded, Answer):
            if decoded.number >= len(self._asked):
                raise ProtocolError("found an answer to a question that the probe never asked")
            self._estimator.on_round_trip(time.monotonic() - self._asked[decoded.number])
        else:
            if decoded.total_bytes > self._bytes_sent:
                raise ProtocolError(
                    f"the peer reported {decoded.total_bytes} bytes, but only {self._bytes_sent} were sent"
                )
            self._estimator.on_arrival(Arrival(decoded.seconds, decoded.total_bytes))
            self._send()

    async def _ask(self, started: float, deadline: float) -> None:
        while (now := time.monotonic()) < deadline and self._link.reason is None:
            enough = now >= started + _QUESTIONING_SECONDS and self._estimator.answers >= _LEAST_ANSWERS
            if enough:
                return
            # After a suspension too few questions were asked: ask further ones, one at a time.
            if now < started + _QUESTIONING_SECONDS or self._estimator.answers >= len(self._asked):
                self._link.send_control(encode(Question(len(self._asked))))
                self._asked.append(time.monotonic())
            await asyncio.sleep(_QUESTION_SECONDS)

    async def _settle(self, deadline: float) -> None:
        while time.monotonic() < deadline and self._link.reason is None:
            await asyncio.sleep(_POLL_SECONDS)
            self._poll_kernel()
            if self._estimator.is_settled or self._has_spent_all:
                return

    def _poll_kernel(self) -> None:
        state = self._link.path_state
        if state is not None and state.delivered_packets is not None:
            now, packets = time.monotonic(), state.delivered_packets
            self._estimator.on_kernel_ack(now, packets, state.packet_bytes, state.retransmitted)

    def _send(self) -> None:
        """Keep two messages queued, unless too few of the sent bytes have arrived."""
        size = self._message_bytes
        while self._is_sending and self._unsent < 2 and self._bytes_sent + size <= self._allowed_bytes:
            self._unsent += 1
            self._bytes_sent += size
            self._link.post(ProbeHeader(size), self._payload[:size], self._on_sent)

    def _on_sent(self) -> None:
        self._unsent -= 1
        # Not directly: the link also calls this while it clears its queue.
        asyncio.get_running_loop().call_soon(self._send)

    @property
    def _message_bytes(self) -> int:
        due = int(self._estimator.recent_bytes_per_second * _MESSAGE_SECONDS)
        return min(max(due, MINIMUM_MESSAGE_BYTES), MAXIMUM_MESSAGE_BYTES)

    @property
    def _allowed_bytes(self) -> int:
        return min(_FIRST_BYTES + (1 + _GROWTH) * self._estimator.total_bytes, self._byte_limit)

    @property
    def _has_spent_all(self) -> bool:
        """Whether everything that may be sent has arrived, so that nothing more can be measured."""
        return (
            self._bytes_sent + self._message_bytes > self._byte_limit
            and self._unsent == 0
            and (self._estimator.total_bytes == self._bytes_sent)
        )
