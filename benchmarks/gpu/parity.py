"""Models of the zoo on the device and on the CPU: losses, gradients and parameters of two steps."""

from __future__ import annotations

import torch
from benchmarks.zoo import CASES, MODELS
from benchmarks.zoo.devices import compare

from farflung.runtime.parity.steps import LOSS_TOLERANCE, PARAMETER_TOLERANCE


def parity(device: torch.device) -> list[dict[str, object]]:
    """Relative differences, in float32 with TF32 off; a model that cannot run says why."""
    names = [found.name for found in (*CASES, *MODELS)]
    if device.type != "cuda":
        return [row(name, device) for name in names]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        return [row(name, device) for name in names]
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def row(name: str, device: torch.device) -> dict[str, object]:
    """One model."""
    try:
        found = compare(device, name)
    except Exception as error:
        return {"model": name, "ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    ok = found.loss <= LOSS_TOLERANCE and found.state <= PARAMETER_TOLERANCE
    return {"model": name, "ok": ok, **{key: float(f"{value:.2g}") for key, value in found._asdict().items()}}
