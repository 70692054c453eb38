"""Dynamic programming over all ordered subsets of few devices and all cuts, for one limit on the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.gates import certain_crossing
from farflung.planner.cutting.cover import FINITE
from farflung.planner.cutting.positions import RECOMPUTED, Positions
from farflung.planner.devices import Devices
from farflung.planner.objective.closed_form import round_trip_share

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Path:
    """Segments in order: their devices, and the index of the position where each one ends."""

    devices: tuple[int, ...]
    stops: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """The planning problem, as tables.

    Parameters
    ----------
    positions, devices
        Where the model may be cut, and the devices.
    window
        Microbatches in flight.
    around : float64 [n]
        Seconds of a step besides its microbatches if it begins and ends on each device.
    sizes
        The smallest and the largest number of devices to use.
    recompute
        Whether a segment that does not fit may recompute.
    """

    positions: Positions
    devices: Devices
    window: int
    around: Floats
    sizes: tuple[int, int]
    recompute: bool

    @property
    def microbatches(self) -> int:
        """Microbatches of a step."""
        return self.positions.workload.microbatches

    @property
    def rounds(self) -> int:
        """The least number of whole round trips for which a step waits."""
        return -(-self.microbatches // self.window)


class Subsets:
    """Finds which step times are possible.

    In a chain of devices with segments of c seconds (forward and backward), of which w are on a microbatch's
    way (`passes.round_trip_share`), the time in which one comes to a device and, from there, back to the
    start is u, and all the way there and back it is f. A step of M microbatches takes at least u + M w and M
    c for each device, f + (M - 1) t for t seconds on any link in either direction, u without what the shared
    line itself carries + M t for all that a line carries, and `rounds` f. Links and lines carry what they
    must carry whatever the other cuts are (`certain_crossing`), and where that is no value with a gradient, u
    begins anew. Each of these is a lower bound on the simulated step.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        table, devices = case.positions, case.devices
        certain = certain_crossing(table.workload)
        forward, backward = certain.forward[table.at], certain.backward[table.at]
        self.forward, self.backward, self.has_gradient = forward, backward, certain.has_gradient[table.at]
        self.round_trip_part = round_trip_share()
        self.seconds = [self._segments(device) for device in range(len(devices))]
        rate = np.where(devices.bandwidth > 0, devices.bandwidth, np.nan)[:, :, None]
        self.sent = np.nan_to_num(forward / rate, nan=np.inf)
        self.returned = np.nan_to_num(backward / rate, nan=np.inf).transpose(1, 0, 2)
        self.away = devices.latency + devices.latency.T

    def _segments(self, device: int) -> Floats:
        """Seconds of each segment on `device`, infinite where it does not fit: [stop, start]."""
        table, devices = self._case.positions, self._case.devices
        room = min(devices.memory_bytes[device], FINITE)
        window = self._case.window
        work = np.where(table.need(window) <= room, table.between, np.inf)
        if self._case.recompute:
            again = np.where(table.need(window, recompute=True) <= room, table.between * RECOMPUTED, np.inf)
            work = np.minimum(work, again)
        return np.asarray(work / devices.speeds[device])

    def bound(self, path: Path) -> float:
        """A lower bound on the simulated step of a plan."""
        devices, count = self._case.devices, self._case.microbatches
        trip, start, worst, link = float(self._case.around[path.devices[0]]), 0, 0.0, 0.0
        for number, (device, stop) in enumerate(zip(path.devices, path.stops, strict=True)):
            sent = returned = 0.0
            if number:
                last = path.devices[number - 1]
                sent, returned = self.sent[last, device, start], self.returned[last, device, start]
                trip += sent + returned + self.away[last, device]
                if not self.has_gradient[start]:
                    trip, sent, returned = float(self._case.around[device]), 0.0, 0.0
                link = max(link, sent, returned)
            up = (self.forward[stop] + self.backward[start]) / devices.up[device]
            down = (self.backward[stop] + self.forward[start]) / devices.down[device]
            whole = self.seconds[device][stop, start]
            seconds = whole * self.round_trip_part
            worst = max(worst, trip + count * seconds, float(self._case.around[device]) + count * whole)
            worst = max(worst, trip - returned + count * up, trip - sent + count * down)
            trip, start = trip + seconds, stop
        rounds = self._case.rounds
        around = self._case.rounds * trip - (rounds - 1) * float(self._case.around.max())
        return float(max(worst, trip + (count - 1) * link, around))

    def near(self, limit: float, most: int) -> list[Path]:
        """The best plans for each set of devices and last device, with the least bounds up to `limit`."""
        count = self._case.microbatches
        paths = [
            path
            for share in (1.0, 0.5)
            for path in _Pass(self, self._case, limit, share * limit / max(count - 1, 1)).ends()
        ]
        bounds = {path: self.bound(path) for path in dict.fromkeys(paths)}
        return sorted((path for path in bounds if bounds[path] < limit), key=lambda path: bounds[path])[:most]

    def within(self, limit: float) -> Path | None:
        """A plan whose bound is at most `limit`, or None: then no plan's step is as short."""
        count = self._case.microbatches
        round_trip, path = 0.0, None
        while True:
            link = (limit - round_trip) / (count - 1) if count > 1 else np.inf
            if link < 0:
                return None
            found = _Pass(self, self._case, limit, link).best()
            if found is None:
                return None
            longer, path = found
            if longer <= round_trip:  # with links no busier than `link`: nothing was excluded
                return path
            round_trip = longer


