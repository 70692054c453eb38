"""`--inner-steps`: after how many steps replicas that train apart merge."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from farflung.errors import JobError
from farflung.runtime.optimizers.diloco import MOST_STEPS, DiLoCo

if TYPE_CHECKING:
    from farflung.client.api.job import Job


def require_inner_steps(given: int) -> None:
    """Raise JobError unless `--inner-steps` is a number of steps."""
    if not 1 <= given <= MOST_STEPS:
        raise JobError(f"--inner-steps takes 1 to {MOST_STEPS} steps between two merges, found {given}")


def with_inner_steps(job: Job, inner_steps: int | None) -> Job:
    """The job, whose replicas merge after so many steps; None: as it says itself.

    A job with `sync` keeps the rest of that, another one gets `DiLoCo` with its defaults. Raises JobError if
    its replicas cannot train apart.
    """
    if inner_steps is None:
        return job
    sync = job.sync or DiLoCo(inner_steps)
    return dataclasses.replace(job, sync=msgspec.structs.replace(sync, inner_steps=inner_steps))
