"""A whole plan in one process: one executor per worker of the plan, messages handed over directly.

`check` uses it to hold the captured, cut and differentiated model against eager before anything is rented;
it runs the same executors, policies and segments as workers do, without links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from farflung.errors import PlanError
from farflung.opdag.graph import Graph
from farflung.opdag.segment import Segment
from farflung.plan import FEEDER, Plan
from farflung.runtime.executor import Executor, Parcel, SegmentShare
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.training import Training
from farflung.schedule import Unit


class _Outlet:
    """Collects what one executor has to say; the pipeline delivers it."""

    def __init__(self) -> None:
        self.parcels: list[Parcel[Tensor]] = []
        self.shares: list[SegmentShare] | None = None

    def send(self, parcel: Parcel[Tensor]) -> None:
        self.parcels.append(parcel)

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        self.shares = shares


class InProcessPipeline:
    """Runs units of a plan on microbatches given as dicts of tensors.

    `state` maps parameter and buffer names to tensors, which training updates in place.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        segments: Sequence[Segment],
        state: Mapping[str, Tensor],
        training: Training,
    ) -> None:
        self._plan = plan
        self._names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self.segments = [
            TorchSegment(segment, state, training, placement.recompute)
            for segment, placement in zip(segments, plan.placements, strict=True)
        ]
        self._outlets = {worker: _Outlet() for worker in plan.workers()}
        self._executors = {
            worker: Executor(
                plan, {n: self.segments[n] for n in plan.segments_of(worker)}, training, self._outlets[worker]
            )
            for worker in plan.workers()
        }

    def run(self, unit: int, microbatches: Sequence[Mapping[str, Tensor]]) -> list[SegmentShare]:
        """Run one unit up to *ready*; returns the shares in segment order. `decide` must follow."""
        for number, batch in enumerate(microbatches):
            self._feed(unit, number, batch)
        while any(outlet.shares is None for outlet in self._outlets.values()):
            progressed = [executor.run_next() for executor in self._executors.values()]
            if (
                not self._deliver()
                and not any(progressed)
                and any(o.shares is None for o in self._outlets.values())
            ):
                raise PlanError(
                    "the plan cannot make progress: a segment waits for a value that nobody sends"
                )
        shares = [s for outlet in self._outlets.values() for s in outlet.shares or ()]
        return sorted(shares, key=lambda share: share.segment)

    def decide(self, unit: int, scale: float) -> None:
        """Apply the unit's gradients times `scale` everywhere."""
        for worker, executor in self._executors.items():
            executor.decide(unit, scale)
            self._outlets[worker].shares = None

    def _feed(self, unit: int, microbatch: int, batch: Mapping[str, Tensor]) -> None:
        for edge in self._plan.edges:
            if edge.source == FEEDER:
                tensor = batch[self._names[edge.value]]
                parcel = Parcel(unit, microbatch, FEEDER, edge.target, edge.value, False, tensor)
                self._executors[self._plan.worker_of(edge.target)].receive(parcel)

    def _deliver(self) -> bool:
        delivered = False
        for outlet in self._outlets.values():
            parcels, outlet.parcels = outlet.parcels, []
            for parcel in parcels:
                delivered = True
                if parcel.target != FEEDER:
                    self._executors[self._plan.worker_of(parcel.target)].receive(parcel)
        return delivered
