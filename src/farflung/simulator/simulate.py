"""Simulate a plan: its pipelines, and the sums of gradients over them, piece by piece (`costs.Piece`).

If each pipeline is at a site of its own, or all are at one, every pair exchanges shards, twice, as in DT-FM
(arXiv 2206.01288, section 3.3): worker i takes sum over j of 2 (latency_ij + gradients / (R bandwidth_ij)).
Else gradients are added within sites first (`LinkCosts.sum_messages`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from farflung.plans import Plan, Topology
from farflung.simulator.clock import Clock
from farflung.simulator.conditions import Conditions
from farflung.simulator.costs import (
    LinkCosts,
    Piece,
    SumPart,
    pieces_of,
    pipelines_of,
    throughput_seconds,
)
from farflung.simulator.device import Cores
from farflung.simulator.loads import Loads
from farflung.simulator.network import Message, Priority, Wiring
from farflung.simulator.pipeline import Pipeline
from farflung.simulator.simulation import Load, Simulation


class Sync:
    """One piece's exchange in one step: begins once all pipelines have called `ended`, ends with `done`.

    Without `gradient_bytes` nothing is exchanged.

    Each worker sends its parts one by one, each after the last has arrived, starting with the next worker in
    the row. So no two workers send to the same third one at a time, unless some are slower. What a part waits
    for at its sender is not simulated.
    """

    def __init__(
        self,
        clock: Clock,
        wiring: Wiring,
        costs: LinkCosts,
        workers: Sequence[int],
        gradient_bytes: float | None,
        done: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._wiring = wiring
        self._workers = workers
        self._parts: list[list[SumPart]] = [[] for _ in workers]
        if len(workers) > 1 and gradient_bytes is not None:
            self._parts = costs.sum_messages(workers, gradient_bytes)
        self._done = done
        self._running = len(workers)
        self._sending = len(workers)

    def ended(self) -> None:
        """Note that one pipeline's segment with the piece has run its last microbatch."""
        self._running -= 1
        if not self._running:
            for replica in range(len(self._workers)):
                self._send((replica, 0))

    def _send(self, turn: tuple[int, int]) -> None:
        replica, sent = turn
        if sent == len(self._parts[replica]):
            self._sending -= 1
            if not self._sending:
                self._done()
            return
        part = self._parts[replica][sent]
        link = self._wiring.link(self._workers[replica], part.target)
        assert link is not None
        message = Message(part.bytes, Priority.STATE, self._send, (replica, sent + 1))
        if part.coding_seconds:
            self._clock.at(self._clock.now + part.coding_seconds, link.post, message)
        else:
            link.post(message)


MOST_STEPS = 8
TURNS = 4
"""Steps that wait for the feeder can alternate between long and short: take the mean of this many."""
_ALIKE = 1e-3

_DEFAULT = Conditions()


def simulate(
    plan: Plan, topology: Topology, conditions: Conditions = _DEFAULT, *, timeline: bool = False
) -> Simulation:
    """Simulate one step of `plan` in a steady run; with `timeline` the result says when everything ran.

    A step begins with the broker's decision on the one before. Its first inputs have arrived already, because
    the feeder works ahead. If the feeder cannot keep up, steps are simulated from a cold start until two in a
    row take equally long; if none do, the result is the mean of the last `TURNS` steps. If replicas train
    apart, it is a mean step, and the timeline is of one without a merge.

    Raises
    ------
    PlanError
        The topology lacks a worker of the plan or a link, or a worker runs segments of two replicas.
    """
    if plan.pipeline_count == 1 or plan.inner_steps == 1:
        return _steady(plan, topology, conditions, timeline)
    apart = _steady(plan, topology, conditions, timeline, has_sums=False)
    return _mean_of(apart, _steady(plan, topology, conditions, timeline), plan.inner_steps)


def _steady(
    plan: Plan, topology: Topology, conditions: Conditions, timeline: bool, has_sums: bool = True
) -> Simulation:
    ahead = _Run(plan, topology, conditions, True, has_sums).once(timeline)
    return ahead or _Run(plan, topology, conditions, False, has_sums).until_steady(timeline)


def _mean_of(apart: Simulation, merging: Simulation, inner_steps: int) -> Simulation:
    """The mean step of replicas that train apart, of which one in `inner_steps` ends with a merge."""
    weights = 1 - 1 / inner_steps, 1 / inner_steps
    seconds = weights[0] * apart.step_seconds + weights[1] * merging.step_seconds
    busy, sent, loads = defaultdict[str, float](float), defaultdict[str, float](float), dict[str, Load]()
    for weight, one in zip(weights, (apart, merging), strict=True):
        for load in one.loads:
            loads[load.name] = load
            busy[load.name] += weight * load.share * one.step_seconds
            sent[load.name] += weight * load.bytes
    found = [replace(load, share=busy[name] / seconds, bytes=sent[name]) for name, load in loads.items()]
    ordered = sorted(found, key=lambda load: -load.share)
    return Simulation(seconds, tuple(ordered), apart.steps + merging.steps, apart.timeline)


