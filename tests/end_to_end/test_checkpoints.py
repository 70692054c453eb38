"""Real workers bring their state home while they train, and a run goes on from it, here or on another cut."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.end_to_end.fleets import Fleet, running, trained_state
from tests.end_to_end.zoo_jobs import job_of
from torch import Tensor

import farflung
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy

pytestmark = [pytest.mark.processes, pytest.mark.slow]
STEPS, STOPPED = 6, 3


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(4, tmp_path_factory.mktemp("fleet")) as started:
        yield started


class Rows:
    """What a run says of its steps and of other cuts of the model, and the weights at its end."""

    def __init__(self, rows: list[dict[str, float]], weights: dict[str, Tensor], folder: Path) -> None:
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        self.cuts = [(one["step"], one["another_run"]) for one in events if one["event"] == "another cut"]
        self.losses = {int(row["step"]): row["loss"] for row in rows}
        self.attempts = {int(row["step"]): row["attempt"] for row in rows}
        self.weights = weights


def run(fleet: Fleet, job: farflung.Job, workers: int, checkpointing: Checkpointing | None = None) -> Rows:
    summary, rows, folder = fleet.run(job, workers, checkpointing=checkpointing)
    assert (summary.state, summary.reason) == ("done", "")
    if checkpointing is not None:
        assert summary.checkpoint_step == job.steps
    return Rows(rows, trained_state(folder, copy.deepcopy(job.model)), folder)


def stopped_and_resumed(fleet: Fleet, job: farflung.Job, place: Path, first: int, then: int) -> Rows:
    """Train the first steps on `first` workers and the others, from the checkpoint, on `then`."""
    store = CheckpointStore.open(place)
    policy = CheckpointPolicy(steps=2)
    run(fleet, replace(job, steps=STOPPED), first, Checkpointing(policy, store, "r"))
    resumed = store.load()
    assert resumed.record.step == STOPPED
    made = run(fleet, job, then, Checkpointing(policy, store, "r", resumed, attempts=1))
    assert set(made.losses) == set(range(STOPPED + 1, STEPS + 1))
    assert set(made.attempts.values()) == {2}
    return made


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


OPTIMIZERS = {
    "adamw": farflung.AdamW(lr=3e-3, schedule=farflung.WarmupCosine(2, STEPS)),
    "momentum": farflung.SGD(lr=0.05, momentum=0.9),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "optimizer", "codec"),
    [
        ("gpt-dropout", "adamw", "dense"),
        ("resnet", "momentum", "dense"),
        ("gpt-tied", "adamw", "axes3/axes10-dithered"),
    ],
)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(
    fleet: Fleet, tmp_path: Path, name: str, optimizer: str, codec: str
) -> None:
    job = job_of(name, STEPS, OPTIMIZERS[optimizer], clip=0.5, codec=codec)
    whole = run(fleet, job, 3)
    resumed = stopped_and_resumed(fleet, job, tmp_path / "checkpoints", 3, 3)
    assert resumed.losses == {step: whole.losses[step] for step in resumed.losses}
    assert same(resumed.weights, whole.weights)


@pytest.mark.full
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_run_resumes_on_another_number_of_workers(fleet: Fleet, tmp_path: Path, workers: int) -> None:
    job = job_of("gpt", STEPS, OPTIMIZERS["adamw"])
    whole = run(fleet, job, 4)
    resumed = stopped_and_resumed(fleet, job, tmp_path / "checkpoints", 4, workers)
    assert (whole.cuts, resumed.cuts) == ([], [(STOPPED + 1, False)])
    assert resumed.losses == {step: whole.losses[step] for step in resumed.losses}
    assert same(resumed.weights, whole.weights)


@pytest.mark.full
def test_a_coded_run_says_from_which_step_it_is_another_one(fleet: Fleet, tmp_path: Path) -> None:
    job = job_of("gpt", STEPS, OPTIMIZERS["adamw"], codec="int8")
    assert stopped_and_resumed(fleet, job, tmp_path / "a", 2, 3).cuts == [(STOPPED + 1, True)]
    assert stopped_and_resumed(fleet, job, tmp_path / "b", 2, 2).cuts == []


@pytest.mark.full
def test_copies_are_saved_while_training_goes_on_and_change_nothing(fleet: Fleet, tmp_path: Path) -> None:
    job = job_of("gpt", STEPS, OPTIMIZERS["adamw"])
    store = CheckpointStore.open(tmp_path / "checkpoints", keep=9)
    saving = run(fleet, job, 2, Checkpointing(CheckpointPolicy(steps=2), store, "r"))
    assert saving.losses == run(fleet, job, 2).losses
    steps = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdecimal())
    assert steps[-1] == STEPS and steps[0] == 2
    assert all(store.load(step).record.step == step for step in steps)
    copied = store.load(2)
    again = run(fleet, job, 2, Checkpointing(CheckpointPolicy(), store, "r", copied, attempts=1))
    assert again.losses == {step: saving.losses[step] for step in range(3, STEPS + 1)}
    assert same(again.weights, saving.weights)


@pytest.mark.full
def test_a_run_goes_on_with_other_learning_codecs_on_the_same_cut(fleet: Fleet, tmp_path: Path) -> None:
    job = job_of("gpt", STEPS, OPTIMIZERS["adamw"], codec="axes3/axes10-dithered")
    store = CheckpointStore.open(tmp_path / "checkpoints")
    run(fleet, replace(job, steps=STOPPED), 2, Checkpointing(CheckpointPolicy(), store, "r"))
    other = replace(job, codec="axes10/axes30-dithered")
    resumed = run(fleet, other, 2, Checkpointing(CheckpointPolicy(), store, "r", store.load(), attempts=1))
    assert set(resumed.losses) == set(range(STOPPED + 1, STEPS + 1))
