"""What the modes of a device set in its process, asked where the fake accelerator is."""

from __future__ import annotations

import torch
from tests.gpu.numbers_device import NAME

from farflung.runtime.torch_backend.modes import repeatable, use_mode


def settings() -> tuple[bool, bool, bool, bool]:
    """Deterministic algorithms, TF32 in products and in convolutions, and cuDNN's search for the fastest."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )


def of_both() -> list[tuple[bool, ...]]:
    """The settings on the CPU, of a fast job, of a deterministic one, and while bits are compared."""
    before, device = settings(), torch.device(NAME)
    use_mode(torch.device("cpu"), True)
    found = [settings()]
    assert found == [before]
    for deterministic in (False, True):
        use_mode(device, deterministic)
        found.append(settings())
    with repeatable(device):
        found.append(settings())
    assert settings() == found[1]
    return found[1:]
