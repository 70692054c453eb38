"""The compute thread copies the state between two steps, and the copy is of that moment."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, placed
from tests.worker.loads import limits, load
from tests.worker.running_thread import PATIENCE_SECONDS, eventually

from farflung.plans import FEEDER
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram, Share
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import OutgoingState, StateCopied, StateGiven
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.driver import Driver
from farflung.worker.events import CopyState, UnitFinished, Verified
from farflung.worker.records import State

torch.set_num_threads(1)
NAME, SAMPLES, MICROBATCHES = "gpt-dropout", 2, 2
ATTEMPT = ("job-1", 1)
Kind = TypeVar("Kind")


class Trained:
    """A compute thread that trains a whole model, and what came out of it."""

    def __init__(self) -> None:
        module, graph = captured(case(NAME), SAMPLES)
        job = placed(graph, [], ["worker-0"], MICROBATCHES, SAMPLES)
        state = {name: bytes(tensors.memory(t.detach())) for name, t in named_state(module, graph).items()}
        sizes = {name: len(state[name]) for name in job.segments[0].owned}
        program = SegmentProgram(0, job.programs[0], sizes, trained_shapes(job.segments[0]))
        training = Training(3, MICROBATCHES, SAMPLES, AdamW(0.01))
        load = Load("job-1", 1, job.plan, training, [program], {}, "desk")
        receiver = StateReceiver(load, [0], 10**9, tensors.allocate)
        for (_, name), buffer in receiver.buffers.items():
            buffer[:] = state[name]
        self.said: list[object] = []
        self.thread = ComputeThread("worker-0", 10**9, TorchBackend(), self.said.append, self.said.append)
        self.thread.start()
        self.thread.prepare(load, receiver, limits())
        self.all_of(Verified, 1)
        self.thread.begin(ATTEMPT)
        names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        batches = microbatches(case(NAME), SAMPLES, MICROBATCHES, 0)
        self._inputs = [
            (microbatch, edge.value, tensors.memory(batch[names[edge.value]].contiguous()))
            for microbatch, batch in enumerate(batches)
            for edge in job.plan.edges
            if edge.source == FEEDER
        ]

    def run(self, unit: int) -> tuple[Share, ...]:
        """The shares of a unit, once every microbatch has run."""
        for microbatch, value, data in self._inputs:
            fed = Parcel(unit, microbatch, FEEDER, 0, value, False, Coded(0, data))
            self.thread.receive(ATTEMPT, fed)
        return self.all_of(UnitFinished, unit + 1)[unit].shares

    def given(self) -> dict[str, bytes]:
        return {str(one.key): bytes(one.buffer) for one in self.all_of(OutgoingState, 0)}

    def all_of(self, kind: type[Kind], count: int) -> list[Kind]:
        def found() -> list[Kind]:
            return [one for one in list(self.said) if isinstance(one, kind)]

        eventually(lambda: len(found()) >= count)
        return found()


@contextmanager
def training() -> Iterator[Trained]:
    one = Trained()
    try:
        yield one
    finally:
        one.thread.close()
        one.thread.join(PATIENCE_SECONDS)


def test_a_copy_holds_the_step_that_was_just_applied_and_the_next_step_is_as_without_it() -> None:
    with training() as ended:
        ended.run(0)
        ended.thread.decide(ATTEMPT, 0, 0.5)
        ended.thread.give_state(ATTEMPT, whole=True)
        ended.all_of(StateGiven, 1)
        expected = ended.given()
    with training() as undisturbed:
        undisturbed.run(0)
        undisturbed.thread.decide(ATTEMPT, 0, 0.5)
        shares = undisturbed.run(1)
    with training() as copying:
        copying.run(0)
        copying.thread.decide(ATTEMPT, 0, 0.5)
        copying.thread.copy_state(ATTEMPT, 0, keep=True, copy=True, with_base=True)
        assert copying.run(1) == shares
        copying.thread.decide(ATTEMPT, 1, 1.0)
        copying.run(2)
        (copied,) = copying.all_of(StateCopied, 1)
        assert {str(piece.key): bytes(data) for piece, data in copied.pieces.items()} == expected
        assert copied.keep and copied.base == {} and any("exp_avg_sq" in key for key in expected)
        assert copied.unit == 0
        assert not copying.all_of(StateGiven, 0)


def test_no_second_copy_is_made_while_the_first_takes_memory() -> None:
    with training() as one:
        written = threading.Event()
        one.run(0)
        one.thread.decide(ATTEMPT, 0, 0.5)
        one.thread.wait(ATTEMPT, "waiting for the disk", written.wait)
        one.thread.copy_state(ATTEMPT, 0, keep=True, copy=False)

        def waiting() -> bool:
            doing = one.thread.stopwatch.doing
            return doing is not None and (doing.what, doing.allowed_seconds) == (
                "waiting for the disk",
                math.inf,
            )

        eventually(waiting)
        assert not one.all_of(StateCopied, 0)
        written.set()
        one.all_of(StateCopied, 1)


def test_a_worker_waits_for_its_disk_before_it_copies_its_state() -> None:
    asked: list[str] = []
    driver = Driver.__new__(Driver)
    driver.state = State("worker-0", load=load())
    driver.copying = cast(Any, SimpleNamespace(lacks_base=False, wait_until_written=asked.clear))
    driver.compute = cast(
        Any,
        SimpleNamespace(
            wait=lambda attempt, what, until: asked.append(f"wait for {until.__name__}"),
            copy_state=lambda *arguments: asked.append("copy"),
        ),
    )
    driver._carry_out(CopyState(0, keep=True))
    assert asked == ["wait for clear", "copy"]
