"""Compute when a packet arrives, or that it is lost. Pure arithmetic: no clock, no I/O.

    access line up -> the pair's own rate -> loss -> delay and jitter -> the other home's access line down

Times are seconds on any one clock, sizes bytes. Calls on one object come in the order of their times.
"""

from __future__ import annotations

from collections.abc import Callable

from farflung.lab.spec import LinkSettings

FRAME_OVERHEAD = 14  # an Ethernet header, which rates count and sizes of IP packets do not


class Pipe:
    """A rate with a drop-tail queue before it, whose length is given as time."""

    __slots__ = ("free_at", "queue_seconds", "seconds_per_byte")

    def __init__(self, mbps: float | None, queue_ms: float) -> None:
        self.free_at = float("-inf")
        self.change(mbps, queue_ms)

    def change(self, mbps: float | None, queue_ms: float) -> None:
        """Change rate and queue for packets that arrive from now on."""
        self.seconds_per_byte = 8e-6 / mbps if mbps is not None else 0.0
        self.queue_seconds = queue_ms / 1e3

    def enter(self, size: int, now: float) -> float | None:
        """The time when the packet's last bit has left; None if the queue is full."""
        start = self.free_at
        if start < now:
            start = now
        elif start - now > self.queue_seconds:
            return None
        self.free_at = end = start + (size + FRAME_OVERHEAD) * self.seconds_per_byte
        return end


class Path:
    """The path between two homes in one direction: a rate, then a delay. Packets stay in order."""

    __slots__ = ("delay", "jitter", "last_exit", "loss", "pipe", "settings")

    def __init__(self, settings: LinkSettings) -> None:
        self.pipe = Pipe(settings.bandwidth_mbps, settings.queue_limit_ms)
        self.last_exit = float("-inf")
        self.change(settings)

    def change(self, settings: LinkSettings) -> None:
        """Change the settings for packets that arrive from now on."""
        self.settings = settings
        self.pipe.change(settings.bandwidth_mbps, settings.queue_limit_ms)
        self.delay, self.jitter, self.loss = (
            settings.latency_ms / 1e3,
            settings.jitter_ms / 1e3,
            settings.loss,
        )

    def travel(self, start: float, draw: Callable[[], float]) -> float:
        """The time when a packet that left the rate at `start` reaches the far end."""
        end = start + self.delay
        if self.jitter:
            end += draw() * self.jitter
        if end < self.last_exit:
            end = self.last_exit
        self.last_exit = end
        return end


class Channel:
    """One directed pair of nodes: the pipes and the path of its packets, and counts of drops and deliveries.

    Pipes and paths may be shared with other channels. `delivered_bytes` counts IP packets.
    """

    __slots__ = (
        *("source", "target", "up", "path", "down", "is_cut"),
        *("delivered_packets", "delivered_bytes", "queue_drops", "loss_drops", "cut_drops"),
    )

    def __init__(self, source: int, target: int, up: Pipe | None, path: Path, down: Pipe | None) -> None:
        self.source, self.target = source, target
        self.up, self.path, self.down = up, path, down
        self.is_cut = False
        self.forget()

    def seen(self) -> bool:
        """Whether any packet was sent."""
        dropped = self.queue_drops + self.loss_drops + self.cut_drops
        return self.delivered_packets + dropped > 0

    def forget(self) -> None:
        """Count from zero again."""
        self.delivered_packets = self.delivered_bytes = 0
        self.queue_drops = self.loss_drops = self.cut_drops = 0

    def send(self, size: int, now: float, draw: Callable[[], float]) -> float | None:
        """The time when a packet sent at `now` reaches the far access line; None if it is dropped.

        `draw` returns random numbers from 0 to 1. A lost packet has used the pipes before the loss.
        """
        if self.is_cut:
            self.cut_drops += 1
            return None
        start: float | None = now
        if self.up is not None:
            start = self.up.enter(size, now)
        if start is not None:
            start = self.path.pipe.enter(size, start)
        if start is None:
            self.queue_drops += 1
            return None
        if self.path.loss and draw() < self.path.loss:
            self.loss_drops += 1
            return None
        return self.path.travel(start, draw)

    def arrive(self, size: int, now: float) -> float | None:
        """The time when a packet at the far access line is delivered; None if the line's queue is full."""
        if self.down is None:
            return now
        end = self.down.enter(size, now)
        if end is None:
            self.queue_drops += 1
        return end

    def deliver(self, size: int) -> bool:
        """Count a packet as delivered, unless the pair was cut while it travelled."""
        if self.is_cut:
            self.cut_drops += 1
            return False
        self.delivered_packets += 1
        self.delivered_bytes += size
        return True
