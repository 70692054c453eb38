"""A model of the zoo on a device, beside the same on the CPU."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import torch
from benchmarks.zoo import Batch, case
from benchmarks.zoo.on_backends import Pipeline
from benchmarks.zoo.side_by_side import captured, microbatches, planned
from torch import Tensor

from farflung.plans import LinkCodec, Plan
from farflung.plans.codec_pair import codebook_of
from farflung.runtime.backend import AnyBackend
from farflung.runtime.optimizers.declared import SGD, Optimizer
from farflung.runtime.parity.steps import gradient_difference, named_state, parameter_difference
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training

MICROBATCHES = 2
STEADY = SGD(lr=0.05, momentum=0.9)
"""It does not divide noise by noise, so a difference stays as small as it is."""


class Difference(NamedTuple):
    """The worst relative differences between the device and the CPU; `first` of the first gradients."""

    first: float
    loss: float
    gradient: float
    state: float


class Run:
    """Some steps of a model, each segment on the next of the backends."""

    def __init__(
        self,
        name: str,
        backends: list[AnyBackend],
        workers: int,
        recompute: bool = False,
        optimizer: Optimizer = STEADY,
        codec: str = "",
        deterministic: bool = False,
        samples: int = 2,
    ) -> None:
        self.case, self._samples = case(name), samples
        module, graph = captured(self.case, samples)
        codecs = codebook_of([codec]) if codec else ()
        training = Training(
            100, MICROBATCHES, samples, optimizer, seed=5, codecs=codecs, deterministic=deterministic
        )
        job = planned(graph, training, workers)
        plan = msgspec.structs.replace(job.plan, codecs=everywhere(job.plan, codec)) if codec else job.plan
        state = {n: t.detach().clone() for n, t in named_state(module, graph).items()}
        self.pipeline = Pipeline(graph, plan, job.segments, state, training, backends, recompute)
        self.losses: list[float] = []
        self.squares: list[float] = []

    def step(self, batches: list[Batch] | None = None) -> dict[str, Tensor]:
        """Run a step, on its own microbatches if none are given; returns its gradients, on the CPU."""
        unit = len(self.losses)
        batches = batches or microbatches(self.case, self._samples, MICROBATCHES, unit)
        shares = self.pipeline.run(unit, batches)
        self.losses.append(sum(share.loss for share in shares))
        self.squares.append(sum(sum(share.squares.values()) for share in shares))
        runners = self.pipeline.runners()
        gradients = {n: g.cpu().clone() for runner in runners for n, g in runner.gradients().items()}
        self.pipeline.decide(unit, 0.5)
        return gradients

    def state(self) -> dict[str, Tensor]:
        return {n: t.cpu() for runner in self.pipeline.runners() for n, t in runner.state().items()}


def everywhere(plan: Plan, codec: str) -> list[LinkCodec]:
    """The codec pair on every link."""
    return [LinkCodec(a, b, codec, 1.0) for a in plan.workers() for b in sorted(plan.neighbours(a))]


def compare(
    device: torch.device,
    name: str,
    steps: int = 2,
    workers: int = 2,
    recompute: bool = False,
    mixed: bool = False,
    optimizer: Optimizer = STEADY,
    codec: str = "",
    deterministic: bool = False,
    samples: int = 2,
) -> Difference:
    """Train on the device and on the CPU; with `mixed`, every other worker computes on the CPU.

    A GPU needs the `deterministic` mode for full float32.
    """
    there, here = TorchBackend(device), TorchBackend()
    ours = Run(
        name,
        [there, here] if mixed else [there],
        workers,
        recompute,
        optimizer,
        codec,
        deterministic,
        samples,
    )
    theirs = Run(name, [here], workers, recompute, optimizer, codec, deterministic, samples)
    gradients: list[float] = []
    for _ in range(steps):
        found, expected = ours.step(), theirs.step()
        assert found.keys() == expected.keys()
        gradients.append(gradient_difference(found, expected)[0])
    pairs = zip(ours.losses, theirs.losses, strict=True)
    loss = max(abs(one - other) / max(abs(other), 1e-30) for one, other in pairs)
    state = parameter_difference(ours.state(), theirs.state())[0]
    return Difference(gradients[0], loss, max(gradients), state)
