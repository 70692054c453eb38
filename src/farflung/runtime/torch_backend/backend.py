"""PyTorch as a backend of a worker, on the CPU or any device that PyTorch has.

It keeps torch's compiler out of a process that compiles nothing, which saves
over a second of its first job, and memory. Shapes on the meta device are often computed in Python, by
functions that `torch._dynamo` must not inspect. They import it at their first call to say so, unless they are
already marked (`torch._compile`). If another torch version uses other marks, it is imported as usual.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from types import FunctionType

import psutil
import torch
from torch import Tensor

from farflung.errors import DeviceFailed, GraphError, JobError
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import Plan, Rates
from farflung.runtime.backend import Offer
from farflung.runtime.carrier import HostMemory
from farflung.runtime.coding import Coding
from farflung.runtime.task_timer import HostTimer
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.codecs import TensorCarrier
from farflung.runtime.torch_backend.codecs.coding import CrossingCoding
from farflung.runtime.torch_backend.crossing import (
    Arriving,
    Crossing,
    DeviceTimer,
    Leaving,
    has_streams,
    here,
)
from farflung.runtime.torch_backend.device import HOST, Place, placed
from farflung.runtime.torch_backend.kernels import kernel_digest
from farflung.runtime.torch_backend.modes import repeatable, use_mode
from farflung.runtime.torch_backend.profiling.rates import has_bfloat16, measure_rates, measure_tflops
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.torch_backend.verify import verify_segment
from farflung.runtime.training import Training

_MARK = "__dynamo_disable"


def keep_compiler_out() -> None:
    """Mark the functions that compute shapes, unless torch's compiler is imported already."""
    if "torch._dynamo" in sys.modules:
        return
    import torch._decomp.decompositions
    import torch._meta_registrations
    import torch._refs.nn.functional
    import torch._refs.special

    refs, others = torch._refs, (torch._decomp.decompositions, torch._meta_registrations)
    modules = (refs, refs.nn.functional, refs.special, *others)
    _mark([value for module in modules for value in vars(module).values()])


def _mark(found: list[object]) -> None:
    """Mark functions, and those that they wrap."""
    while found:
        function = found.pop()
        if isinstance(function, FunctionType) and not hasattr(function, _MARK):
            setattr(function, _MARK, function)
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # the cell is still empty
                    found.append(cell.cell_contents)


def device_name(device: torch.device) -> str:
    """The device as people know it, such as "NVIDIA H100 PCIe (cuda:0)"."""
    if device.type == "cpu":
        return platform.processor() or platform.machine()
    find = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{find(device)} ({device})" if find else str(device)


LOST = ("CUDA error", "HIP error", "XPU error")
"""How the messages of errors begin after which a process cannot use its device; cuBLAS's are among them."""


NO_ROOM = ("_STATUS_ALLOC_FAILED", "can't allocate memory", "std::bad_alloc")
"""cuBLAS and cuDNN find no memory for their workspaces, or a CPU's allocator none; the device works on."""


def failure_of(error: Exception, device: torch.device) -> JobError | DeviceFailed | None:
    """See `runtime.backend.Backend.failure`."""
    said = str(error).strip().partition("\n")[0]
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in said for words in NO_ROOM)
    ):
        wanted = next((part.strip() for part in said.split(". ") if "allocate" in part), said).rstrip(".")
        return JobError(
            f"{device} has no memory left for the job ({wanted[:100]}): offer less of it"
            " (farflung join --memory), or take smaller microbatches or more workers"
        )
    if isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and said.startswith(LOST)
    ):
        return DeviceFailed(f"the device failed: {said[:300]}; restart farflung join")
    return None


def require_no_bfloat16(segment: Segment, name: str) -> None:
    """Refuse a segment that computes in bfloat16, for a device without it."""
    if any(kind.dtype == "bfloat16" for kind in segment.values.values()):
        raise GraphError(f"the job computes in bfloat16, which {name} lacks: train in float32 or without it")


class TorchBackend:
    """See `runtime.backend.Backend`; arrays are tensors on `device`, or on their way there (`Arriving`).

    Received integers stay on the host until a segment takes them, because indices are checked there.
    """

    allocate = staticmethod(tensors.allocate)
    memory = staticmethod(tensors.memory)

    def __init__(self, device: torch.device = HOST) -> None:
        keep_compiler_out()
        self.device = placed(device)
        use_mode(self.device, deterministic=False)
        self._is_host = self.device.type == "cpu"
        self.overlaps = has_streams(self.device)

    @cached_property
    def crossing(self) -> Crossing | None:
        """Copies to and from the device, if it has streams; made by the thread that computes."""
        return Crossing(self.device) if self.overlaps else None

    def array(self, buffer: memoryview, form: Form) -> Tensor:
        return tensors.over(buffer, form).to(self.device)

    def leave(self, array: Tensor | Arriving) -> memoryview | Tensor | Leaving:
        array = here(array)  # a sum of gradients is passed on as it came
        if self.crossing is not None:
            return self.crossing.leave(array)
        return tensors.memory(array) if self._is_host else array.detach()

    def enter(self, received: memoryview | Tensor | Arriving, form: Form) -> Tensor | Arriving:
        if isinstance(received, Arriving):
            return received
        array = received if isinstance(received, Tensor) else tensors.over(received, form)
        return array.to(self.device) if array.is_floating_point() else array

    def offer(self) -> Offer:
        return Offer(
            self.device.type,
            device_name(self.device),
            psutil.cpu_count() or 1,
            f"torch {torch.__version__}",
            () if has_bfloat16(self.device) else ("bfloat16",),
            torch.get_num_threads(),
        )

    def measure_tflops(self) -> float:
        return measure_tflops(self.device)

    def measure_rates(self) -> Rates:
        found = measure_rates(self.device)
        self.release()
        return found

    def timer(self) -> HostTimer | DeviceTimer:
        return HostTimer() if self.crossing is None else DeviceTimer(self.crossing)

    def kernel_digest(self) -> str:
        with repeatable(self.device):  # only in this mode do bits say anything
            return kernel_digest(self.device)

    def warm_up(self) -> None:
        # An op without data imports SymPy for its shapes: 0.45 of the 0.53 s that loading a small GPT takes.
        torch.ops.aten.arange.default(1, device=torch.device("meta"))

    def verify(self, segment: Segment, batch: int) -> None:
        verify_segment(segment, batch)
        if not has_bfloat16(self.device):
            require_no_bfloat16(segment, device_name(self.device))

    def failure(self, error: Exception) -> JobError | DeviceFailed | None:
        return failure_of(error, self.device)

    def release(self) -> None:
        if self.crossing is not None:
            self.crossing.end_job()
        if self.device.type in ("cuda", "mps", "xpu"):
            torch.get_device_module(self.device).empty_cache()

    def runner(
        self, segment: Segment, state: Mapping[str, Tensor], training: Training, recompute: bool = False
    ) -> TorchSegment:
        use_mode(self.device, training.deterministic)
        return TorchSegment(segment, state, training, recompute, Place(self.device, self.crossing))

    def coding(
        self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment], first: int = 0
    ) -> Coding:
        if self.crossing is not None:
            return CrossingCoding(worker, plan, training, segments, first, self.crossing)
        carrier = HostMemory() if self._is_host else TensorCarrier(self.device)
        return Coding(worker, plan, training, segments, first, carrier)
