"""The executor runs a worker's tasks as their messages arrive, in the order that the schedule policy gives.

It is not safe for concurrent calls. A worker runs it on its compute thread; `farflung check` runs one
executor per segment in one process, so both use the same code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol

from farflung.errors import PayloadError
from farflung.plans import FEEDER, Edge, Plan
from farflung.runtime.backend import Array, SegmentRunner
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.parcel import Parcel
from farflung.runtime.sums import SumMessage, UnitSums
from farflung.runtime.training import Training
from farflung.schedule import Policy, Task, TaskKind, Unit, UnitWindow, needs_of


class SegmentShare(NamedTuple):
    """A segment's part of a finished unit; `finite` says whether all the numbers are.

    `squares` has the float64 sum of squares of each gradient by its parameter's value id, empty after an
    evaluation; `loss` is the float64 share of the loss. `metrics` has the sums of an evaluation's metrics.
    `bits` has the bit sums of gradients that replicas have added up, where these cost little.
    """

    segment: int
    squares: dict[int, float]
    finite: bool
    loss: float
    metrics: Mapping[int, float] = MappingProxyType({})
    bits: Mapping[int, int] = MappingProxyType({})


class Outlet(Protocol[Array]):
    """Receives an executor's results."""

    def send(self, parcel: Parcel[Array]) -> None:
        """Deliver a parcel to its target segment or the feeder; its payload does not change any more.

        A sum that a codec writes is also sent to the segment that sends it.
        """

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        """Every microbatch of `unit` has run here; the executor waits for `Executor.decide`."""


@dataclass
class _UnitState(Generic[Array]):
    """Received messages and finished tasks of one unit."""

    unit: Unit
    policy: Policy
    sums: UnitSums[Array]
    values: dict[tuple[int, int], dict[int, Array]] = field(default_factory=dict)
    gradients: dict[tuple[int, int], dict[tuple[int, int], Array]] = field(default_factory=dict)
    buckets: dict[int, int] = field(default_factory=dict)
    begins_sums: bool = True
    norms: dict[int, float] = field(default_factory=dict)
    reported: bool = False


