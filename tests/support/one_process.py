"""Train a job's model eagerly in this process, on the microbatches that its workers would get."""

from __future__ import annotations

import copy

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
