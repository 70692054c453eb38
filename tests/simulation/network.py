"""The network: sessions between processes, as `transport.link.session` keeps them, and cut paths.

A session delivers each message once and in order, over as many connections as it takes. Each of its ends
gives it up alone, when it has heard nothing for a lease. An end that was given up while its peer still waits
is refused when the peer dials again. What a killed process had sent may arrive in part, and its peers
then hear that it is gone; after a power cut they hear nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.simulation.ends import Closing, End, Handler, Kind
from tests.simulation.world import LEASE_SECONDS, Process, World

from farflung.transport.security.peer import Peer

SILENCE_SECONDS = 0.6 * LEASE_SECONDS
"""Silence after which a connection is replaced, as in `transport.timeouts`."""


class Network:
    """All sessions, which paths are cut, and which are slow."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random("network")
        self._sessions: list[End] = []  # the dialler's ends
        self._cuts: dict[frozenset[str], int] = {}
        self._slow: dict[frozenset[str], float] = {}
        self._flapping: dict[str, float] = {}  # until when

    def dial(
        self, dialler: Process, acceptor: Process, role: Any, kind: Kind, handler: Handler
    ) -> End | None:
        """The dialler's end of a new session; None if the other side cannot be reached now."""
        if self.is_cut(dialler, acceptor) or not acceptor.alive or acceptor.frozen:
            return None
        near = End(dialler, Peer(acceptor.name, "broker"), kind, dialled=True)
        far = End(acceptor, Peer(dialler.name, role), kind, dialled=False)
        near.other, far.other, near.handler = far, near, handler
        far.handler = acceptor  # type: ignore[assignment]
        self._sessions.append(near)
        if kind == "data" and self._world.now < max(map(self._flaps_until, (dialler, acceptor))):
            self._sever(near)
        return near

    def is_cut(self, one: Process, other: Process) -> bool:
        """Whether nothing passes between the two."""
        return frozenset({one.name, other.name}) in self._cuts

    def cut(self, one: str, other: str) -> None:
        """Cut the path once more."""
        pair = frozenset({one, other})
        self._cuts[pair] = self._cuts.get(pair, 0) + 1
        self.refresh()

    def heal(self, one: str, other: str) -> None:
        """Undo one cut."""
        pair = frozenset({one, other})
        left = self._cuts.pop(pair, 0) - 1
        if left > 0:
            self._cuts[pair] = left
        self.refresh()

    def heal_all(self) -> None:
        """Undo every cut, and make every path fast."""
        self._cuts.clear()
        self._slow.clear()
        self._flapping.clear()
        self.refresh()

    def slow(self, one: str, other: str, seconds: float) -> None:
        """Delay each message between the two by up to `seconds` from now on."""
        self._slow[frozenset({one, other})] = seconds

    def reset(self, process: Process) -> None:
        """Lose every connection of a process; sessions dial again at once."""
        for near in self._of(process):
            if not near.over and not near.other.over and self._is_up(near):
                self._replace(near)

    def sever(self, number: int) -> None:
        """Lose one of the data links for good, though both of its ends live."""
        live = [near for near in self._sessions if near.kind == "data" and not (near.over or near.other.over)]
        if live:
            self._sever(live[number % len(live)])

    def flap(self, name: str, seconds: float) -> None:
        """For so long lose each new data link of a process soon after it is made."""
        self._flapping[name] = self._world.now + seconds

    def data_links(self) -> list[str]:
        """The data links that any end still holds, in words."""
        live = [
            near for near in self._sessions if near.kind == "data" and not (near.over and near.other.over)
        ]
        return [f"{near.process.name} to {near.other.process.name}" for near in live]

    def on_death(self, process: Process, silently: bool) -> None:
        """End every session of a process that has died."""
        for near in self._of(process):
            for end in (near, near.other):
                if end.process is process and end.life < process.life and not end.over:
                    self._cut_short(end, silently)
        self.refresh()

    def pump(self, end: End) -> None:
        """See to it that what `end` has sent is delivered."""
        if not end.pumping and end.outbox:
            end.pumping = True
            delay = self._random.expovariate(50) + 0.001
            slow = self._slow.get(frozenset({end.process.name, end.other.process.name}))
            if slow is not None:
                delay += self._random.uniform(0, slow)
            self._world.schedule(delay, end.other.process, lambda: self._deliver(end))

    def refresh(self) -> None:
        """Something has changed: see who hears whom now."""
        self._sessions = [one for one in self._sessions if not (one.over and one.other.over)]
        for near in self._sessions:
            self.refresh_session(near)

    def refresh_session(self, end: End) -> None:
        """See whether the two ends of one session hear each other."""
        near = end if end.dialled else end.other
        for one in (near, near.other):
            if one.closing and self.is_cut(near.process, near.other.process):
                one.closing = False  # the closing message is lost
                one.outbox.clear()
            if not one.over:
                self._listen(one)
        down = not (self._hears(near) and self._hears(near.other))
        if down and near.down_since is None:
            near.down_since = self._world.now
        elif not down and near.down_since is not None:
            outage, near.down_since = self._world.now - near.down_since, None
            if outage > SILENCE_SECONDS or self._random.random() < 0.3:
                self._replace(near)
            self._pump_both(near)

    def _flaps_until(self, process: Process) -> float:
        return self._flapping.get(process.name, 0.0)

    def _sever(self, near: End) -> None:
        for end in (near, near.other):
            self._world.schedule(
                self._random.uniform(0, 2), end.process, partial(end.give_up, "no route is left")
            )

    def _of(self, process: Process) -> Iterator[End]:
        return (one for one in list(self._sessions) if process in (one.process, one.other.process))

    def _cut_short(self, end: End, silently: bool) -> None:
        end.end()
        kept = 0 if silently else self._random.randint(0, len(end.outbox))
        while len(end.outbox) > kept:
            end.outbox.pop()
        if not silently:
            end.outbox.append(Closing("connection reset by peer"))
            end.closing = True
            self.pump(end)

    def _hears(self, end: End) -> bool:
        other = end.other
        if other.over:
            return other.closing
        running = other.life == other.process.life and not other.process.frozen
        return running and not self.is_cut(end.process, other.process)

    def _listen(self, end: End) -> None:
        if self._hears(end):
            end.silent_since = None
            return
        if end.silent_since is None:
            end.silent_since = since = self._world.now
            patience = 1.1 if end.kind == "control" else 1.6
            self._world.schedule(
                self._random.uniform(1, patience) * LEASE_SECONDS,
                end.process,
                lambda: self._expire(end, since),
            )
        other = end.other
        reachable = other.process.alive and not self.is_cut(end.process, other.process)
        if end.dialled and other.over and reachable and not other.process.frozen:
            self._world.schedule(
                self._random.uniform(0, 1), end.process, lambda: end.give_up("it does not know this session")
            )

    def _expire(self, end: End, since: float) -> None:
        if end.silent_since == since:
            end.give_up(f"nothing was heard for {LEASE_SECONDS:g} s")

    def _is_up(self, near: End) -> bool:
        return near.back_at is None and not self.is_cut(near.process, near.other.process)

    def _replace(self, near: End) -> None:
        """The connection is lost and another one follows soon."""
        delay = self._random.uniform(0, 1.5)
        near.back_at = at = self._world.now + delay
        self._world.schedule(delay, self._world.weather, lambda: self._back(near, at))

    def _back(self, near: End, at: float) -> None:
        if near.back_at != at:
            return
        near.back_at = None
        self._pump_both(near)
        if near.over or near.other.over or self.is_cut(near.process, near.other.process):
            return
        for end in (near, near.other):
            self._world.schedule(0.0, end.process, partial(self._tell_back, end))

    def _tell_back(self, end: End) -> None:
        if not end.over:
            end.handler.on_back(end)

    def _pump_both(self, near: End) -> None:
        self.pump(near)
        self.pump(near.other)

    def _deliver(self, end: End) -> None:
        """Deliver the next message that `end` has sent; runs in the receiver's process."""
        end.pumping = False
        receiver, near = end.other, end if end.dialled else end.other
        if receiver.over or not end.outbox or not self._is_up(near):
            return
        message = end.outbox.popleft()
        self.pump(end)
        if isinstance(message, Closing):
            end.closing = False
            receiver.give_up(message.reason)
        else:
            receiver.handler.on_message(receiver, message)
