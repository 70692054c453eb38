"""Run a whole plan in one process: one executor per worker, messages passed directly.

`farflung check` uses it to compare the captured and cut model with the eager module. It runs the same
executors, policies, segments and codecs as workers, but without links. All compute on one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from farflung.errors import PlanError
from farflung.opdag.buckets import bucket_of, input_shapes
from farflung.opdag.graph import Graph
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, LinkCodec, Plan
from farflung.runtime.carrier import Carrier, HostMemory
from farflung.runtime.coding import Coding
from farflung.runtime.executor import Executor, SegmentShare
from farflung.runtime.home_noise import HomeNoise
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.codecs import TensorCarrier
from farflung.runtime.torch_backend.device import HOST, Place
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.training import Training
from farflung.schedule import Unit, UnitWindow


class _Outlet:
    """Collects the results of one executor, for the pipeline to deliver."""

    def __init__(self) -> None:
        self.parcels: list[Parcel[Tensor]] = []
        self.shares: list[SegmentShare] | None = None

    def send(self, parcel: Parcel[Tensor]) -> None:
        self.parcels.append(parcel)

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        self.shares = shares


class InProcessPipeline:
    """Runs units of a plan on microbatches given as dicts of tensors on the host.

    `state` maps parameter and buffer names to tensors, which training updates in place; if the plan has
    several pipelines, the first one has them and the others have copies. They are on `device`, and so is what
    segments and codecs compute. Values between workers are encoded and decoded with the codecs of `plan` and
    `training`. The first unit to run is number `first`. If the plan binds segments to home workers, and the
    training adds noise to what leaves them, each draws it from its name: nothing is secret in one process.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        segments: Sequence[Segment],
        state: Mapping[str, Tensor],
        training: Training,
        first: int = 0,
        device: torch.device = HOST,
    ) -> None:
        self.plan = self._plan = plan
        self._training = training
        self._is_host = device.type == "cpu"
        self._names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self._shapes = input_shapes(graph, training.microbatch_size)
        copies = [{name: t.detach().clone() for name, t in state.items()} for _ in plan.pipelines[1:]]
        states = [state, *copies]
        self.segments = [
            TorchSegment(segment, states[plan.pipeline_of(n)], training, placement.recompute, Place(device))
            for n, (segment, placement) in enumerate(zip(segments, plan.placements, strict=True))
        ]
        self._summed = plan.summed()
        self._outlets = {worker: _Outlet() for worker in plan.workers()}
        self._executors = {
            worker: Executor(
                plan,
                {n: self.segments[n] for n in plan.segments_of(worker)},
                training,
                self._outlets[worker],
                first,
            )
            for worker in plan.workers()
        }
        carrier: Carrier = HostMemory() if self._is_host else TensorCarrier(device)
        self.codings = (
            {
                worker: Coding(
                    worker, plan, training, [segments[n] for n in plan.segments_of(worker)], first, carrier
                )
                for worker in plan.workers()
            }
            if training.codecs
            else {}
        )
        self._noises = {
            worker: HomeNoise(worker.encode()[:64], worker, plan, training, "in-process")
            for worker in plan.workers()
        }
        self._plain = False
        self._units = UnitWindow(training.units(), first)

    def run(
        self, unit: int, microbatches: Sequence[Mapping[str, Tensor]], plain: bool = False
    ) -> list[SegmentShare]:
        """Run one unit up to *ready*; returns the shares in segment order. `decide` must follow.

        With `plain`, values are passed without codecs.
        """
        self._plain = plain
        found = self._training.units().at(unit)
        alone = found is not None and found.alone
        for number, batch in enumerate(microbatches):
            self._feed(unit, number, batch, len(microbatches), alone)
        while any(outlet.shares is None for outlet in self._outlets.values()):
            progressed = [executor.run_next() for executor in self._executors.values()]
            if (
                not self._deliver()
                and not any(progressed)
                and any(o.shares is None for o in self._outlets.values())
            ):
                raise PlanError(
                    "the plan cannot make progress: a segment waits for a value that no segment sends"
                )
        shares = [s for outlet in self._outlets.values() for s in outlet.shares or ()]
        return sorted(shares, key=lambda share: share.segment)

    def decide(self, unit: int, scale: float, scales: Sequence[float] = ()) -> None:
        """Apply the unit's gradients times `scale` everywhere, and switch to the next planned codec pairs.

        Pipelines that train apart have `scales` of their own.
        """
        for worker, executor in self._executors.items():
            pipeline = self._plan.pipeline_of(min(self._plan.segments_of(worker)))
            executor.decide(unit, scales[pipeline] if scales else scale)
            self._outlets[worker].shares = None
        for coding in self.codings.values():
            coding.decided(unit)
        if self._plan.later:
            self._switch_codecs(unit)

    def restart(self) -> None:
        """Forget the unit in flight, at any moment: `run` it again, from new inputs."""
        for worker, executor in self._executors.items():
            executor.restart()
            self._outlets[worker].parcels, self._outlets[worker].shares = [], None
        for coding in self.codings.values():
            coding.restart()

    def _switch_codecs(self, number: int) -> None:
        unit = self._units.get(number)
        self._units.advance()
        codecs = self._plan.codecs_from(unit.step + 1) if unit is not None and unit.train else None
        if codecs is not None:
            self.set_codecs(codecs)

    def set_codecs(self, codecs: Sequence[LinkCodec]) -> None:
        """Set the links' codec pairs from the next unit on; call it after `decide`."""
        for coding in self.codings.values():
            coding.set(codecs)

    def take_sent(self) -> dict[tuple[str, str], Sent]:
        """Return and reset what was encoded on each link, by the ids of its workers; nothing if plain."""
        return {
            (worker, sent.target): sent
            for worker, coding in self.codings.items()
            for sent in coding.take_sent()
        }

    def _feed(self, unit: int, microbatch: int, batch: Mapping[str, Tensor], count: int, alone: bool) -> None:
        found = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        bucket = bucket_of(self._shapes, found) or 0
        for edge in self._plan.edges:
            if edge.source == FEEDER and microbatch in self._plan.microbatches_of(edge.target, count, alone):
                tensor = batch[self._names[edge.value]]
                parcel = Parcel(unit, microbatch, FEEDER, edge.target, edge.value, False, tensor, bucket)
                worker = self._plan.worker_of(edge.target)
                if worker in self.codings:
                    whole = Coded(0, tensors.memory(tensor.contiguous()))
                    self.codings[worker].decode(parcel.carrying(whole), tensors.allocate)
                self._executors[worker].receive(parcel)

    def _deliver(self) -> bool:
        delivered = False
        for worker, outlet in self._outlets.items():
            parcels, outlet.parcels = outlet.parcels, []
            for parcel in parcels:
                delivered = True
                if parcel.target != FEEDER:
                    target = self._plan.worker_of(parcel.target)
                    self._executors[target].receive(self._transfer(worker, target, parcel))
        return delivered

    def _with_noise(self, source: str, parcel: Parcel[Tensor]) -> Parcel[Tensor]:
        """The parcel as it leaves its worker, with noise if it leaves home."""
        noise, value = self._noises[source], parcel.payload
        if value is None or not noise.covers(parcel):
            return parcel
        kind = self.segments[parcel.source].segment.values[parcel.value]
        data = noise.added(tensors.memory(value.contiguous()), kind.dtype, value.shape)
        return parcel.carrying(tensors.like(data, value))

    def _transfer(self, source: str, target: str, parcel: Parcel[Tensor]) -> Parcel[Tensor]:
        """The parcel as it arrives at the other end of the link."""
        if (parcel.target, parcel.value) in self._summed:  # each pipeline has its own
            parcel = parcel._replace(payload=None if parcel.payload is None else parcel.payload.clone())
        parcel = self._with_noise(source, parcel)
        if self._plain or not self.codings:
            return parcel
        leaving = tensors.memory if self._is_host else torch.Tensor.detach
        data = None if parcel.payload is None else leaving(parcel.payload)
        coded = self.codings[source].encode(parcel.carrying(data))
        read = self.codings[target].decode(coded, tensors.allocate)
        if coded.payload is None or not coded.payload.codec or parcel.payload is None:
            return parcel
        if not self._is_host:
            return read
        whole = torch.frombuffer(read.payload, dtype=parcel.payload.dtype)
        return parcel.carrying(whole.reshape(parcel.payload.shape))
