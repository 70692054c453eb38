"""One replica of a plan's segments: their devices, what they send to each other, and their feeder."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from farflung.plans import FEEDER
from farflung.schedule import Feeding, Task, TaskKind, needs_of
from farflung.simulator.clock import Clock
from farflung.simulator.costs import Codable, Route, TaskSeconds
from farflung.simulator.device import Coder, Cores, Device
from farflung.simulator.network import Link, Message, Priority, Wiring

Arrival = tuple[int, int, bool]  # segment, microbatch, whether it is a gradient


@dataclass(frozen=True, slots=True)
class _Way:
    """How the messages of a segment to another one go: their bytes on the wire, and what writes them."""

    target: int
    link: Link | None
    wire_bytes: float
    priority: Priority
    encode_seconds: float
    decode_seconds: float
    coder: Coder
    decoder: Coder


class Pipeline:
    """A replica in steps of `microbatches`; `segment_ended` hears when a segment has run them all.

    `workers` are the numbers of the segments' workers, `seconds` what their tasks take, `recomputing` those
    segments that run forward twice, `cores` what workers of one machine share.
    """

    def __init__(
        self,
        clock: Clock,
        wiring: Wiring,
        routes: Sequence[Route],
        workers: Sequence[int],
        microbatches: int,
        window: int,
        seconds: Sequence[TaskSeconds],
        recomputing: Container[int],
        segment_ended: Callable[[int], None],
        cores: Mapping[int, Cores],
    ) -> None:
        self._clock = clock
        self._wiring = wiring
        self._workers = workers
        self._microbatches = microbatches
        self._segment_ended = segment_ended
        self._coders = {worker: Coder(clock) for worker in workers}
        segments: dict[int, list[int]] = {}
        for segment, worker in enumerate(workers):
            segments.setdefault(worker, []).append(segment)
        all_needs = needs_of(range(len(workers)), routes, recomputing)
        self.devices = {
            worker: Device(
                clock,
                [all_needs[segment] for segment in here],
                {segment: seconds[segment] for segment in here},
                microbatches,
                window,
                self._send,
                self._ended,
                cores.get(worker),
            )
            for worker, here in segments.items()
        }
        self._device_of = [self.devices[worker] for worker in workers]
        self._forward, self._backward = self._ways(routes)
        self.feeder = Feeder(clock, wiring, routes, workers, microbatches, window, self._arrived)

    def begin(self, ready_at: Callable[[int], float]) -> None:
        """The next step begins at each worker when `ready_at` says."""
        for worker, device in self.devices.items():
            device.begin(ready_at(worker))
            if not self._microbatches:
                for segment in device.segments:
                    self._segment_ended(segment)
        self.feeder.begin()

    def _ways(self, routes: Sequence[Route]) -> tuple[list[list[_Way]], list[list[_Way]]]:
        forward: list[list[_Way]] = [[] for _ in self._workers]
        backward: list[list[_Way]] = [[] for _ in self._workers]
        for route in routes:
            if route.source != FEEDER:
                forward[route.source].append(
                    self._way(route.source, route.target, route.forward_bytes, route.floats, False)
                )
                backward[route.target].append(
                    self._way(route.target, route.source, route.backward_bytes, route.floats, True)
                )
        return forward, backward

    def _way(self, source: int, target: int, size: int, floats: Codable, gradient: bool) -> _Way:
        a, b = self._workers[source], self._workers[target]
        encode_seconds, decode_seconds = self._wiring.costs.codec_seconds(a, b, floats, gradient)
        return _Way(
            target=target,
            link=self._wiring.link(a, b),
            wire_bytes=self._wiring.costs.wire_bytes(a, b, size, floats),
            priority=Priority.GRADIENT if gradient else Priority.ACTIVATION,
            encode_seconds=encode_seconds,
            decode_seconds=decode_seconds,
            coder=self._coders[a],
            decoder=self._coders[b],
        )

    def _send(self, task: Task) -> None:
        """The results of `task` leave."""
        segment, kind, microbatch = task
        is_backward = kind is TaskKind.BACKWARD
        for way in (self._backward if is_backward else self._forward)[segment]:
            arrival = (way.target, microbatch, is_backward)
            if way.link is None:
                self._arrived(arrival)
            elif not way.encode_seconds and not way.decode_seconds:
                way.link.post(Message(way.wire_bytes, way.priority, self._arrived, arrival, microbatch))
            else:
                self._send_coded(way, way.link, arrival)

    def _ended(self, task: Task) -> None:
        segment, kind, microbatch = task
        if kind is TaskKind.ACCUMULATE:
            self.feeder.finished(segment)
            if microbatch == self._microbatches - 1:
                self._segment_ended(segment)

    def _send_coded(self, way: _Way, link: Link, arrival: Arrival) -> None:
        """Through the codec threads at both ends."""

        def came(_: object) -> None:
            way.decoder.take(way.decode_seconds, self._arrived, arrival)

        message = Message(way.wire_bytes, way.priority, came, None, arrival[1])
        way.coder.take(way.encode_seconds, link.post, message)

    def _arrived(self, arrival: Arrival) -> None:
        segment, microbatch, gradient = arrival
        self._device_of[segment].arrived(segment, microbatch, gradient)


class Feeder:
    """Feeds one replica, step after step.

    Microbatches are numbered on from step to step.
    """

    def __init__(
        self,
        clock: Clock,
        wiring: Wiring,
        routes: Sequence[Route],
        workers: Sequence[int],
        microbatches: int,
        window: int,
        arrived: Callable[[Arrival], None],
    ) -> None:
        self._clock = clock
        self._arrived = arrived
        self._microbatches = microbatches
        self._window = window
        self._first = -microbatches
        fed = [route for route in routes if route.source == FEEDER]
        self._bytes = {route.target: route.forward_bytes for route in fed}
        self._links = {route.target: wiring.link(FEEDER, workers[route.target]) for route in fed}
        self._away = {route.target: wiring.costs.seconds_away(workers[route.target], FEEDER) for route in fed}
        self._feeding = Feeding([route.target for route in fed], window)
        self._sent = dict.fromkeys(self._bytes, 0)
        self._here = dict.fromkeys(self._bytes, 0)

    @property
    def under_way(self) -> int:
        """The most microbatches that have been fed to a segment and have not come."""
        return max((sent - self._here[segment] for segment, sent in self._sent.items()), default=0)

    def start(self, is_ahead: bool) -> None:
        """Feed the first windows; if the feeder `is_ahead`, they are there at once."""
        if not is_ahead:
            self._feed()
        while (turn := self._feeding.next()) is not None:
            self._feeding.fed()
            self._sent[turn[0]] += 1
            self._here[turn[0]] += 1

    def begin(self) -> None:
        """The next step begins: tell of what is there of it."""
        self._first += self._microbatches
        for segment, here in self._here.items():
            for number in range(self._first, min(here, self._first + self._microbatches)):
                self._arrived((segment, number - self._first, False))

    def finished(self, segment: int) -> None:
        """`segment` has finished a microbatch, and says so if it is fed."""
        if segment in self._bytes:
            self._clock.at(self._clock.now + self._away[segment], self._told, segment)

    def _told(self, segment: int) -> None:
        self._feeding.finished(segment)
        self._feed()

    def _feed(self) -> None:
        while (turn := self._feeding.next()) is not None:
            self._feeding.fed()
            self._sent[turn[0]] += 1
            link = self._links[turn[0]]
            if link is None:
                self._came(turn)
            else:
                size = self._bytes[turn[0]]
                link.post(Message(size, Priority.ACTIVATION, self._came, turn, turn[1] - self._first))

    def _came(self, turn: tuple[int, int]) -> None:
        segment, number = turn
        self._here[segment] = number + 1
        if 0 <= number - self._first < self._microbatches:
            self._arrived((segment, number - self._first, False))
