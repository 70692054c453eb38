"""What a plan's links carry in a second, how far they reach, and what their codecs take."""

from __future__ import annotations

from farflung.codec import catalogue
from farflung.codec.base import Declared
from farflung.errors import PlanError
from farflung.plans import FEEDER, Plan, Topology
from farflung.plans.rung import DENSE, Rung
from farflung.simulator.codable import Codable
from farflung.simulator.conditions import Conditions


class LinkCosts:
    """Rates of payload in bytes a second and latencies in seconds, by the numbers of workers.

    The feeder (-1) and the broker stand in the home of worker number `home`.
    """

    def __init__(self, plan: Plan, topology: Topology, conditions: Conditions) -> None:
        self._topology = topology
        self._bytes_of_a_mbit = 1e6 / 8 * conditions.payload_share
        ids = topology.ids
        self.home = ids.index(topology.home.id)
        self._ratios: dict[tuple[int, int], float] = {}
        self._codecs: dict[tuple[int, int, bool], Declared] = {}
        self._codec_speed = conditions.codec_speed
        if plan.codecs:
            numbers = {id: number for number, id in enumerate(ids)}
            for codec in plan.codecs:
                pair = numbers.get(codec.source, -1), numbers.get(codec.target, -1)
                self._ratios[pair] = codec.ratio
                for gradient, name in enumerate(Rung.of(codec.codec)):
                    if name != DENSE:  # which goes as it lies in memory
                        self._codecs[*pair, bool(gradient)] = catalogue.declared(name)

    def rate(self, source: int, target: int) -> float:
        """Of a pair's own path; PlanError where no way leads there."""
        place = self._place(source)
        mbps = self._topology.bandwidth_mbps[place][target]
        if not mbps:
            ids = self._topology.ids
            raise PlanError(
                f"the plan needs the link {ids[place]} -> {ids[target]}, and no way leads there (0 Mbit/s)"
            )
        return mbps * self._bytes_of_a_mbit

    def up(self, worker: int) -> float | None:
        """Of a worker's shared line out; None where each link has its own."""
        mbps = self._topology.workers[self._place(worker)].up_mbps
        return None if mbps is None else mbps * self._bytes_of_a_mbit

    def down(self, worker: int) -> float | None:
        """Of its shared line in."""
        mbps = self._topology.workers[worker].down_mbps
        return None if mbps is None else mbps * self._bytes_of_a_mbit

    def most(self, source: int, target: int) -> float:
        """Of a pair's path and the lines at its ends, with nothing else on them."""
        rates = (self.rate(source, target), self.up(source), self.down(target))
        return min(rate for rate in rates if rate is not None)

    def seconds_away(self, source: int, target: int) -> float:
        """Latency between two workers."""
        source, target = self._place(source), self._place(target)
        return 0.0 if source == target else self._topology.latency_ms[source][target] / 1e3

    def is_near(self, source: int, target: int) -> bool:
        """Whether there is nothing between them: one worker, or the feeder and the worker of its home."""
        return source == target or (source == FEEDER and target == self.home)

    def wire_bytes(self, source: int, target: int, size: float, floats: Codable) -> float:
        """Of a message of `size` bytes in memory, of which `floats` may be written by a codec."""
        ratio = self._ratios.get((source, target))
        return size if ratio is None else (size - floats.bytes + floats.fp32_bytes) / ratio

    def codec_seconds(self, source: int, target: int, floats: Codable, gradient: bool) -> tuple[float, float]:
        """What the link's codec takes to write activations or gradients, and to read them back."""
        codec = self._codecs.get((source, target, gradient))
        if codec is None:
            return 0.0, 0.0
        giga = floats.fp32_bytes / 1e9 / self._codec_speed
        return giga / codec.encode_gbps, giga / codec.decode_gbps

    def _place(self, number: int) -> int:
        return self.home if number == FEEDER else number
