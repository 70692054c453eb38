"""What a worker does with values whose sizes are not those of the bucket that their header names."""

from __future__ import annotations

import pytest
from tests.support.lengths import language
from tests.worker.loads import fresh, limits
from tests.worker.running_thread import eventually

from farflung.client.capture.check import capture_shapes
from farflung.client.run.microbatches import Microbatches
from farflung.planner import plan_graph
from farflung.plans import FEEDER
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import Outcome, Outgoing
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import ComputeFailed, UnitFinished, Verified

ATTEMPT = ("job-1", 1)


class Worker:
    """A compute thread with a whole GPT, which takes batches of three lengths, and what it said."""

    def __init__(self) -> None:
        job = language(validation=None)
        graph = capture_shapes(job).graph
        made = plan_graph(graph, 4, 2, ["worker-0"])
        (segment,) = made.segments
        state = {name: tensors.memory(t.detach()) for name, t in named_state(job.model, graph).items()}
        sizes = {name: len(state[name]) for name in segment.owned}
        program = SegmentProgram(0, made.programs[0], sizes, trained_shapes(segment))
        load = Load("job-1", 1, made.plan, job.training(), [program], {}, "desk")
        self.said: list[Outcome | Outgoing] = []
        self.thread = ComputeThread("worker-0", 10**9, TorchBackend(), self.said.append, self.said.append)
        receiver = StateReceiver(load, [0], 10**9, fresh)
        for (_, name), buffer in receiver.buffers.items():
            buffer[:] = state[name]
        self.thread.start()
        self.thread.prepare(load, receiver, limits())
        self.wait_for(Verified)
        self.thread.begin(ATTEMPT)
        self.names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self.fed = [edge.value for edge in made.plan.edges if edge.source == FEEDER]
        (unit, *_) = job.training().units()
        self.microbatches = Microbatches(job, graph).load_unit(unit)

    def feed(self, number: int, bucket: int | None = None) -> None:
        one = self.microbatches[number]
        for value in self.fed:
            data = Coded(0, tensors.memory(one.tensors[self.names[value]]))
            place = one.bucket if bucket is None else bucket
            self.thread.receive(ATTEMPT, Parcel(0, number, FEEDER, 0, value, False, data, place))

    def wait_for(self, kind: type) -> None:
        eventually(lambda: any(isinstance(one, kind) for one in list(self.said)))

    def end(self) -> None:
        self.thread.close()
        self.thread.join(60)


def test_batches_of_all_lengths_run_in_one_unit() -> None:
    worker = Worker()
    for number in range(4):
        worker.feed(number)
    worker.wait_for(UnitFinished)
    worker.end()
    assert len({one.bucket for one in worker.microbatches}) > 1


@pytest.mark.cases(1)
@pytest.mark.parametrize("bucket", [1, 2])
def test_a_value_with_the_size_of_another_length_ends_the_attempt_and_names_its_sender(bucket: int) -> None:
    worker = Worker()
    number = next(n for n, one in enumerate(worker.microbatches) if one.bucket != bucket)
    worker.feed(number, bucket)
    worker.wait_for(ComputeFailed)
    worker.end()
    (failed,) = [one for one in worker.said if isinstance(one, ComputeFailed)]
    assert (
        f"of microbatch {number} came with" in failed.reason and f"in bucket {bucket} it has" in failed.reason
    )
    assert failed.sender == "desk"
