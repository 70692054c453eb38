"""Jobs of the zoo's models on random samples, and the microbatches that a run of them sees."""

from __future__ import annotations

import torch
from benchmarks.zoo import Batch, Case, case

import farflung
from farflung.data import SampleOrder
from farflung.opdag.graph import Precision

BATCH, MICROBATCHES = 8, 4


class Items:
    """A data set of a model's random samples."""

    def __init__(self, which: Case, length: int = 96) -> None:
        self._batch: Batch = which.batch(length, 7)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        return {name: tensor[index] for name, tensor in self._batch.items()}


def job_of(
    name: str,
    steps: int,
    optimizer: object,
    clip: float | None = None,
    precision: Precision = "float32",
    codec: str = "dense",
) -> farflung.Job:
    """Train the zoo's model `name` on its own random samples."""
    which = case(name)
    return farflung.Job(
        model=which.build(),
        data=Items(which),
        optimizer=optimizer,  # type: ignore[arg-type]
        batch=BATCH,
        microbatches=MICROBATCHES,
        steps=steps,
        clip=clip,
        precision=precision,
        codec=codec,
        seed=11,
    )


def microbatches_of(job: farflung.Job, step: int, parts: int = MICROBATCHES) -> list[Batch]:
    """What a step of the job is fed."""
    indices = SampleOrder(len(job.data), BATCH, job.seed).indices(step)
    items = [job.data[index] for index in indices]
    stacked = {name: torch.stack([item[name] for item in items]) for name in items[0]}
    split = {name: tensor.chunk(parts) for name, tensor in stacked.items()}
    return [{name: pieces[at] for name, pieces in split.items()} for at in range(parts)]