class Executor(Generic[Array]):
    """Runs the segments that `plan` gives to one worker, unit after unit, beginning at unit `first`.

    With the state that the units before it left, a run that begins at a later one has the bits of the whole.
    """

    def __init__(
        self,
        plan: Plan,
        segments: Mapping[int, SegmentRunner[Array]],
        training: Training,
        outlet: Outlet[Array],
        first: int = 0,
    ) -> None:
        self._plan = plan
        self._training = training
        self._segments = dict(sorted(segments.items()))
        self._outlet = outlet
        self._window = UnitWindow(training.units(), first)
        self._units: dict[int, _UnitState[Array]] = {}
        self._is_over = False
        self._incoming = _edges(plan.edges, lambda edge: edge.target)
        self._outgoing = _edges(plan.edges, lambda edge: edge.source)
        self._owners = {name: s for s in self._segments.values() for name in s.segment.owned}
        self._summed = plan.summed()
        self._pipeline = plan.pipeline_of(min(self._segments))

    def receive(self, parcel: Parcel[Array]) -> None:
        """Take a parcel for one of this worker's segments.

        Raises
        ------
        PayloadError
            It is in another bucket than the microbatch was before.
        """
        state = self._unit(parcel.unit)
        if state is None:
            return
        if (parcel.target, parcel.value) in self._summed:
            message = SumMessage(*parcel[2:5], not parcel.gradient, parcel.payload)
            self._post_sums(state, state.sums.receive(message))
            return
        if state.buckets.setdefault(parcel.microbatch, parcel.bucket) != parcel.bucket:
            raise PayloadError(
                f"value {parcel.value} of microbatch {parcel.microbatch} came in bucket {parcel.bucket},"
                f" others of it in {state.buckets[parcel.microbatch]}",
                None,  # which of them is false can't be known here
            )
        key = (parcel.target, parcel.microbatch)
        if parcel.gradient:
            if parcel.payload is not None:
                state.gradients.setdefault(key, {})[(parcel.source, parcel.value)] = parcel.payload
        else:
            assert parcel.payload is not None
            state.values.setdefault(key, {})[parcel.value] = parcel.payload
        state.policy.arrived(parcel.target, parcel.microbatch, parcel.gradient)

    def run_next(self) -> bool:
        """Run the next task of the current unit; false if there is none to run now."""
        due = self.next()
        if due is not None:
            self.run(*due)
        return due is not None

    def next(self) -> tuple[Unit, Task] | None:
        """The next task of the current unit, which `run` must take; None if there is none to run now.

        When all of them have run the unit is *ready*.
        """
        state = self._unit(self._window.current)
        if state is None:
            return None
        task = state.policy.next()
        if task is not None:
            return state.unit, task
        if state.policy.done and state.begins_sums:
            state.begins_sums = False
            self._begin_sums(state)
        if state.policy.done and state.sums.is_done and not state.reported:
            state.reported = True
            self._report(state)
        return None

    def run(self, unit: Unit, task: Task) -> None:
        """Run the task that `next` returned."""
        state = self._units[unit.number]
        if task.kind is TaskKind.FORWARD:
            self._forward(state, task)
        elif task.kind is TaskKind.BACKWARD:
            self._backward(state, task)
        else:
            self._accumulate(state, task)
        state.policy.finished(task)

    def decide(self, unit: int, scale: float) -> None:
        """End the current unit: a training step is applied with gradients times `scale`.

        A job that clips by segments bounds what each has then.
        """
        state = self._units.pop(unit, None)
        norms = {} if state is None else state.norms
        decided = self._window.get(unit)
        assert decided is not None and unit == self._window.current
        for number, segment in self._segments.items():
            if decided.train:
                own = clip_scale(self._training.segment_clip, norms.get(number, 0.0) * scale)
                segment.apply(decided.step, scale * own)
            elif decided.merges:
                segment.merge(decided.alone)
        self._window.advance()

    @property
    def current(self) -> int:
        """The number of the unit that runs, or runs next."""
        return self._window.current

    def restart(self, plan: Plan | None = None) -> None:
        """Forget what was received and computed for undecided units: the current one runs from new inputs.

        A `plan`, if given, has the same segments here, with the same edges; others may have been dropped.
        """
        if plan is not None:
            self._plan, self._summed = plan, plan.summed()
        self._units.clear()
        for segment in self._segments.values():
            segment.drop()

    @property
    def is_over(self) -> bool:
        """Whether nothing runs any more, so that the state stays as it is."""
        return self._is_over

    def end(self) -> None:
        """Free the memory of undecided units; nothing is received and nothing runs afterwards."""
        self.restart()
        self._is_over = True

    def _unit(self, number: int) -> _UnitState[Array] | None:
        """The state of a unit, created on first use; None if it is over or beyond the job's last unit."""
        state = self._units.get(number)
        if state is None and not self._is_over and (unit := self._window.get(number)) is not None:
            needs = needs_of(self._segments, self._plan.edges, self._plan.recomputing())
            first = min(self._segments)
            mine = self._plan.microbatches_of(first, unit.microbatches, unit.alone)
            policy = Policy(needs, mine, self._plan.window_of(first), unit.train)
            summed = self._plan.sums if self._training.has_sums(unit) else ()
            is_coded = self._plan.has_coded_sums and not unit.alone
            sums: UnitSums[Array] = UnitSums(summed, self._segments, is_coded)
            state = self._units[number] = _UnitState(unit, policy, sums)
        return state

    def _forward(self, state: _UnitState[Array], task: Task) -> None:
        values = state.values.pop((task.segment, task.microbatch), {})
        bucket = state.buckets.get(task.microbatch, 0)
        results = self._segments[task.segment].forward(state.unit, task.microbatch, values, bucket)
        for edge in self._outgoing.get(task.segment, []):
            self._send(state, task, edge.target, edge.value, False, results[edge.value])

    def _backward(self, state: _UnitState[Array], task: Task) -> None:
        """Run backward, which sends gradients as soon as they exist, then empty ones for all other edges."""
        incoming = self._incoming.get(task.segment, [])
        sources = {edge.value: edge.source for edge in incoming if edge.differentiable}
        sent: set[int] = set()

        def emit(value: int, gradient: Array) -> None:
            sent.add(value)
            self._send(state, task, sources[value], value, True, gradient)

        if state.unit.train:
            arrived = state.gradients.pop((task.segment, task.microbatch), {})
            summed = _sum_gradients(arrived)
            self._segments[task.segment].backward(state.unit, task.microbatch, summed, emit)
        for edge in incoming:
            if edge.value not in sent and (edge.source != FEEDER or not state.unit.train):
                self._send(state, task, edge.source, edge.value, True, None)

    def _accumulate(self, state: _UnitState[Array], task: Task) -> None:
        """Accumulate, then release the microbatch's model inputs, so that the feeder may send more."""
        self._segments[task.segment].accumulate(state.unit, task.microbatch)
        for edge in self._incoming.get(task.segment, []):
            if edge.source == FEEDER:
                self._send(state, task, FEEDER, edge.value, True, None)

    def _send(
        self,
        state: _UnitState[Array],
        task: Task,
        target: int,
        value: int,
        gradient: bool,
        payload: Array | None,
    ) -> None:
        unit, microbatch = state.unit.number, task.microbatch
        bucket = state.buckets.get(microbatch, 0)
        parcel = Parcel(unit, microbatch, task.segment, target, value, gradient, payload, bucket)
        if target in self._segments:
            self.receive(parcel)
        else:
            self._outlet.send(parcel)

    def _begin_sums(self, state: _UnitState[Array]) -> None:
        """Bring the gradients of each parameter together, on this worker and then over the pipelines."""
        for segment in self._segments.values():
            segment.share_gradients(self._owners)
        if state.sums.is_done:
            self._merge_alone(state.unit)
            return
        found = {
            (number, value): gradient
            for number, segment in self._segments.items()
            for value, gradient in self._summand(state.unit, segment).items()
        }
        self._post_sums(state, state.sums.begin(found))

    def _merge_alone(self, unit: Unit) -> None:
        """Let the only pipeline that is left take its outer step."""
        for segment in self._segments.values() if unit.merges else ():
            for value, gradient in self._summand(unit, segment).items():
                segment.set_parameter_gradient(value, gradient)

    def _summand(self, unit: Unit, segment: SegmentRunner[Array]) -> Mapping[int, Array]:
        """What a segment gives to the sums of a unit, by value id."""
        if not unit.merges:
            return segment.parameter_gradients()
        if unit.alone:
            return segment.trained_parameters() if self._pipeline == self._plan.home_pipeline else {}
        return segment.outer_gradients(self._plan.share_of(self._pipeline))

    def _post_sums(self, state: _UnitState[Array], messages: Sequence[SumMessage[Array]]) -> None:
        """Send messages of the step's sums, and go on with each sum that is known."""
        for one in messages:
            parcel = Parcel(
                state.unit.number, 0, one.source, one.target, one.value, not one.is_whole, one.payload
            )
            self._outlet.send(parcel)
        for (number, value), total in state.sums.take_totals().items():
            self._segments[number].set_parameter_gradient(value, total)

    def _report(self, state: _UnitState[Array]) -> None:
        shares = []
        for number, segment in self._segments.items():
            squares = {} if state.unit.evaluates else segment.square_sums()
            state.norms[number] = gradient_norm([squares])
            loss = segment.take_loss()
            finite = all(map(math.isfinite, (loss, *squares.values())))
            has_sums = bool(self._plan.sums) and self._training.has_sums(state.unit)
            bits = segment.bit_sums() if has_sums else {}
            shares.append(SegmentShare(number, squares, finite, loss, segment.take_metrics(), bits))
        self._outlet.ready(state.unit, shares)


def _edges(edges: Sequence[Edge], end: Callable[[Edge], int]) -> dict[int, list[Edge]]:
    found: dict[int, list[Edge]] = {}
    for edge in edges:
        found.setdefault(end(edge), []).append(edge)
    return found


def _sum_gradients(arrived: Mapping[tuple[int, int], Array]) -> dict[int, Array]:
    """Sum the gradients of each value over its consumers, in ascending order of consumer segment."""
    summed: dict[int, Array] = {}
    for (_, value), gradient in sorted(arrived.items(), key=lambda item: item[0]):
        summed[value] = summed[value] + gradient if value in summed else gradient
    return summed
