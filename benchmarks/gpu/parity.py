"""Models of the zoo on the device: cut in two beside eager in one process, beside the CPU, and a second time.

All in the deterministic mode, in which a second run must have the bits of the first. Two steps of SGD with
momentum each.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.zoo import CASES, MODELS, case
from benchmarks.zoo.devices import MICROBATCHES, STEADY, Run, compare
from benchmarks.zoo.side_by_side import SideBySide, captured, microbatches, planned

from farflung.opdag import opset
from farflung.runtime.parity.steps import (
    LOSS_TOLERANCE,
    PARAMETER_TOLERANCE,
    gradient_difference,
    parameter_difference,
)
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.modes import repeatable
from farflung.runtime.training import Training

STEPS, WORKERS = 2, 2
SAMPLES = 16
"""Of a microbatch: of two, batch norm keeps little more than the sign of a difference, as rounding has it."""
Row = dict[str, object]


def parity(device: torch.device) -> Iterator[Row]:
    """Relative differences; a model that cannot run says why."""
    for found in (*CASES, *MODELS):
        yield row(found.name, device)


def row(name: str, device: torch.device) -> Row:
    """One model. Eager decides; the CPU's kernels add in another order, which some models make much of."""
    try:
        first, second = steps(name, device), steps(name, device)
        repeats = all(torch.equal(tensor, second.state()[key]) for key, tensor in first.state().items())
        beside = {} if draws(first) else beside_cpu(name, device)
        loss, gradient, state = beside_eager(name, device)
    except Exception as error:
        return {"model": name, "ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    ok = repeats and loss <= LOSS_TOLERANCE and state <= PARAMETER_TOLERANCE
    eager = {"loss": rounded(loss), "gradient": rounded(gradient), "state": rounded(state)}
    return {"model": name, "ok": ok, "repeats": repeats, **eager, **beside}


def rounded(difference: float) -> float:
    """Two digits."""
    return float(f"{difference:.2g}")


def steps(name: str, device: torch.device) -> Run:
    """Some steps on the device."""
    run = Run(name, [TorchBackend(device)], WORKERS, deterministic=True, samples=SAMPLES)
    for _ in range(STEPS):
        run.step()
    return run


def draws(run: Run) -> bool:
    """Whether the model draws random numbers in training, of which each device has its own."""
    segments = [runner.segment for runner in run.pipeline.runners()]
    return any(opset.lookup(node.op).draws(node) for segment in segments for node in segment.nodes)


def beside_cpu(name: str, device: torch.device) -> Row:
    """The worst differences between the device and the CPU."""
    found = compare(device, name, STEPS, WORKERS, deterministic=True, samples=SAMPLES)
    return {f"{key}_of_cpu": rounded(value) for key, value in found._asdict().items()}


def beside_eager(name: str, device: torch.device) -> tuple[float, float, float]:
    """The worst differences of losses, gradients and state between the cut model and the eager one."""
    training = Training(100, MICROBATCHES, SAMPLES, STEADY, seed=5, deterministic=True)
    module, graph = captured(case(name), SAMPLES)
    job = planned(graph, training, WORKERS)
    both = SideBySide(module, graph, job, training, device, case(name).loss)
    losses, gradients = [], []
    with repeatable(device):
        for step in range(STEPS):
            ours, theirs = both.accumulate(microbatches(case(name), SAMPLES, MICROBATCHES, step))
            losses.append(abs(ours - theirs) / max(abs(theirs), 1e-30))
            gradients.append(gradient_difference(*both.gradients())[0])
            both.apply()
    return max(losses), max(gradients), parameter_difference(*both.states())[0]
