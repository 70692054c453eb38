"""Links that carry one message at a time, and access lines that several links share fairly.

A link sends gradients before activations before state, each in order of arrival, and interrupts a message for
a more urgent one, as `transport.link.outbox` does chunk by chunk. Links that use an access line at the same
time share it max-min fairly, like a fluid; a change recomputes only the rates that it can affect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from farflung.plans import FEEDER
from farflung.simulator.clock import Action, Clock
from farflung.simulator.costs import LinkCosts


def max_min(most: Sequence[float], lines: Sequence[tuple[float, Sequence[int]]]) -> list[float]:
    """The max-min fair rate of each flow, by progressive filling.

    Parameters
    ----------
    most
        The largest rate of each flow.
    lines
        For each access line its capacity, and the numbers of the flows that use it.
    """
    rates = [0.0] * len(most)
    is_open = [True] * len(most)
    left = [capacity for capacity, _ in lines]
    crossing = [list(flows) for _, flows in lines]
    lines_of: list[list[int]] = [[] for _ in most]
    for number, flows in enumerate(crossing):
        for flow in flows:
            lines_of[flow].append(number)
    waiting = list(range(len(most)))
    while waiting:
        share, narrowest = min(
            ((left[n] / len(flows), n) for n, flows in enumerate(crossing) if flows),
            default=(float("inf"), -1),
        )
        settled = [flow for flow in waiting if most[flow] <= share]
        for flow in settled or list(crossing[narrowest]):
            rates[flow] = min(most[flow], share)
            is_open[flow] = False
            for number in lines_of[flow]:
                left[number] = max(0.0, left[number] - rates[flow])
                crossing[number].remove(flow)
        waiting = [flow for flow in waiting if is_open[flow]]
    return rates


_ROOM = 1 + 1e-9


class Priority(IntEnum):
    """The order in which a link sends messages; lower numbers first."""

    GRADIENT = 0
    ACTIVATION = 1
    STATE = 2


@dataclass(slots=True)
class Message:
    """A message of `size` bytes; on arrival `action(argument)` runs. `microbatch` is used by pictures."""

    size: float
    priority: int
    action: Action
    argument: Any
    microbatch: int = -1


class AccessLine:
    """Capacity that links share: a worker's access line in one direction, or the path of two homes."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.carried = 0.0
        self.links: dict[Link, None] = {}  # those that send now, in the order in which they began
        self.demand = 0.0

    @property
    def is_saturated(self) -> bool:
        """Whether the links that send now could exceed the capacity."""
        return self.demand > self.capacity * _ROOM

    def add(self, link: Link) -> None:
        """Count `link` as sending."""
        self.links[link] = None
        self.demand += link.most

    def remove(self, link: Link) -> None:
        """Count `link` as no longer sending."""
        del self.links[link]
        self.demand = self.demand - link.most if self.links else 0.0


class Piece(tuple[int, int, float, float]):
    """A part of a message on a link, for pictures: (priority, microbatch, start, end)."""

    __slots__ = ()


