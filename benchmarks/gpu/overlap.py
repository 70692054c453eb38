"""Two workers of one device: values cross beside the computation, or the compute threads copy and wait."""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from benchmarks.gpu import runner
from benchmarks.gpu.clock import wait_for
from benchmarks.gpu.runner import Size, model

from farflung.opdag.capture import capture
from farflung.planner import PlannedJob, plan_graph
from farflung.plans import FEEDER
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import Outcome, Outgoing
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.computing.task_deadlines import Limits
from farflung.worker.events import Attempt, ComputeFailed, UnitFinished, Verified

STEPS, MICROBATCHES = 10, 8
WORKERS = ("a", "b")
PATIENCE_SECONDS = 300.0
MEMORY_BYTES = 10**12
ATTEMPT: Attempt = ("job-1", 1)


class OwnStream(ComputeThread):
    """A compute thread with a stream of its own, as it has in a process of its own."""

    def __init__(self, device: torch.device, *given: Any) -> None:
        super().__init__(*given)
        self._on = device

    def run(self) -> None:
        on_cuda = self._on.type == "cuda"  # where autograd runs backward on the stream of the forward pass
        with torch.cuda.stream(torch.cuda.Stream(self._on)) if on_cuda else nullcontext():
            super().run()


class Work(NamedTuple):
    """A planned job, the state that it begins with, and its microbatches' inputs by value, as bytes."""

    job: PlannedJob
    training: Training
    state: dict[str, memoryview]
    inputs: list[dict[int, memoryview]]


def work(size: Size) -> Work:
    """A GPT in two segments."""
    module, batches = model(size), runner.batches(size) * (MICROBATCHES // runner.MICROBATCHES)
    graph = capture(module, batches[0]).graph
    job = plan_graph(graph, MICROBATCHES, size.samples, list(WORKERS))
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}
    return Work(
        job,
        Training(10**6, MICROBATCHES, size.samples, AdamW(lr=1e-4)),
        {name: tensors.memory(tensor) for name, tensor in named_state(module, graph).items()},
        [{value: tensors.memory(batch[name]) for value, name in names.items()} for batch in batches],
    )


class Pair:
    """Two compute threads, with their codec threads, whose links are copies in memory."""

    def __init__(self, given: Work, device: torch.device, overlaps: bool) -> None:
        self._given, self._said = given, queue.SimpleQueue[Outcome]()
        self._unit = 0
        self.threads: dict[str, OwnStream] = {}
        for worker in WORKERS:
            backend = TorchBackend(device)
            backend.overlaps = backend.overlaps and overlaps
            self.threads[worker] = OwnStream(
                device, worker, MEMORY_BYTES, backend, self._said.put, self._deliver
            )
            self.threads[worker].start()
            self._load(worker)
        for thread in self.threads.values():
            thread.begin(ATTEMPT)

    def _load(self, worker: str) -> None:
        job, plan = self._given.job, self._given.job.plan
        numbers = plan.segments_of(worker)
        programs = [
            SegmentProgram(
                n,
                job.programs[n],
                {name: len(self._given.state[name]) for name in job.segments[n].owned},
                trained_shapes(job.segments[n]),
            )
            for n in numbers
        ]
        load = Load(*ATTEMPT, plan, self._given.training, programs, {}, "desk")
        receiver = StateReceiver(load, numbers, MEMORY_BYTES, tensors.allocate)
        for (_, name), buffer in receiver.buffers.items():
            buffer[:] = self._given.state[name]
        limits = Limits(1.0, PATIENCE_SECONDS, PATIENCE_SECONDS, PATIENCE_SECONDS)
        self.threads[worker].prepare(load, receiver, limits)
        said = self._next()
        if not isinstance(said, Verified) or said.problem is not None:
            raise RuntimeError(f"a segment was not loaded: {said}")

    def _deliver(self, outgoing: Outgoing) -> None:
        """Copy a parcel's bytes into memory of the receiver, as a link does."""
        parcel = outgoing.parcel
        if parcel.target == FEEDER:
            return
        coded = parcel.payload
        if coded is not None and len(coded.data):
            arrived = tensors.allocate(len(coded.data))
            arrived[:] = coded.data
            parcel = parcel.carrying(Coded(coded.codec, arrived))
        self.threads[outgoing.peer].receive(ATTEMPT, parcel)

    def step(self) -> float:
        """Run a step; returns its loss."""
        plan, number = self._given.job.plan, self._unit
        for microbatch, inputs in enumerate(self._given.inputs):
            for edge in plan.edges:
                if edge.source == FEEDER:
                    coded = Coded(0, inputs[edge.value])
                    fed = Parcel(number, microbatch, FEEDER, edge.target, edge.value, False, coded)
                    self.threads[plan.worker_of(edge.target)].receive(ATTEMPT, fed)
        loss = sum(share.loss for _ in WORKERS for share in self._finished().shares)
        for thread in self.threads.values():
            thread.decide(ATTEMPT, number, 1.0)
        self._unit += 1
        return loss

    def _finished(self) -> UnitFinished:
        said = self._next()
        if not isinstance(said, UnitFinished):
            raise RuntimeError(f"a step failed: {said.reason if isinstance(said, ComputeFailed) else said}")
        return said

    def _next(self) -> Outcome:
        return self._said.get(timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        """End the job and the threads."""
        for thread in self.threads.values():
            thread.drop()
            thread.close()
            thread.join(PATIENCE_SECONDS)


@contextmanager
def pair(given: Work, device: torch.device, overlaps: bool) -> Iterator[Pair]:
    """Two workers, which end afterwards."""
    made = Pair(given, device, overlaps)
    try:
        yield made
    finally:
        made.close()


def overlap(device: torch.device) -> Iterator[dict[str, object]]:
    """Milliseconds of a step of two workers with and without overlap; a CPU has no streams, so never with."""
    sizes = runner.SIZES if device.type != "cpu" else runner.SIZES[: runner.ON_CPU]
    for size in sizes:
        yield row(size, device)


def row(size: Size, device: torch.device) -> dict[str, object]:
    """One model: both kinds from the same state, so their losses must be equal, up to the device's sums."""
    given = work(size)
    overlapped, losses = measured(given, device, True)
    synchronous, others = measured(given, device, False)
    crossing = sum(edge.bytes for edge in given.job.plan.edges if edge.source != FEEDER) * MICROBATCHES
    return {
        "model": size.name,
        "overlapped_ms": round(1000 * overlapped, 2),
        "synchronous_ms": round(1000 * synchronous, 2),
        "ratio": round(overlapped / synchronous, 3),
        "crossing_mb": round(2 * crossing / 1e6, 1),
        "loss_difference": max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True)),
    }


def measured(given: Work, device: torch.device, overlaps: bool) -> tuple[float, list[float]]:
    """The median seconds of a step after two, and the losses of all."""
    seconds, losses = [], []
    with pair(given, device, overlaps) as workers:
        for _ in range(STEPS + 2):
            wait_for(device)
            began = time.perf_counter()
            losses.append(workers.step())
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:]), losses
