"""Models of the zoo on the device and on the CPU: losses, gradients and parameters of two steps.

All in the deterministic mode, in which a second run on the device must have the bits of the first.
"""

from __future__ import annotations

import torch
from benchmarks.zoo import CASES, MODELS
from benchmarks.zoo.devices import Run, compare

from farflung.opdag import opset
from farflung.runtime.parity.steps import LOSS_TOLERANCE, PARAMETER_TOLERANCE
from farflung.runtime.torch_backend.backend import TorchBackend

STEPS, WORKERS = 2, 2


def parity(device: torch.device) -> list[dict[str, object]]:
    """Relative differences; a model that cannot run says why."""
    return [row(found.name, device) for found in (*CASES, *MODELS)]


def row(name: str, device: torch.device) -> dict[str, object]:
    """One model; one that draws random numbers, as dropout does, is not compared: each device has its own."""
    try:
        first, second = steps(name, device), steps(name, device)
        repeats = all(torch.equal(tensor, second.state()[key]) for key, tensor in first.state().items())
        if draws(first):
            return {"model": name, "ok": repeats, "repeats": repeats, "compared": "draws"}
        found = compare(device, name, STEPS, WORKERS, deterministic=True)
    except Exception as error:
        return {"model": name, "ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    ok = repeats and found.loss <= LOSS_TOLERANCE and found.state <= PARAMETER_TOLERANCE
    differences = {key: float(f"{value:.2g}") for key, value in found._asdict().items()}
    return {"model": name, "ok": ok, "repeats": repeats, **differences}


def steps(name: str, device: torch.device) -> Run:
    """Some steps on the device."""
    run = Run(name, [TorchBackend(device)], WORKERS, deterministic=True)
    for _ in range(STEPS):
        run.step()
    return run


def draws(run: Run) -> bool:
    """Whether the model draws random numbers in training."""
    segments = [runner.segment for runner in run.pipeline.runners()]
    return any(opset.lookup(node.op).draws(node) for segment in segments for node in segment.nodes)
