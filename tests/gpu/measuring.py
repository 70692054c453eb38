"""Rates of the accelerator that is not there: which are measured, by what, and in which mode."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple
from unittest.mock import patch

import torch
from tests.gpu.fake_streams import Event
from tests.gpu.numbers_device import NAME, Planted
from tests.worker.running_thread import ATTEMPT, MICROBATCHES, running

from farflung.plans import Rates
from farflung.protocol.registration import Device
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.profiling import rates
from farflung.worker.computing.running_job import RunningJob
from farflung.worker.computing.task_deadlines import Stopwatch
from farflung.worker.events import UnitFinished
from farflung.worker.measuring import describe_device


class Seen(NamedTuple):
    """Rates, and for each call of a product whether TF32 was allowed: for float32's, then for the others."""

    tflops: float
    rates: Rates
    alone: list[bool]
    others: list[bool]


def measured(tf32: bool) -> Seen:
    """Measure with small matrices, on a device that has TF32 or not."""
    allowed: list[bool] = []

    def before(name: str) -> None:
        if name == "aten::mm":
            allowed.append(torch.backends.cuda.matmul.allow_tf32)

    with _small() as stack:
        stack.enter_context(patch.object(rates, "has_tf32", lambda device: tf32))
        stack.enter_context(patch.object(Planted, "before", before))
        backend = TorchBackend(torch.device(NAME))
        tflops = backend.measure_tflops()
        alone, allowed[:] = list(allowed), []
        found = backend.measure_rates()
    return Seen(tflops, found, alone, allowed)


def described_without_bfloat16() -> Device:
    """A device that refuses bfloat16, as its worker offers it."""
    with _small() as stack, patch.object(Planted, "lacks", frozenset({torch.bfloat16})):
        stack.enter_context(patch.object(TorchBackend, "kernel_digest", lambda self: ""))
        return describe_device(TorchBackend(torch.device(NAME)), 10**9)


TASK_SECONDS = 0.5


def a_unit() -> tuple[int, float, list[str]]:
    """Run a unit whose tasks take half a second each, as events say: how many ran, and what is reported.

    The last are the kinds of what it says that it ran, because it is watched.
    """
    torch.set_num_threads(1)
    tasks = 0

    def counted(self: RunningJob[torch.Tensor], stopwatch: Stopwatch) -> bool:
        nonlocal tasks
        ran = run_next(self, stopwatch)
        tasks += ran
        return ran

    def elapsed(self: Event, end: Event) -> float:
        assert self.query() and end.query(), "an event that has not passed"
        return 1e3 * TASK_SECONDS

    run_next = RunningJob.run_next
    with (
        patch.object(RunningJob, "run_next", counted),
        patch.object(Event, "elapsed_time", elapsed),
        running("chain", TorchBackend(torch.device(NAME))) as one,
    ):
        one.thread.watch(ATTEMPT, one.UNIT)
        for microbatch in range(MICROBATCHES):
            one.feed(microbatch)
        one.wait_for(UnitFinished)
        (finished,) = [said for said in one.said if isinstance(said, UnitFinished)]
    return tasks, finished.computing_seconds, [span.kind for span in finished.ran]


def _small() -> ExitStack:
    stack = ExitStack()
    for name, value in (("SIZES_ON_GPU", (8, 16)), ("SECONDS", 0.0), ("COPIED_BYTES_ON_GPU", 2**12)):
        stack.enter_context(patch.object(rates, name, value))
    return stack
