"""Replicas that train apart, on worker processes over TLS."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.end_to_end.fleets import Fleet, running, trained_state
from tests.end_to_end.test_faults import assert_same
from tests.end_to_end.test_replicas import fleet_of
from tests.end_to_end.zoo_jobs import job_of
from tests.runtime.test_diloco import parameters_of, pipeline_of, plain_loop, resumed
from tests.runtime.test_diloco import run as run_in_process
from tests.support.processes import eventually, machines, train

import farflung
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
from farflung.plans import Wishes, read_plan

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(4, tmp_path_factory.mktemp("fleet")) as started:
        yield started


@pytest.mark.cases(1)
@pytest.mark.parametrize("codec", ["dense", "int8"])
def test_worker_processes_have_the_bits_of_one_process(fleet: Fleet, codec: str) -> None:
    sync = farflung.DiLoCo(inner_steps=3, warmup=2)
    job = replace(job_of("gpt", 10, farflung.AdamW(lr=3e-3), clip=0.5), sync=sync, sum_codec=codec)
    summary, rows, folder = fleet.run(job, 4, Wishes(replicas=2))
    assert (summary.state, len(read_plan(folder).pipelines)) == ("done", 2)
    pipeline = pipeline_of(job, 2, codec)
    assert [row["loss"] for row in rows] == run_in_process(pipeline, job)
    first, second = parameters_of(pipeline, 2)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[name], first[name]) for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.full
@pytest.mark.parametrize("steps", [pytest.param(6, marks=pytest.mark.full), 7])
def test_a_run_goes_on_from_a_checkpoint(fleet: Fleet, tmp_path: Path, steps: int) -> None:
    """After a merge and between two: all replicas begin with the optimizer state of the first."""
    job = replace(job_of("gpt", 12, farflung.AdamW(lr=3e-3)), sync=farflung.DiLoCo(inner_steps=3))
    store = CheckpointStore.open(tmp_path / "checkpoints")
    stopped = Checkpointing(CheckpointPolicy(steps=steps, end=False), store, "r")
    fleet.run(job, 4, Wishes(replicas=2), checkpointing=stopped)
    again = Checkpointing(CheckpointPolicy(end=False), store, "r", store.load(steps), attempts=1)
    summary, rows, _ = fleet.run(job, 4, Wishes(replicas=2), checkpointing=again)
    assert summary.state == "done"
    assert [row["step"] for row in rows] == list(range(steps + 1, 13))
    assert [row["loss"] for row in rows] == resumed(job, steps)


@pytest.mark.full
def test_replicas_on_jax_train_apart_as_one_process_does(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    sync = farflung.DiLoCo(inner_steps=2, warmup=2)
    job = replace(job_of("gpt", 8, farflung.AdamW(lr=3e-3), clip=0.5), sync=sync)
    with running(2, tmp_path, ["jax", "jax"]) as fleet:
        summary, rows, folder = fleet.run(job, 2, Wishes(replicas=2))
    losses, (state, _) = plain_loop(job, 2)
    assert summary.state == "done"
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.allclose(ours[name], state[name], rtol=0, atol=1e-4) for name in state)


JOB = """
import dataclasses
import farflung
from net import job as plain


def job():
    return dataclasses.replace(plain(), sync=farflung.DiLoCo(inner_steps=4, warmup=2))
"""


@pytest.mark.full
@pytest.mark.faults
def test_a_killed_worker_costs_no_step(tmp_path: Path) -> None:
    """Each member goes on from its own copy, so that the others' numbers come again."""
    with machines(tmp_path) as on:
        (on.folder / "apart.py").write_text(JOB)
        broker, workers, first = fleet_of(on, "abcde")
        options = ["--workers", "4", "--replicas", "2", "--steps", "30"]
        undisturbed = train(on, "undisturbed", *options, *first, job="apart.py")
        assert undisturbed.command.code() == 0
        run = train(on, "killed", *options, job="apart.py")
        run.reaches(9)
        killed = run.workers[-1]
        workers[killed].signal(signal.SIGKILL)
        assert_same(run, undisturbed)
        assert killed not in run.workers
        for command in (*(one for name, one in workers.items() if name != killed), broker):
            command.stop()


@pytest.mark.full
@pytest.mark.faults
def test_a_run_goes_on_with_one_replica(tmp_path: Path) -> None:
    """The last one takes its outer steps by itself."""
    with machines(tmp_path) as on:
        (on.folder / "apart.py").write_text(JOB)
        broker, workers, first = fleet_of(on, "abcd")
        options = ["--workers", "4", "--replicas", "2", "--steps", "30", *first]
        run = train(on, "left", *options, job="apart.py")
        run.reaches(9)
        killed = run.workers[-1]
        workers[killed].signal(signal.SIGKILL)
        assert run.command.code() == 0
        assert sorted({row["step"] for row in run.rows}) == list(range(1, 31))
        assert killed not in run.workers and len(run.workers) == 2
        for command in (*(one for name, one in workers.items() if name != killed), broker):
            command.stop()


@pytest.mark.full
@pytest.mark.faults
def test_a_lost_replica_holds_up_no_one_and_is_there_again_after_a_merge(tmp_path: Path) -> None:
    with machines(tmp_path) as on:
        (on.folder / "apart.py").write_text(JOB.replace("warmup=2", "warmup=2, quorum=1"))
        broker, workers, first = fleet_of(on, "abcd")
        run = train(on, "quorum", "--workers", "4", "--replicas", "2", *first, job="apart.py")
        run.reaches(9)
        lost = run.workers[-1]
        workers.pop(lost).signal(signal.SIGKILL)
        eventually("one replica is left", lambda: lost not in run.workers)
        workers[lost] = on.worker(lost, on.token("worker"))
        eventually("the other replica again", lambda: lost in run.workers)
        run.reaches(len(run.rows) + 9)  # replicas compare all bits of what they have merged
        run.command.stop()
        assert [row["step"] for row in run.rows] == [*range(1, len(run.rows) + 1)]
        assert not run.events("rolled back")
        for command in (*workers.values(), broker):
            command.stop()
