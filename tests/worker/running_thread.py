"""A compute thread with a whole model, for tests of what it does and says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, placed
from tests.worker.loads import limits

from farflung.plans import FEEDER
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram, Share
from farflung.runtime.backend import AnyBackend
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import Outcome, Outgoing, OutgoingState, StateGiven
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import UnitFinished, Verified

torch.set_num_threads(1)
SAMPLES, MICROBATCHES, PATIENCE_SECONDS = 2, 3, 60.0
ATTEMPT = ("job-1", 1)
NAME = "gpt-dropout"


class Running:
    """A compute thread that has a whole model, from the job's second step on, and what it said."""

    UNIT = 1

    def __init__(self, name: str = NAME, backend: AnyBackend | None = None) -> None:
        module, graph = captured(case(name), SAMPLES)
        job = placed(graph, [], ["worker-0"], MICROBATCHES, SAMPLES)
        self.state = {
            name: bytes(tensors.memory(t.detach())) for name, t in named_state(module, graph).items()
        }
        sizes = {name: len(self.state[name]) for name in job.segments[0].owned}
        training = Training(3, MICROBATCHES, SAMPLES, SGD(0.1))
        programs = [SegmentProgram(0, job.programs[0], sizes, trained_shapes(job.segments[0]))]
        self._load = Load("job-1", 1, job.plan, training, programs, {}, "desk", self.UNIT)
        self.said: list[Outcome | Outgoing] = []
        backend = backend or TorchBackend()
        self.thread = ComputeThread("worker-0", 10**9, backend, self.said.append, self.said.append)
        self.thread.start()
        batches = microbatches(case(name), SAMPLES, MICROBATCHES, 0)
        names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        fed = [edge for edge in job.plan.edges if edge.source == FEEDER]
        self._inputs = [
            [(edge.value, tensors.memory(batch[names[edge.value]].contiguous())) for edge in fed]
            for batch in batches
        ]
        self.begin()

    def begin(self) -> None:
        """Load the job, from the state that it began with, and begin."""
        receiver = StateReceiver(self._load, [0], 10**9, tensors.allocate)
        for (_, name), buffer in receiver.buffers.items():
            buffer[:] = self.state[name]
        self.said.clear()
        self.thread.prepare(self._load, receiver, limits())
        self.wait_for(Verified)
        self.thread.begin(ATTEMPT)

    def feed(self, microbatch: int) -> None:
        for value, data in self._inputs[microbatch]:
            fed = Parcel(self.UNIT, microbatch, FEEDER, 0, value, False, Coded(0, data))
            self.thread.receive(ATTEMPT, fed)

    def wait_for(self, kind: type) -> None:
        eventually(lambda: any(isinstance(one, kind) for one in list(self.said)))

    def shares(self) -> tuple[Share, ...]:
        self.wait_for(UnitFinished)
        (finished,) = [one for one in self.said if isinstance(one, UnitFinished)]
        return finished.shares

    def handed_out(self) -> dict[str, bytes]:
        self.wait_for(StateGiven)
        return {one.key.name: bytes(one.buffer) for one in self.said if isinstance(one, OutgoingState)}


@contextmanager
def running(name: str = NAME, backend: AnyBackend | None = None) -> Iterator[Running]:
    one = Running(name, backend)
    try:
        yield one
    finally:
        one.thread.close()
        one.thread.join(PATIENCE_SECONDS)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
