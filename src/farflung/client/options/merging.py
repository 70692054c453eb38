"""`--inner-steps`: after how many steps replicas that train apart merge."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from farflung.errors import JobError
from farflung.runtime.optimizers.diloco import MOST_STEPS, DiLoCo

if TYPE_CHECKING:
    from farflung.client.api.job import Job


ONE_REPLICA = (
    "lets replicas of the model train apart, and this run has one: ask for more with --replicas 2"
    " (in Python replicas=2)"
)
"""Follows the option or field that asks for merges where nothing can merge."""


def require_inner_steps(given: int | None, replicas: int) -> None:
    """Raise JobError unless `--inner-steps` is a number of steps, and not all of them are of one replica.

    None: the option is not given. `replicas` is 0 where the planner chooses how many.
    """
    if given is None:
        return
    if not 1 <= given <= MOST_STEPS:
        raise JobError(f"--inner-steps takes 1 to {MOST_STEPS} steps between two merges, found {given}")
    if replicas == 1:
        raise JobError(f"--inner-steps {ONE_REPLICA}")


def with_inner_steps(job: Job, inner_steps: int | None) -> Job:
    """The job, whose replicas merge after so many steps; None: as it says itself.

    A job with `sync` keeps the rest of that, another one gets `DiLoCo` with its defaults. Raises JobError if
    its replicas cannot train apart.
    """
    if inner_steps is None:
        return job
    sync = job.sync or DiLoCo(inner_steps)
    return dataclasses.replace(job, sync=msgspec.structs.replace(sync, inner_steps=inner_steps))
