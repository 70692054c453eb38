"""The first steps of a run again, in one process with eager PyTorch on the same microbatches."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path

import torch
from benchmarks.training_runs.curves import Curves

import farflung
from farflung.client.api.load import load_job
from farflung.client.capture.check import capture_shapes
from farflung.client.run.microbatches import Microbatches
from farflung.opdag.capture import LossModule
from farflung.runtime.parity.eager import Reference


def losses(job: farflung.Job, steps: int) -> list[float]:
    """The losses of the job's first steps; random numbers are seeded as workers seed them."""
    module = copy.deepcopy(job.model)
    wrapper = LossModule(module, job.loss, job.precision)
    captured = capture_shapes(job)
    training = job.training()
    reference = Reference(
        module, lambda batch: wrapper(dict(batch)), captured.graph, training, captured.draws
    )
    loader = Microbatches(job, captured.graph)
    found = []
    for unit in islice((unit for unit in training.units() if unit.train), steps):
        found.append(reference.accumulate([one.tensors for one in loader.load_unit(unit)]))
        reference.apply()
    return found


def compare(job: Path, run: Curves, steps: int) -> str:
    """How far a run's first losses are from those of one process, in words."""
    torch.set_num_threads(1)
    expected = losses(load_job(job), steps)
    pairs = [(run.losses[number], loss) for number, loss in enumerate(expected, 1)]
    equal = sum(found == loss for found, loss in pairs)
    worst = max(abs(found - loss) / abs(loss) for found, loss in pairs)
    words = f"{equal} of the first {steps} losses are equal bit for bit"
    return f"{run.name}: {words}; the worst differs by {worst:.1e} of its value"
