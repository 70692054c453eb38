"""Which device a worker on PyTorch computes on, and why not on another one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch

from farflung.errors import JobError

AUTO = "auto"
LEAST_FREE_BYTES = 10**9
"""A GPU with less free memory is not used: PyTorch's own kernels and workspaces take about half of it."""
WHEELS = "https://download.pytorch.org/whl/cu126"


@dataclass(frozen=True)
class Gpu:
    """A device, such as `cuda:0`, with the name of its model and its memory in bytes."""

    device: str
    model: str
    free_bytes: int
    total_bytes: int

    @property
    def is_full(self) -> bool:
        """Whether other processes have taken its memory."""
        return self.free_bytes < LEAST_FREE_BYTES

    @property
    def memory(self) -> str:
        """Its memory in words."""
        return f"{self.free_bytes / 1e9:.1f} of {self.total_bytes / 1e9:.1f} GB free"


@dataclass(frozen=True)
class Machine:
    """What PyTorch finds here.

    `build` is what PyTorch was built for, "" for the CPU alone; `has_nvidia` whether the machine has NVIDIA's
    driver tools; `trouble` why the driver cannot be used.
    """

    version: str
    build: str
    gpus: tuple[Gpu, ...] = ()
    has_nvidia: bool = False
    has_mps: bool = False
    trouble: str = ""

    def why_no_gpu(self) -> str:
        """Why PyTorch has no GPU here, and what helps; empty if it has one."""
        if self.gpus:
            return ""
        if self.has_nvidia and not self.build:
            return (
                f"this PyTorch ({self.version}) is built for CPUs, and the machine has an NVIDIA GPU:"
                f" pip install torch=={self.version.partition('+')[0]} --index-url {WHEELS}"
            )
        if self.trouble:
            return f"{self.build} cannot be used: {self.trouble}: install or update the GPU's driver"
        if self.build:
            return f"PyTorch is built for {self.build} and finds no GPU: install its driver, if there is one"
        return "PyTorch finds no GPU"


@dataclass(frozen=True)
class Choice:
    """A device for `torch.device`; `memory_bytes` is what of its memory is free, None for the CPU's."""

    device: str
    name: str = ""
    memory_bytes: int | None = None
    remark: str = ""


def choose(wanted: str, machine: Machine) -> Choice:
    """The device that `wanted` names; for `auto` the GPU with the most free memory, else the CPU.

    Raises
    ------
    JobError
        There is no such device, or other processes fill it.
    """
    if wanted == AUTO:
        return _best(machine)
    if wanted == "cpu":
        return Choice("cpu")
    if wanted == "mps":
        if not machine.has_mps:
            raise JobError("--device mps: this PyTorch has no MPS, which needs macOS on Apple silicon")
        return Choice("mps", "Apple GPU")
    if not machine.gpus:
        raise JobError(f"--device {wanted}: {machine.why_no_gpu()}")
    if wanted == "cuda":
        return _checked(max(machine.gpus, key=lambda gpu: gpu.free_bytes))
    found = next((gpu for gpu in machine.gpus if gpu.device == wanted), None)
    if found is None:
        raise JobError(f"--device {wanted}: this machine has {', '.join(g.device for g in machine.gpus)}")
    return _checked(found)


def _best(machine: Machine) -> Choice:
    free = [gpu for gpu in machine.gpus if not gpu.is_full]
    if free:
        return _of(max(free, key=lambda gpu: gpu.free_bytes))
    if machine.gpus:
        full = max(machine.gpus, key=lambda gpu: gpu.free_bytes)
        return Choice("cpu", remark=f"{full.device} is not used: {_filled(full)}")
    if machine.has_mps:
        return Choice("mps", "Apple GPU")
    expects_one = machine.has_nvidia or bool(machine.trouble)
    return Choice("cpu", remark=f"no GPU is used: {machine.why_no_gpu()}" if expects_one else "")


def _checked(gpu: Gpu) -> Choice:
    if gpu.is_full:
        raise JobError(f"--device {gpu.device}: {_filled(gpu)}")
    return _of(gpu)


def _of(gpu: Gpu) -> Choice:
    return Choice(gpu.device, gpu.model, gpu.free_bytes)


def _filled(gpu: Gpu) -> str:
    return (
        f"{gpu.memory} on {gpu.model}, and a worker needs {LEAST_FREE_BYTES / 1e9:g} GB: end what uses it"
        " (nvidia-smi lists it), or choose another device"
    )


def local_devices(wanted: str, workers: int, gpus: int) -> list[str]:
    """The `--device` of each of a machine's `workers`: a GPU each, if all can have one, else the CPU.

    Workers that are alike get equal parts of a model, so GPUs and CPUs are not mixed. Raises JobError if GPUs
    are asked for and there are fewer than workers.
    """
    if wanted == AUTO and workers > gpus:
        return ["cpu"] * workers
    if wanted not in (AUTO, "cuda"):
        return [wanted] * workers
    if workers > gpus:
        raise JobError(f"--device cuda: {workers} workers, {gpus} GPUs: each worker needs one of its own")
    return [f"cuda:{number}" for number in range(workers)]


def gpu_count() -> int:
    """The number of GPUs, by the driver's library: CUDA is not begun, so this process may still fork."""
    return max(0, torch.cuda.device_count())


def this_machine() -> Machine:
    """What PyTorch finds on this machine; begins CUDA in this process, which must not fork afterwards."""
    version = str(torch.__version__)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    if torch.version.hip:
        build = f"ROCm {torch.version.hip}"
    has_nvidia = shutil.which("nvidia-smi") is not None
    has_mps = torch.backends.mps.is_available()
    if not build:
        return Machine(version, build, (), has_nvidia, has_mps)
    gpus, trouble = [], ""
    for number in range(gpu_count()):
        try:
            free, total = torch.cuda.mem_get_info(number)
            gpus.append(Gpu(f"cuda:{number}", torch.cuda.get_device_name(number), free, total))
        except RuntimeError as error:  # the driver is too old, or the GPU fell off the bus
            trouble = str(error).strip().partition("\n")[0][:200]
    return Machine(version, build, tuple(gpus), has_nvidia, has_mps, trouble)