class _Run:
    """The parts of a simulation, and its steps."""

    def __init__(
        self, plan: Plan, topology: Topology, conditions: Conditions, is_ahead: bool, has_sums: bool
    ) -> None:
        self._has_sums = has_sums
        self._conditions = conditions
        self._clock = Clock()
        self._costs = LinkCosts(plan, topology, conditions)
        self._wiring = Wiring(self._clock, self._costs)
        self._pieces = pieces_of(plan)
        found, cores = pipelines_of(plan, topology, conditions), _shared_cores(topology)
        self._workers = [one.workers for one in found]
        self._windows = [one.window for one in found]
        self._pipelines = [
            Pipeline(
                self._clock,
                self._wiring,
                one.transfers,
                one.workers,
                one.microbatches,
                one.window,
                one.seconds,
                one.recomputing,
                partial(self._segment_ended, number),
                cores,
            )
            for number, one in enumerate(found)
        ]
        for pipeline in self._pipelines:
            pipeline.feeder.start(is_ahead)
        self._owned = sum((one.owned_bytes for one in found), Counter[int]())
        self._loads = Loads(topology, self._wiring, self._pipelines, conditions.payload_share)
        self._least = throughput_seconds(found, self._costs)
        self._syncs: dict[tuple[int, int], list[Sync]] = {}
        self._summing: Counter[tuple[int, int]] = Counter()
        self._unfinished: dict[int, int] = {}
        self._unready = 0

    def once(self, timeline: bool) -> Simulation | None:
        """Simulate one step; None if the feeder could not have kept up with it."""
        seconds = self._step(timeline)
        pairs = zip(self._pipelines, self._windows, strict=True)
        is_behind = any(pipeline.feeder.under_way > window for pipeline, window in pairs)
        if is_behind or seconds < self._least * (1 - _ALIKE):
            return None
        return self._result(seconds, 1)

    def until_steady(self, timeline: bool) -> Simulation:
        """Simulate steps until one takes as long as the one before, or until they alternate."""
        before = 0.0
        for steps in range(1, MOST_STEPS - TURNS + 2):
            seconds = self._step(timeline)
            if abs(seconds - before) <= _ALIKE * seconds:
                return self._result(seconds, steps)
            before = seconds
        began = self._clock.now - seconds
        for _ in range(TURNS - 1):
            self._step(timeline, continues=True)
        return self._result((self._clock.now - began) / TURNS, MOST_STEPS, TURNS)

    def _result(self, seconds: float, steps: int, counted: int = 1) -> Simulation:
        """The result of the last `counted` of the simulated `steps`."""
        seconds = max(seconds, self._least)  # a single step can be shorter thanks to inputs fed before it
        return Simulation(seconds, self._loads.of(seconds, counted), steps, self._loads.timeline())

    def _step(self, timeline: bool, continues: bool = False) -> float:
        began = self._clock.now
        self._loads.begin(began, timeline, continues)
        self._begin_sums()
        self._unfinished = {
            worker: len(device.segments)
            for pipeline in self._pipelines
            for worker, device in pipeline.devices.items()
        }
        self._unready = len(self._unfinished)
        for pipeline in self._pipelines:
            pipeline.begin(self._ready_at)
        self._clock.run()
        return self._clock.now - began

    def _ready_at(self, worker: int) -> float:
        """When a worker begins: after it got the decision and updated its parameters."""
        away = self._costs.seconds_away(self._costs.home, worker) if self._conditions.commit else 0.0
        rate = self._conditions.update_bytes_per_second
        return self._clock.now + away + (self._owned[worker] / rate if rate else 0.0)

    def _begin_sums(self) -> None:
        """Prepare the exchange of each piece, which the segments that hold it wait for."""
        self._syncs, self._summing = {}, Counter()
        for piece in self._pieces:
            sync = Sync(
                self._clock,
                self._wiring,
                self._costs,
                [workers[segment] for workers, segment in zip(self._workers, piece.holders, strict=True)],
                piece.gradient_bytes if self._has_sums else None,
                partial(self._piece_synced, piece),
            )
            for place in enumerate(piece.holders):
                self._syncs.setdefault(place, []).append(sync)
                self._summing[place] += 1

    def _segment_ended(self, pipeline: int, segment: int) -> None:
        syncs = self._syncs.get((pipeline, segment), [])
        for sync in syncs:
            sync.ended()
        if not syncs:
            self._segment_synced(pipeline, segment)

    def _piece_synced(self, piece: Piece) -> None:
        for place in enumerate(piece.holders):
            self._summing[place] -= 1
            if not self._summing[place]:
                self._segment_synced(*place)

    def _segment_synced(self, pipeline: int, segment: int) -> None:
        worker = self._workers[pipeline][segment]
        self._unfinished[worker] -= 1
        if not self._unfinished[worker]:
            away = self._costs.seconds_away(worker, self._costs.home) if self._conditions.commit else 0.0
            self._clock.at(self._clock.now + away, self._ready)

    def _ready(self, _: object) -> None:
        self._unready -= 1
        if not self._unready:
            self._clock.stop()


def _shared_cores(topology: Topology) -> dict[int, Cores]:
    """The cores of the machine, for each worker that has no core of its own."""
    cores = {}
    for numbers in topology.machines().values():
        count = topology.workers[numbers[0]].cores
        assert count is not None
        if count < len(numbers):
            cores.update(dict.fromkeys(numbers, Cores(count)))
    return cores
