"""Models train on JAX as the user's module does on PyTorch, alone and next to segments on PyTorch.

Without random ops: those draw other numbers here.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.on_backends import Pipeline
from benchmarks.zoo.side_by_side import captured, microbatches, planned
from torch import Tensor

from farflung.opdag.capture.capture import LossModule
from farflung.runtime.backend import AnyBackend
from farflung.runtime.jax_backend.backend import JaxBackend
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizers.declared import SGD, Optimizer
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import gradient_difference, named_state, parameter_difference
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
MICROBATCHES = 3
JAX, TORCH = JaxBackend(), TorchBackend()
# BatchNorm over two numbers multiplies rounding errors: PyTorch itself is 2e-3 from exact arithmetic there.
SAMPLES_OF = {"resnet": 8, "batch-norm": 8}
# A bias before a BatchNorm has a gradient of exactly zero in theory: what is found is noise on either side.
ZERO_IN_THEORY = {"batch-norm": {f"layers.{at}.bias" for at in range(4)}}
NAMES = [
    "gpt-tied",
    pytest.param("gpt2-mask", marks=pytest.mark.full),  # a GPT and a mask are among the others
    "resnet",
    "frozen",
    "shared-module",
    "masked-pair",
    "batch-norm",
]


def tensors(arrays: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(np.asarray(array)) for name, array in arrays.items()}


class Run:
    """A model on some backends beside eager PyTorch."""

    def __init__(
        self,
        name: str,
        backends: list[AnyBackend],
        optimizer: Optimizer,
        workers: int,
        segment_clip: float | None = None,
    ) -> None:
        self.case = case(name)
        self.samples = SAMPLES_OF.get(name, 2)
        module, graph = captured(self.case, self.samples)
        self.training = Training(100, MICROBATCHES, self.samples, optimizer, seed=5, clip=1.0)
        if segment_clip is not None:
            self.training = msgspec.structs.replace(self.training, clip=segment_clip, clip_by="segment")
        plan = planned(graph, self.training, workers)
        self.eager = copy.deepcopy(module)
        wrapper = LossModule(self.eager, None)
        owned = [segment.owned for segment in plan.segments]
        self.reference = Reference(
            self.eager, lambda batch: wrapper(dict(batch)), graph, self.training, owned=owned
        )
        state = {n: t.detach().clone() for n, t in named_state(module, graph).items()}
        self.graph = graph
        self.pipeline = Pipeline(graph, plan.plan, plan.segments, state, self.training, backends)
        self._unit = 0

    def step(self) -> tuple[float, float, float]:
        """Losses of both sides and the worst difference of their gradients."""
        batches = microbatches(self.case, self.samples, MICROBATCHES, self._unit)
        shares = self.pipeline.run(self._unit, batches)
        theirs = self.reference.accumulate(batches)
        named = named_state(self.eager, self.graph)
        expected = {name: t.grad for name, t in named.items() if t.grad is not None}
        found = tensors({n: g for runner in self.pipeline.runners() for n, g in runner.gradients().items()})
        assert found.keys() == expected.keys()
        for zero in ZERO_IN_THEORY.get(self.case.name, ()):
            assert float(found.pop(zero).abs().max()) < 1e-6
            del expected[zero]
        difference, _ = gradient_difference(found, expected)
        norm = gradient_norm(share.squares for share in shares)
        self.pipeline.decide(self._unit, clip_scale(self.training.global_clip, norm))
        self.reference.apply()
        self._unit += 1
        return sum(share.loss for share in shares), theirs, difference

    def state_difference(self) -> float:
        ours = tensors({n: a for runner in self.pipeline.runners() for n, a in runner.state().items()})
        return parameter_difference(ours, named_state(self.eager, self.graph))[0]


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_trains_on_jax_as_eager(name: str) -> None:
    run = Run(name, [JAX], SGD(lr=0.05, momentum=0.9), workers=2)
    for _ in range(2):
        ours, theirs, difference = run.step()
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert difference < 1e-4
        print(f"{name}: worst gradient difference {difference:.1e}")
    assert run.state_difference() < 1e-4


def test_each_segment_is_clipped_by_its_own_norm() -> None:
    run = Run("long-skip", [JAX], SGD(lr=0.05, momentum=0.9), workers=2, segment_clip=0.02)
    for _ in range(3):
        ours, theirs, _ = run.step()
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert run.state_difference() < 1e-4


@pytest.mark.parametrize("name", ["long-skip", "shared-module"])
def test_segments_on_both_frameworks_train_one_model(name: str) -> None:
    run = Run(name, [TORCH, JAX], SGD(lr=0.05, momentum=0.9), workers=4)
    for _ in range(3):
        ours, theirs, difference = run.step()
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert difference < 1e-4
