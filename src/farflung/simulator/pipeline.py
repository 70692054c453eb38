"""One replica of a plan's segments: their devices, their messages to each other, and their feeder."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from farflung.plans import FEEDER
from farflung.schedule import Feeding, Task, TaskKind, needs_of
from farflung.simulator.clock import Clock
from farflung.simulator.costs import Codable, TaskSeconds, Transfer
from farflung.simulator.device import Coder, Cores, Device
from farflung.simulator.network import Link, Message, Priority, Wiring

Arrival = tuple[int, int, bool]  # segment, microbatch, whether it is a gradient


@dataclass(frozen=True, slots=True)
class _Channel:
    """The link and the codec of a segment's messages to another segment, with their bytes on the wire."""

    target: int
    link: Link | None
    wire_bytes: float
    priority: Priority
    encode_seconds: float
    decode_seconds: float
    coder: Coder
    decoder: Coder


class Pipeline:
    """A replica that runs steps of `microbatches`; it calls `segment_ended` when a segment has run them all.

    `workers` holds the number of each segment's worker, `seconds` the times of its tasks, `recomputing` the
    segments that recompute, and `cores` the cores that workers of one machine share.
    """

    def __init__(
        self,
        clock: Clock,
        wiring: Wiring,
        transfers: Sequence[Transfer],
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
        all_needs = needs_of(range(len(workers)), transfers, recomputing)
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
        self._forward, self._backward = self._channels(transfers)
        self.feeder = Feeder(clock, wiring, transfers, workers, microbatches, window, self._arrived)

    def begin(self, ready_at: Callable[[int], float]) -> None:
        """Begin the next step, on each worker at the time that `ready_at` gives."""
        for worker, device in self.devices.items():
            device.begin(ready_at(worker))
            if not self._microbatches:
                for segment in device.segments:
                    self._segment_ended(segment)
        self.feeder.begin()

    def _channels(self, transfers: Sequence[Transfer]) -> tuple[list[list[_Channel]], list[list[_Channel]]]:
        forward: list[list[_Channel]] = [[] for _ in self._workers]
        backward: list[list[_Channel]] = [[] for _ in self._workers]
        for transfer in transfers:
            if transfer.source != FEEDER:
                forward[transfer.source].append(
                    self._channel(
                        transfer.source, transfer.target, transfer.forward_bytes, transfer.activations, False
                    )
                )
                backward[transfer.target].append(
                    self._channel(
                        transfer.target, transfer.source, transfer.backward_bytes, transfer.gradients, True
                    )
                )
        return forward, backward

    def _channel(self, source: int, target: int, size: int, floats: Codable, gradient: bool) -> _Channel:
        a, b = self._workers[source], self._workers[target]
        encode_seconds, decode_seconds = self._wiring.costs.codec_seconds(a, b, floats, gradient)
        return _Channel(
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
        """Send the results of `task`."""
        segment, kind, microbatch = task
        is_backward = kind is TaskKind.BACKWARD
        for channel in (self._backward if is_backward else self._forward)[segment]:
            arrival = (channel.target, microbatch, is_backward)
            if channel.link is None:
                self._arrived(arrival)
            elif not channel.encode_seconds and not channel.decode_seconds:
                channel.link.post(
                    Message(channel.wire_bytes, channel.priority, self._arrived, arrival, microbatch)
                )
            else:
                self._send_coded(channel, channel.link, arrival)

    def _ended(self, task: Task) -> None:
        segment, kind, microbatch = task
        if kind is TaskKind.ACCUMULATE:
            self.feeder.finished(segment)
            if microbatch == self._microbatches - 1:
                self._segment_ended(segment)

    def _send_coded(self, channel: _Channel, link: Link, arrival: Arrival) -> None:
        """Send through the codec threads at both ends."""

        def on_received(_: object) -> None:
            channel.decoder.submit(channel.decode_seconds, self._arrived, arrival)

        message = Message(channel.wire_bytes, channel.priority, on_received, None, arrival[1])
        channel.coder.submit(channel.encode_seconds, link.post, message)

    def _arrived(self, arrival: Arrival) -> None:
        segment, microbatch, gradient = arrival
        self._device_of[segment].arrived(segment, microbatch, gradient)


class Feeder:
    """Feeds one replica, step after step; microbatch numbers continue from step to step."""

    def __init__(
        self,
        clock: Clock,
        wiring: Wiring,
        transfers: Sequence[Transfer],
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
        fed = [transfer for transfer in transfers if transfer.source == FEEDER]
        self._bytes = {transfer.target: transfer.forward_bytes for transfer in fed}
        self._links = {transfer.target: wiring.link(FEEDER, workers[transfer.target]) for transfer in fed}
        self._away = {
            transfer.target: wiring.costs.seconds_away(workers[transfer.target], FEEDER) for transfer in fed
        }
        self._feeding = Feeding([transfer.target for transfer in fed], window)
        self._sent = dict.fromkeys(self._bytes, 0)
        self._delivered = dict.fromkeys(self._bytes, 0)

    @property
    def under_way(self) -> int:
        """The largest number of microbatches that were fed to a segment and have not arrived."""
        return max((sent - self._delivered[segment] for segment, sent in self._sent.items()), default=0)

    def start(self, is_ahead: bool) -> None:
        """Feed the first windows; if the feeder `is_ahead`, they arrive at once."""
        if not is_ahead:
            self._feed()
        while (turn := self._feeding.next()) is not None:
            self._feeding.fed()
            self._sent[turn[0]] += 1
            self._delivered[turn[0]] += 1

    def begin(self) -> None:
        """Begin the next step: report its microbatches that have arrived already."""
        self._first += self._microbatches
        for segment, here in self._delivered.items():
            for number in range(self._first, min(here, self._first + self._microbatches)):
                self._arrived((segment, number - self._first, False))

    def finished(self, segment: int) -> None:
        """Report to the feeder that `segment` has finished a microbatch, if the feeder feeds it."""
        if segment in self._bytes:
            self._clock.at(self._clock.now + self._away[segment], self._on_finished, segment)

    def _on_finished(self, segment: int) -> None:
        self._feeding.finished(segment)
        self._feed()

    def _feed(self) -> None:
        while (turn := self._feeding.next()) is not None:
            self._feeding.fed()
            self._sent[turn[0]] += 1
            link = self._links[turn[0]]
            if link is None:
                self._on_delivered(turn)
            else:
                size = self._bytes[turn[0]]
                link.post(Message(size, Priority.ACTIVATION, self._on_delivered, turn, turn[1] - self._first))

    def _on_delivered(self, turn: tuple[int, int]) -> None:
        segment, number = turn
        self._delivered[segment] = number + 1
        if 0 <= number - self._first < self._microbatches:
            self._arrived((segment, number - self._first, False))
