"""An accelerator that fails at an op, under a compute thread and its codec thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from benchmarks.gpu import overlap, runner
from tests.gpu.fake_streams import Watched
from tests.gpu.numbers_device import NAME, DeviceTensor, Planted
from tests.gpu.race_detector import Detector
from tests.worker.running_thread import MICROBATCHES, PATIENCE_SECONDS, Running, eventually, running

from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.worker.computing.outcomes import Outgoing
from farflung.worker.events import ComputeFailed

MODEL = "chain"
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which"
    " 1.50 GiB is free.\nSee documentation"
)
LOST = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"
ERRORS: dict[str, Exception] = {
    "full": torch.OutOfMemoryError(FULL),
    "no-workspace": RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ),
    "lost": torch.AcceleratorError(LOST),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
}


@contextmanager
def failing(error: Exception, op: str, thread: str) -> Iterator[None]:
    """Raise an error whenever a thread of that name calls an op."""

    def before(name: str) -> None:
        if name == op and threading.current_thread().name == thread:
            raise error

    with patch.object(Planted, "before", before):
        yield


class Seen(NamedTuple):
    """What the compute thread said of an error, tensors on the device after it, and the step after that."""

    reason: str
    left: int
    works: bool


def runs_out_of_memory(op: str, thread: str, which: str = "full") -> Seen:
    """An op finds no memory; then the same job is loaded again, and runs as on the CPU."""
    torch.set_num_threads(1)
    with running(MODEL) as on_host:
        expected = _step(on_host)
    left: list[int] = []
    release = TorchBackend.release

    def counted(self: TorchBackend) -> None:
        left.append(_on_the_device())
        release(self)

    backend = TorchBackend(torch.device(NAME))
    before = _on_the_device()
    with running(MODEL, backend) as one:
        with patch.object(TorchBackend, "release", counted), failing(ERRORS[which], op, thread):
            one.feed(0)
            one.wait_for(ComputeFailed)
        (failed,) = [said for said in one.said if isinstance(said, ComputeFailed)]
        one.begin()
        return Seen(failed.reason, left[0] - before, _step(one) == expected)


def _on_the_device() -> int:
    gc.collect()
    return sum(isinstance(each, DeviceTensor) for each in gc.get_objects())


def _step(one: Running) -> Any:
    """The loss of a step and the empty gradients that end its microbatches."""
    for microbatch in range(MICROBATCHES):
        one.feed(microbatch)
    (share,) = one.shares()
    return share.loss, sum(isinstance(said, Outgoing) for said in one.said)


def fails_for_good(which: str) -> str:
    """What is known once an op found the device lost; the thread has ended and said nothing of the job."""
    torch.set_num_threads(1)
    with running(MODEL, TorchBackend(torch.device(NAME))) as one:
        with failing(ERRORS[which], "aten::addmm", "farflung-compute"):
            one.feed(0)
            eventually(lambda: one.thread.failure is not None)
        one.thread.join(PATIENCE_SECONDS)
        assert not one.thread.is_alive()
        assert not any(isinstance(said, ComputeFailed) for said in one.said)
        return str(one.thread.failure)


def races_of_two_workers() -> tuple[list[dict[str, object]], list[str]]:
    """What the benchmark of overlap finds here, whose two workers have a codec thread each; and its races."""
    Watched.detector = Detector()
    tiny = runner.Size("tiny", 16, 2, 2, 8, 2)
    with patch.object(overlap, "STEPS", 1), patch.object(runner, "SIZES", [tiny]):
        found = list(overlap.overlap(torch.device(NAME)))
    return found, Watched.detector.races
