"""Measure how busy devices, links and access lines were in a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from farflung.plans import FEEDER, Topology
from farflung.simulator.device import Cores
from farflung.simulator.network import AccessLine, Priority, Wiring
from farflung.simulator.pipeline import Pipeline
from farflung.simulator.simulation import Kind, Load, Span

_KINDS: dict[int, Kind] = {
    Priority.GRADIENT: "gradient",
    Priority.ACTIVATION: "activation",
    Priority.STATE: "state",
}


class Loads:
    """Counts the work of every resource from the beginning of a step."""

    def __init__(
        self, topology: Topology, wiring: Wiring, pipelines: Sequence[Pipeline], payload_share: float
    ) -> None:
        self._mbps = 8e-6 / payload_share  # Mbit/s with headers for one byte of payload a second
        self._ids = topology.ids
        self._home = topology.ids.index(topology.home.id)
        self._wiring = wiring
        self._devices = {
            worker: device for pipeline in pipelines for worker, device in pipeline.devices.items()
        }
        self._began = 0.0

    def begin(self, seconds: float, timeline: bool, continues: bool = False) -> None:
        """Begin a step: reset all counts, or, if the count `continues`, only the timeline."""
        self._count_so_far()
        self._began = seconds
        for device in self._devices.values():
            device.tasks = [] if timeline else None
        for link in self._wiring.links.values():
            link.pieces = [] if timeline else None
        if not continues:
            self._forget()

    def _count_so_far(self) -> None:
        for link in self._wiring.links.values():
            link.count_so_far()

    def _forget(self) -> None:
        for device in self._devices.values():
            device.busy = 0.0
        for link in self._wiring.links.values():
            link.carried = 0.0
        for line in [*self._wiring.up.values(), *self._wiring.down.values()]:
            line.carried = 0.0

    def of(self, step_seconds: float, steps: int = 1) -> tuple[Load, ...]:
        """The loads in `steps` of `step_seconds`, the busiest first; access lines before their links."""
        self._count_so_far()
        seconds = step_seconds * steps or math.inf
        loads = [
            Load("line", f"the access line of {self._ids[worker]} {direction}", (self._ids[worker],),
                 line.carried / line.capacity / seconds, line.carried / steps, line.capacity * self._mbps,
                 direction)
            for direction, lines in _access_lines(self._wiring)
            for worker, line in lines.items()
        ]  # fmt: skip
        loads += [
            Load(
                "device",
                f"the device of {self._ids[worker]}",
                (self._ids[worker],),
                device.busy / seconds,
            )
            for worker, device in self._devices.items()
        ]
        loads += [
            self._link(pair, link.carried, seconds, steps)
            for pair, link in self._wiring.links.items()
            if link.carried
        ]
        loads += self._machines(seconds)
        return tuple(sorted(loads, key=lambda load: -load.share))

    def _machines(self, seconds: float) -> list[Load]:
        shared: dict[Cores, list[int]] = {}
        for worker, device in self._devices.items():
            if device.cores is not None:
                shared.setdefault(device.cores, []).append(worker)
        return [
            Load(
                "machine",
                f"the {cores.count} core(s) of {', '.join(self._ids[worker] for worker in workers)}",
                tuple(self._ids[worker] for worker in workers),
                sum(self._devices[worker].busy for worker in workers) / cores.count / seconds,
            )
            for cores, workers in shared.items()
        ]

    def timeline(self) -> tuple[Span, ...]:
        """Everything that ran since the step began, devices in the order of their first segments."""
        spans = [
            Span(self._ids[worker], task.kind.value, task.microbatch,
                 start - self._began, end - self._began)
            for worker, device in self._devices.items()
            for task, start, end in device.tasks or ()
            if end > start
        ]  # fmt: skip
        spans += [
            Span(self._pair(*pair), _KINDS[priority], microbatch, start - self._began, end - self._began)
            for pair, link in self._wiring.links.items()
            for priority, microbatch, start, end in link.pieces or ()
        ]
        return tuple(spans)

    def _link(self, pair: tuple[int, int], carried: float, seconds: float, steps: int) -> Load:
        rate = self._wiring.costs.rate(*pair)
        ends = tuple(self._ids[self._home if end == FEEDER else end] for end in pair)
        share = carried / rate / seconds
        return Load("link", f"the link {self._pair(*pair)}", ends, share, carried / steps, rate * self._mbps)

    def _pair(self, source: int, target: int) -> str:
        return f"{'submitter' if source == FEEDER else self._ids[source]} -> {self._ids[target]}"


def _access_lines(wiring: Wiring) -> tuple[tuple[Literal["up", "down"], Mapping[int, AccessLine]], ...]:
    return ("up", wiring.up), ("down", wiring.down)