class _Pass:
    """For one limit on the step and one on links: the least round trips to each position.

    `_left[chosen, last][p]` is the round trip to position p of the best plan up to there on the devices
    `chosen` (a bit for each), of which `last` holds the segment that ends there.
    """

    def __init__(self, tables: Subsets, case: Case, limit: float, link: float) -> None:
        self._tables = tables
        self._case = case
        self._limit = limit * (1 + 1e-12)
        self._link = link * (1 + 1e-12)
        self._left: dict[tuple[int, int], Floats] = {}

    def best(self) -> tuple[float, Path] | None:
        """The least round trip of a whole plan, and the plan; None if every plan exceeds a limit."""
        case, fills = self._case, self._fills()
        if not fills:
            return None
        end = min(fills, key=lambda end: fills[end])
        best, most_around = fills[end], float(case.around.max())
        if best * case.rounds - (case.rounds - 1) * most_around > self._limit:
            return None
        return best, self._trace(*end)

    def ends(self) -> list[Path]:
        """The plan with the least round trip for each set of devices and last device."""
        return [self._trace(*end) for end in self._fills()]

    def _fills(self) -> dict[tuple[int, int], float]:
        """Round trips of whole plans, by the devices they use and the last of them."""
        fewest, most = self._case.sizes
        found = {}
        for chosen in range(1, 1 << len(self._case.devices)):
            if chosen.bit_count() > most:
                continue
            for last in _bits(chosen):
                left = self._segment(chosen ^ 1 << last, last)
                self._left[chosen, last] = left
                if chosen.bit_count() >= fewest and np.isfinite(left[-1]):
                    found[chosen, last] = float(left[-1])
        return found

    def _segment(self, before: int, device: int) -> Floats:
        """Round trips to where a segment on `device`, after those on `before`, may end: [P]."""
        work, left = self._case.positions.work, np.full(len(self._case.positions), np.inf)
        arrivals, _ = self._arrivals(before, device)
        starts = np.flatnonzero(np.isfinite(arrivals[0]))
        if not len(starts):
            return left
        first, end = int(starts[0]), int(starts[-1]) + 1
        most = self._limit / self._case.microbatches * self._case.devices.speeds[device] * (1 + 1e-12)
        furthest = int(np.searchsorted(work, work[end - 1] + most, side="right"))
        rows, columns = slice(first + 1, furthest), slice(first, end)
        if furthest > first + 1:
            left[rows] = self._round_trips(device, arrivals[:, columns], rows, columns).min(axis=1)
        left[left > self._limit] = np.inf
        return left

    def _round_trips(self, device: int, arrivals: Floats, stops: slice, starts: slice) -> Floats:
        """Round trips with each segment on `device` that meets the limit: [stops, starts]."""
        tables, devices, count = self._tables, self._case.devices, self._case.microbatches
        whole = tables.seconds[device][stops, starts]
        seconds = whole * tables.round_trip_part
        allowed = (arrivals[0] + count * seconds <= self._limit) & (
            self._case.around[device] + count * whole <= self._limit
        )
        lines = (
            (devices.up[device], arrivals[1], tables.forward, tables.backward),
            (devices.down[device], arrivals[2], tables.backward, tables.forward),
        )
        for rate, head, at_stop, at_start in lines:
            if np.isfinite(rate):
                busy = (at_stop[stops, None] + at_start[None, starts]) / rate
                allowed &= head + count * busy <= self._limit
        return np.where(allowed, arrivals[0] + seconds, np.inf)

    def _arrivals(self, before: int, device: int) -> tuple[Floats, Floats]:
        """Round trips to where a segment on `device` may begin, and those over each device before it.

        The first are [3, P]: complete, without the last link's backward part, and without its forward part.
        """
        tables = self._tables
        begun = self._case.around[device]
        if not before:
            alone = np.full((3, len(self._case.positions)), np.inf)
            alone[:, 0] = begun
            return alone, alone[:1]
        index = _bits(before)
        left = np.array([self._left[before, last] for last in index])
        sent, returned = tables.sent[index, device], tables.returned[index, device]
        left = np.where(np.maximum(sent, returned) <= self._link, left, np.inf)
        left = left + tables.away[index, device][:, None]
        trips_by_last = np.array([left + sent + returned, left + sent, left + returned])
        trips_by_last = np.where(~tables.has_gradient & np.isfinite(trips_by_last), begun, trips_by_last)
        return trips_by_last.min(axis=1), trips_by_last[0]

    def _trace(self, chosen: int, last: int) -> Path:
        stop = len(self._case.positions) - 1
        devices, stops = [last], [stop]
        while True:
            before = chosen ^ 1 << last
            arrivals, trips_by_last = self._arrivals(before, last)
            trips = self._round_trips(last, arrivals[:, :stop], slice(stop, stop + 1), slice(0, stop))
            start = int(trips[0].argmin())
            if start == 0:
                return Path(tuple(reversed(devices)), tuple(reversed(stops)))
            chosen, last, stop = before, _bits(before)[int(trips_by_last[:, start].argmin())], start
            devices.append(last)
            stops.append(stop)


def _bits(chosen: int) -> list[int]:
    return [bit for bit in range(chosen.bit_length()) if chosen >> bit & 1]
