"""One pass of the exact cut: the least fill of a chain of devices in which no resource exceeds a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.cutting.positions import RECOMPUTED, Positions
from farflung.planner.devices import Devices

Floats = NDArray[np.float64]

ROUNDING = 1 + 1e-9
TIE = 1e-3
ALIKE = 8
"""If there are at least this many devices of a kind on average, seconds are computed once for each kind."""

FINITE = 1e300  # bytes: a segment without a parameter fits nowhere, even with unlimited memory


@dataclass(frozen=True)
class Rules:
    """The constraints of a chain's cut.

    Parameters
    ----------
    window
        Microbatches in flight; None ignores memory.
    skips
        How many devices in a row may be left out; if any, any number at the ends too.
    recompute
        Whether a segment that does not fit may recompute activations instead of storing them.
    head
        0 for a chain whose devices run one segment each. Otherwise the first device runs the model up to the
        position of this index, and the last segment too; neither may be left out.
    last_cut
        Index of the last position for a cut.
    even
        Whether to minimise the sum of squared compute times instead of the fill, so that devices that need
        not be as busy as the busiest get equal work. Links then only break ties.
    """

    window: int | None
    skips: int
    recompute: bool
    head: int
    last_cut: int
    even: bool = False

    def need(self, table: Positions, head: int, recompute: bool = False) -> Floats:
        """Bytes of each segment on a worker that also runs the model up to position `head`: [stop, start].

        Infinite if there may be no such segment.
        """
        if head:
            return table.need_beside(head, self.window, recompute)
        return table.need(self.window, recompute)


@dataclass(frozen=True)
class Piece:
    """One segment on `device`, between the positions with the indices `start` and `stop`."""

    device: int
    start: int
    stop: int


class Cover:
    """Dynamic programming over (device, position) for one limit on seconds for each microbatch.

    `_departure_fills[d]` holds for each position the least fill (one microbatch there and back, in seconds)
    of all plans up to it whose last segment runs on device d; infinite where there is none. A loop's first
    device stands in the chain a second time, at its end, with what the head needs taken off.
    """

    def __init__(self, positions: Positions, devices: Devices, rules: Rules, limit: float) -> None:
        self._positions = positions
        self._rules = rules
        self._limit = limit * ROUNDING
        count = len(devices)
        self._devices = devices.take([*range(count), 0]) if rules.head else devices
        self._whole: dict[tuple[float, ...], Floats] = {}
        self._are_alike = len({self._kind(device) for device in range(count)}) * ALIKE <= count
        self._arrival_fills: list[Floats] = []
        self._departure_fills = np.full((len(self._devices), len(positions)), np.inf)

    def best(self) -> list[Piece] | None:
        """The plan with the least fill, in order; None if every plan exceeds the limit."""
        last = len(self._devices) - 1
        for device in range(last + 1):
            self._arrival_fills.append(self._arrivals(device))
            self._departure_fills[device] = self._departures(device)
        ends = [last] if self._rules.head or not self._rules.skips else list(range(last + 1))
        fills = self._departure_fills[ends, -1]
        end = int(np.argmin(fills))
        return self._trace(ends[end]) if np.isfinite(fills[end]) else None

    def _arrivals(self, device: int) -> Floats:
        """The least fill with which each position is handed to `device`: [P]."""
        before = self._before(device)
        arrival = np.full(len(self._positions), np.inf)
        reached = np.flatnonzero(np.isfinite(self._departure_fills[before.start : before.stop]).any(axis=0))
        if len(reached):
            columns = slice(int(reached[0]), int(reached[-1]) + 1)
            arrival[columns] = self._handed_over(before, device, columns).min(axis=0)
        if not self._rules.head and (device == 0 or self._rules.skips):
            arrival[0] = 0.0
        return arrival

    def _before(self, device: int) -> range:
        """Devices that may hold the segment before one on `device`; a loop's last one follows another."""
        if self._rules.head and device == len(self._devices) - 1:
            return range(1 if self._rules.skips else max(1, device - 1), device)
        return range(max(0, device - 1 - self._rules.skips), device)

    def _handed_over(self, before: range, device: int, columns: slice) -> Floats:
        """The least fill with which positions come from each device of `before`: [devices, columns]."""
        index = np.arange(before.start, before.stop)
        forth = self._devices.bandwidth[index, device][:, None]
        back = self._devices.bandwidth[device, index][:, None]
        latency = self._devices.latency[index, device] + self._devices.latency[device, index]
        with np.errstate(divide="ignore", invalid="ignore"):
            forward = self._positions.forward[columns] / forth
            backward = self._positions.backward[columns] / back
        allowed = (np.maximum(forward, backward) <= self._limit) & (np.minimum(forth, back) > 0)
        links = (forward + backward + latency[:, None]) * (TIE if self._rules.even else 1.0)
        fill = self._departure_fills[index, columns] + links
        return np.where(allowed, fill, np.inf)

    def _departures(self, device: int) -> Floats:
        """Least fill with which `device` ends its segment at each position: [P]."""
        departure = np.full(len(self._positions), np.inf)
        rules, arrival = self._rules, self._arrival_fills[device]
        if rules.head and device == 0:
            fill = self._seconds(0, slice(0, 1), slice(rules.head, rules.head + 1))[0, 0]
            departure[rules.head] = fill
            return departure
        starts = np.flatnonzero(np.isfinite(arrival))
        work, most = self._positions.work, self._limit * self._devices.speeds[device]
        for group in (starts[:1], starts[1:]):  # the first may be the beginning, far before all others
            if not len(group):
                continue
            first, end = int(group[0]), int(group[-1]) + 1
            furthest = int(np.searchsorted(work, work[end - 1] + most, side="right"))
            stops = slice(first + 1, furthest)
            seconds = self._seconds(device, slice(first, end), stops)
            if seconds.size:
                departure[stops] = np.minimum(departure[stops], (seconds + arrival[first:end]).min(axis=1))
        departure[rules.last_cut + 1 : -1] = np.inf
        return departure

    def _kind(self, device: int) -> tuple[float, ...]:
        """The properties of a device that a segment's seconds depend on."""
        devices = self._devices
        ends_loop = bool(self._rules.head) and device == len(devices) - 1
        numbers = (devices.speeds, devices.memory_bytes, devices.up, devices.down)
        return (*(float(each[device]) for each in numbers), float(ends_loop))

    def _seconds(self, device: int, starts: slice, stops: slice) -> Floats:
        """Seconds of each segment on `device`, infinite if it is not allowed there: [stops, starts]."""
        if not self._are_alike:
            return self._computed(device, starts, stops)
        kind = self._kind(device)
        if kind not in self._whole:
            self._whole[kind] = self._computed(device, slice(None), slice(None))
        return self._whole[kind][stops, starts]

    def _computed(self, device: int, starts: slice, stops: slice) -> Floats:
        table, devices = self._positions, self._devices
        work, room = table.between[stops, starts], min(devices.memory_bytes[device], FINITE)
        head = self._rules.head if self._rules.head and device == len(devices) - 1 else 0
        allowed = self._rules.need(table, head)[stops, starts] <= room
        if self._rules.recompute:
            fits = self._rules.need(table, head, recompute=True)[stops, starts] <= room
            work = np.where(allowed, work, work * RECOMPUTED)
            allowed = allowed | fits
        allowed &= work <= self._limit * devices.speeds[device] - table.work[head]
        lines = (
            (devices.up[device], table.forward, table.backward),
            (devices.down[device], table.backward, table.forward),
        )
        for rate, at_stop, at_start in lines:
            if np.isfinite(rate):
                crossing = at_stop[stops, None] + at_start[None, starts]
                allowed &= crossing <= self._limit * rate - (at_stop[head] if head else 0.0)
        seconds = work / devices.speeds[device]
        return np.where(allowed, seconds**2 / self._limit if self._rules.even else seconds, np.inf)

    def _trace(self, device: int) -> list[Piece]:
        """The segments of the best plan that ends on `device`, traced back from its end."""
        stop, pieces = len(self._positions) - 1, list[Piece]()
        while True:
            if self._rules.head and device == 0:
                return [Piece(0, 0, self._rules.head), *reversed(pieces)]
            arrival = self._arrival_fills[device]
            seconds = self._seconds(device, slice(0, stop), slice(stop, stop + 1))[0]
            start = int(np.argmin(seconds + arrival[:stop]))
            pieces.append(Piece(device, start, stop))
            if start == 0:
                break
            before = self._before(device)
            handed = self._handed_over(before, device, slice(start, start + 1))[:, 0]
            device = before[int(np.argmin(handed))]
            stop = start
        return list(reversed(pieces))
