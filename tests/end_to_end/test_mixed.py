"""One model whose segments run on torch, JAX, torch, JAX, as real processes over the real transport."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from tests.end_to_end.fleets import Fleet, running
from tests.end_to_end.test_parity import Items
from tests.zoo import case

import farflung

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS = 100
FLEET = ["torch", "jax", "torch", "jax", "torch", "torch"]
MIXED = ["worker-0", "worker-1", "worker-2", "worker-3"]
ALL_TORCH = ["worker-0", "worker-2", "worker-4", "worker-5"]
RELATIVE = 1e-4


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(len(FLEET), tmp_path_factory.mktemp("mixed"), FLEET) as started:
        yield started


def job_of(name: str, optimizer: object, steps: int = STEPS) -> farflung.Job:
    which = case(name)
    return farflung.Job(
        model=which.build(),
        data=Items(which),
        optimizer=optimizer,  # type: ignore[arg-type]
        batch=4,
        microbatches=2,
        steps=steps,
        seed=11,
    )


def losses(fleet: Fleet, job: farflung.Job, on: list[str]) -> list[float]:
    """The losses of a run on these workers, one segment each in their order."""
    _, rows, folder = fleet.run(job, len(on), on=on)
    plan = json.loads((folder / "plan.json").read_text())
    assert [part["workers"] for part in plan["placements"]] == [[worker] for worker in on]
    return [row["loss"] for row in rows]


def test_a_gpt_on_two_frameworks_trains_as_on_one(fleet: Fleet) -> None:
    ours = losses(fleet, job_of("gpt", farflung.AdamW(lr=1e-3)), MIXED)
    theirs = losses(fleet, job_of("gpt", farflung.AdamW(lr=1e-3)), ALL_TORCH)
    assert len(ours) == len(theirs) == STEPS
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    assert worst < RELATIVE
    assert theirs[-1] < theirs[0]
