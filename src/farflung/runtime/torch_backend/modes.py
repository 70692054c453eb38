"""Fast or repeatable: what kernels a device may choose, which PyTorch keeps once for a whole process.

Fast is the default on GPUs: float32 products in TF32, cuDNN's fastest convolutions, sums by atomic additions.
A deterministic job has full float32 and kernels that give the same bits each time, for parity and for the
replay of lost shares; some ops are slower by far, and one without such a kernel is refused when it runs. A
CPU always computes as a deterministic job does, and nothing is set for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE_WORKSPACE = ":4096:8"
"""Without it cuBLAS may pick a kernel by what other streams use; read at the first product of a process."""


def use_mode(device: torch.device, deterministic: bool) -> None:
    """Set what kernels this process uses on a device from now on."""
    if device.type == "cpu":
        return
    os.environ.setdefault(WORKSPACE, REPEATABLE_WORKSPACE)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = not deterministic
    torch.backends.cudnn.allow_tf32 = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic  # a segment's shapes never change


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Use the deterministic mode inside, and the fast one afterwards."""
    use_mode(device, True)
    try:
        yield
    finally:
        use_mode(device, False)