class Link:
    """The messages of one directed pair. `rate` is in bytes a second, `latency` in seconds."""

    __slots__ = (
        "_began",
        "_clock",
        "_current",
        "_left",
        "_number",
        "_queues",
        "_rate",
        "_since",
        "busy",
        "carried",
        "latency",
        "lines",
        "most",
        "pieces",
    )

    def __init__(self, clock: Clock, rate: float, latency: float, lines: Iterable[AccessLine] = ()) -> None:
        self._clock = clock
        self.latency = latency
        self.lines = tuple(lines)
        self.most = min([rate, *(line.capacity for line in self.lines)])
        self.carried = 0.0
        self.busy = 0.0
        self.pieces: list[Piece] | None = None
        self._queues: tuple[deque[Message], ...] = (deque(), deque(), deque())
        self._current: Message | None = None
        self._left = 0.0
        self._rate = self.most
        self._since = self._began = 0.0
        self._number = 0  # of the scheduled end; ends with older numbers are ignored

    def post(self, message: Message) -> None:
        """Queue a message; it is sent after everything before it."""
        current = self._current
        if current is None:
            if message.size <= 0:
                self._arrive(message)
            else:
                self._begin(message)
                self._start_sending()
        elif message.priority >= current.priority:
            self._queues[message.priority].append(message)
        elif message.size <= 0:
            self._arrive(message)
        else:
            self._interrupt()
            self._begin(message)
            self._schedule_end()

    def set_rate(self, rate: float) -> None:
        """Send at `rate` from now on."""
        if rate != self._rate:
            self._update_left()
            self._rate = rate
            self._schedule_end()

    def count_so_far(self) -> None:
        """Count the part of the current message that has been sent."""
        message = self._current
        if message is None or self._began == self._clock.now:
            return
        self._update_left()
        self._count(message, message.size - self._left)
        message.size, self._began = self._left, self._clock.now

    def _begin(self, message: Message) -> None:
        self._current = message
        self._left = message.size
        self._since = self._began = self._clock.now

    def _update_left(self) -> None:
        now = self._clock.now
        self._left -= self._rate * (now - self._since)
        self._since = now

    def _schedule_end(self) -> None:
        self._number += 1
        self._clock.at(self._since + max(0.0, self._left) / self._rate, self._ended, self._number)

    def _interrupt(self) -> None:
        """Stop for a more urgent message; the rest of the current one becomes first in its queue."""
        self._update_left()
        message = self._current
        assert message is not None
        self._count(message, message.size - self._left)
        message.size = max(0.0, self._left)
        self._queues[message.priority].appendleft(message)

    def _ended(self, number: int) -> None:
        if number != self._number:
            return
        message = self._current
        assert message is not None
        self._count(message, message.size)
        self._arrive(message)
        while (following := self._next_message()) is not None:
            if following.size > 0:
                self._begin(following)
                self._schedule_end()
                return
            self._arrive(following)
        self._current = None
        self._stop_sending()

    def _next_message(self) -> Message | None:
        for queue in self._queues:
            if queue:
                return queue.popleft()
        return None

    def _arrive(self, message: Message) -> None:
        self._clock.at(self._clock.now + self.latency, message.action, message.argument)

    def _count(self, message: Message, size: float) -> None:
        self.carried += size
        self.busy += self._clock.now - self._began
        for line in self.lines:
            line.carried += size
        if self.pieces is not None:
            self.pieces.append(Piece((message.priority, message.microbatch, self._began, self._clock.now)))

    def _start_sending(self) -> None:
        """Begin to send; other links on the same lines get less."""
        shares = False
        for line in self.lines:
            line.add(self)
            shares = shares or line.is_saturated
        if shares:
            self._rate = 0.0
            _share([self])
        else:
            self._rate = self.most
            self._schedule_end()

    def _stop_sending(self) -> None:
        """Stop sending; other links on the same lines get more."""
        freed: dict[Link, None] | None = None
        for line in self.lines:
            if line.is_saturated:
                freed = {**(freed or {}), **line.links}
            line.remove(self)
        if freed:
            freed.pop(self, None)
            _share(freed)


def _share(links: Iterable[Link]) -> None:
    """Recompute the rates of these links and of all that share saturated lines with them."""
    reached = dict.fromkeys(links)
    lines: dict[AccessLine, None] = {}
    waiting = list(reached)
    while waiting:
        for line in waiting.pop().lines:
            if line not in lines and line.is_saturated:
                lines[line] = None
                fresh = [link for link in line.links if link not in reached]
                reached.update(dict.fromkeys(fresh))
                waiting += fresh
    number = {link: at for at, link in enumerate(reached)}
    crossing = [(line.capacity, [number[link] for link in line.links]) for line in lines]
    for link, rate in zip(reached, max_min([link.most for link in reached], crossing), strict=True):
        link.set_rate(rate)


class Wiring:
    """Links by worker numbers; the feeder shares the access line and the paths of its home."""

    def __init__(self, clock: Clock, costs: LinkCosts) -> None:
        self._clock = clock
        self.costs = costs
        self.links: dict[tuple[int, int], Link] = {}
        self.up: dict[int, AccessLine] = {}
        self.down: dict[int, AccessLine] = {}
        self._paths: dict[int, AccessLine] = {}

    def link(self, source: int, target: int) -> Link | None:
        """The link between two workers, or from the feeder to one; None if they need none."""
        if self.costs.is_near(source, target):
            return None
        if (source, target) not in self.links:
            self.links[source, target] = self._make_link(source, target)
        return self.links[source, target]

    def _make_link(self, source: int, target: int) -> Link:
        costs = self.costs
        start = costs.home if source == FEEDER else source
        lines = []
        if (rate := costs.up(start)) is not None:
            lines.append(self.up.setdefault(start, AccessLine(rate)))
        if (rate := costs.down(target)) is not None:
            lines.append(self.down.setdefault(target, AccessLine(rate)))
        own = costs.rate(source, target)
        if start == costs.home:  # both the feeder and the worker there may send to this target
            lines.append(self._paths.setdefault(target, AccessLine(own)))
        return Link(self._clock, own, costs.seconds_away(start, target), lines)
