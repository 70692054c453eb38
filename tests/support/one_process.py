"""Train a job's model eagerly in this process, on the microbatches that its workers would get."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import farflung
from farflung.client.capture.check import capture_shapes
from farflung.client.run.microbatches import Microbatches
from farflung.opdag.capture import LossModule
from farflung.runtime.parity.eager import Reference


def in_one_process(job: farflung.Job) -> tuple[list[float], nn.Module, dict[str, Tensor]]:
    """The losses of all steps, the trained copy of the model, and the gradients of the first step by name."""
    module = copy.deepcopy(job.model)
    wrapper = LossModule(module, job.loss, job.precision)
    captured = capture_shapes(job)
    reference = Reference(
        module, lambda batch: wrapper(dict(batch)), captured.graph, job.training(), captured.draws
    )
    loader = Microbatches(job, captured.graph)
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    for unit in (unit for unit in job.training().units() if unit.train):
        losses.append(reference.accumulate([one.tensors for one in loader.load_unit(unit)]))
        if not first:
            first = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        reference.apply()
    return losses, module, first


def equal_on_four_workers(job: farflung.Job, out: Path) -> tuple[nn.Module, Mapping[str, float]]:
    """Train a job on four local workers, which must equal one process bit for bit in losses and weights.

    Returns the trained model and what the last evaluation measured.
    """
    torch.set_num_threads(1)
    losses, module, _ = in_one_process(job)
    found = copy.deepcopy(job.model)
    with farflung.local(4, device="cpu") as fleet:
        run = fleet.train(job, out=out)
        assert run.wait().steps == job.steps
        assert [row.loss for row in run.metrics.rows] == losses
        run.load_into(found)
        metrics = run.metrics.validations[-1].metrics
    assert all(map(torch.equal, module.state_dict().values(), found.state_dict().values()))
    return module, metrics
