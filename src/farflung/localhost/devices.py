"""What the workers of this machine compute on, and how they share its memory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from farflung.runtime.frameworks import AUTO, is_installed

OFFERED = 0.8
"""Share of the machine's memory for workers; the rest is for everything else."""
OFFERED_OF_GPU = 0.9
"""Share of a GPU's free memory for jobs; the rest is for kernels' workspaces and gaps between tensors."""


def devices_for(wanted: str, workers: int) -> Sequence[str]:
    """The `join --device` of each of the workers; empty for the CPU.

    Imports PyTorch only where there may be a GPU. Raises JobError if `wanted` is not here.
    """
    if wanted == "cpu" or not is_installed("torch") or (wanted == AUTO and not _may_have_gpu()):
        return ()
    from farflung.runtime.torch_backend.choice import choose, gpu_count, local_devices, this_machine

    count = gpu_count()
    if wanted != AUTO and count == 0:
        choose(wanted, this_machine())  # says why there is none
    return local_devices(wanted, workers, count)


def _may_have_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/dev/kfd").exists()


def share_of_free(free_bytes: int) -> int:
    """Bytes that a worker offers of a GPU of its own that has `free_bytes`."""
    return int(OFFERED_OF_GPU * free_bytes)


def share_of_memory(workers: int) -> int:
    """Bytes for each of `workers` workers on this machine."""
    return int(OFFERED * memory_here() / workers)


def memory_here(groups: Path = Path("/sys/fs/cgroup"), mine: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that this process may use: the memory of the machine, or its container's limit if that is less.

    `groups` is where Linux shows control groups, of version 2 or 1, and `mine` names this process's.
    """
    import psutil

    limits = [psutil.virtual_memory().total]
    lines = mine.read_text().splitlines() if mine.is_file() else []
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if number == "0":
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path)  # in a container its parents may be out of sight, but not the container
        for one in (group, *group.parents):
            file = root / one.relative_to("/") / name
            if file.is_file() and (text := file.read_text().strip()).isdecimal():
                limits.append(int(text))
    return min(limits)
