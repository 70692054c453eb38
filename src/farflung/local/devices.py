"""What the workers of a fleet on this machine compute on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from farflung.runtime.frameworks import AUTO, is_installed


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
