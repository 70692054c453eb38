"""Links that carry one message at a time, and access lines that several links share fairly.

A link takes gradients before activations before state, each in the order of their coming, and leaves off a
message for a more urgent one, as `transport.outbox` does chunk by chunk. Links that cross one line at the
same time share it max-min fairly, like fluid; only what a change can reach is computed again.
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
    """The rate of each flow, by progressive filling.

    Parameters
    ----------
    most
        What each flow can take at most.
    lines
        For each shared line its capacity, and the numbers of the flows that cross it.
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
    """What leaves first."""

    GRADIENT = 0
    ACTIVATION = 1
    STATE = 2


@dataclass(slots=True)
class Message:
    """`size` bytes; on arrival `action(argument)` runs. `microbatch` is for pictures."""

    size: float
    priority: int
    action: Action
    argument: Any
    microbatch: int = -1


class Line:
    """What the links of one worker share in one direction, or those of one pair of homes."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.carried = 0.0
        self.links: dict[Link, None] = {}  # that send now, in the order in which they began
        self.asked = 0.0

    @property
    def is_narrow(self) -> bool:
        """Whether the links that send now could fill it."""
        return self.asked > self.capacity * _ROOM

    def add(self, link: Link) -> None:
        """`link` begins to send."""
        self.links[link] = None
        self.asked += link.most

    def remove(self, link: Link) -> None:
        """`link` has nothing more to send."""
        del self.links[link]
        self.asked = self.asked - link.most if self.links else 0.0


class Piece(tuple[int, int, float, float]):
    """A message's (priority, microbatch, start, end) on a link, for pictures."""

    __slots__ = ()


class Link:
    """One ordered pair's messages. `rate` is in bytes a second, `latency` in seconds."""

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

    def __init__(self, clock: Clock, rate: float, latency: float, lines: Iterable[Line] = ()) -> None:
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
        self._number = 0  # of the current end; what was due under an older one is void

    def post(self, message: Message) -> None:
        """Queue a message; it leaves when everything before it has left."""
        current = self._current
        if current is None:
            if message.size <= 0:
                self._arrive(message)
            else:
                self._begin(message)
                self._join()
        elif message.priority >= current.priority:
            self._queues[message.priority].append(message)
        elif message.size <= 0:
            self._arrive(message)
        else:
            self._leave_off()
            self._begin(message)
            self._due()

    def set_rate(self, rate: float) -> None:
        """Send at `rate` from now on."""
        if rate != self._rate:
            self._settle()
            self._rate = rate
            self._due()

    def count_so_far(self) -> None:
        """Count what has been sent of the message under way."""
        message = self._current
        if message is None or self._began == self._clock.now:
            return
        self._settle()
        self._count(message, message.size - self._left)
        message.size, self._began = self._left, self._clock.now

    def _begin(self, message: Message) -> None:
        self._current = message
        self._left = message.size
        self._since = self._began = self._clock.now

    def _settle(self) -> None:
        now = self._clock.now
        self._left -= self._rate * (now - self._since)
        self._since = now

    def _due(self) -> None:
        self._number += 1
        self._clock.at(self._since + max(0.0, self._left) / self._rate, self._ended, self._number)

    def _leave_off(self) -> None:
        """A more urgent message has come; the rest of this one stands first in its queue."""
        self._settle()
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
        while (following := self._take()) is not None:
            if following.size > 0:
                self._begin(following)
                self._due()
                return
            self._arrive(following)
        self._current = None
        self._part()

    def _take(self) -> Message | None:
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

    def _join(self) -> None:
        """Begin to send: whoever shares a line with this link gets less of it."""
        shares = False
        for line in self.lines:
            line.add(self)
            shares = shares or line.is_narrow
        if shares:
            self._rate = 0.0
            _share([self])
        else:
            self._rate = self.most
            self._due()

    def _part(self) -> None:
        """Nothing to send: the others get more."""
        freed: dict[Link, None] | None = None
        for line in self.lines:
            if line.is_narrow:
                freed = {**(freed or {}), **line.links}
            line.remove(self)
        if freed:
            freed.pop(self, None)
            _share(freed)


def _share(links: Iterable[Link]) -> None:
    """Divide anew what these links can reach over lines that are narrow now."""
    reached = dict.fromkeys(links)
    lines: dict[Line, None] = {}
    waiting = list(reached)
    while waiting:
        for line in waiting.pop().lines:
            if line not in lines and line.is_narrow:
                lines[line] = None
                fresh = [link for link in line.links if link not in reached]
                reached.update(dict.fromkeys(fresh))
                waiting += fresh
    number = {link: at for at, link in enumerate(reached)}
    crossing = [(line.capacity, [number[link] for link in line.links]) for line in lines]
    for link, rate in zip(reached, max_min([link.most for link in reached], crossing), strict=True):
        link.set_rate(rate)


class Wiring:
    """Links by the numbers of their workers; the feeder shares its home's line, and its paths to others."""

    def __init__(self, clock: Clock, costs: LinkCosts) -> None:
        self._clock = clock
        self.costs = costs
        self.links: dict[tuple[int, int], Link] = {}
        self.up: dict[int, Line] = {}
        self.down: dict[int, Line] = {}
        self._paths: dict[int, Line] = {}

    def link(self, source: int, target: int) -> Link | None:
        """The link between two workers, or from the feeder to one; None where there is nothing between."""
        if self.costs.is_near(source, target):
            return None
        if (source, target) not in self.links:
            self.links[source, target] = self._made(source, target)
        return self.links[source, target]

    def _made(self, source: int, target: int) -> Link:
        costs = self.costs
        start = costs.home if source == FEEDER else source
        lines = []
        if (rate := costs.up(start)) is not None:
            lines.append(self.up.setdefault(start, Line(rate)))
        if (rate := costs.down(target)) is not None:
            lines.append(self.down.setdefault(target, Line(rate)))
        own = costs.rate(source, target)
        if start == costs.home:  # both the feeder and the worker there may send to this target
            lines.append(self._paths.setdefault(target, Line(own)))
        return Link(self._clock, own, costs.seconds_away(start, target), lines)
