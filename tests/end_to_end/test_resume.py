"""A stopped run goes on from its checkpoint, as a user types it, with the losses of an undisturbed run."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.client.output.test_run_folder import contents
from tests.support.processes import JOB, Machines, Run, eventually, machines, train

from farflung.client.output.history import effective_rows

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STOPPED, STEPS = 6, 10


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A machine without a broker."""
    with machines(tmp_path_factory.mktemp("desk")) as on:
        yield on


@pytest.fixture(scope="module")
def whole(desk: Machines) -> Run:
    """An undisturbed run on 4 workers."""
    return done(train(desk, "whole", "--local", "4", "--steps", str(STEPS)))


@pytest.fixture(scope="module")
def stopped(desk: Machines) -> Run:
    """A run of fewer steps on 4 workers, with checkpoints."""
    run = train(desk, "stopped", "--local", "4", "--steps", str(STOPPED), "--checkpoint-every", "2")
    return done(run)


def done(run: Run) -> Run:
    """Wait for the end of a run, which must have done all of its steps."""
    assert run.command.code() == 0, run.command.err
    return run


def resume(on: Machines, run: Path, *arguments: str, job: str = "net.py") -> Run:
    """Start to resume a run."""
    return Run(on.start("desk", "train", job, "--resume", str(run), *arguments), run)


def losses(folder: Path) -> list[float]:
    """The loss of each step that counts; steps are 1, 2, 3 and so on."""
    rows = effective_rows(folder)
    assert [row.step for row in rows] == list(range(1, len(rows) + 1))
    return [row.loss or 0.0 for row in rows]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.full
@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.full), 3, pytest.param(4, marks=pytest.mark.full)]
)
def test_a_run_goes_on_with_the_losses_of_an_undisturbed_one(
    desk: Machines, whole: Run, stopped: Run, workers: int
) -> None:
    folder = desk.folder / f"on-{workers}"
    shutil.copytree(stopped.folder, folder)
    run = done(resume(desk, folder, "--local", str(workers), "--steps", str(STEPS)))
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    assert [row["attempt"] for row in run.rows] == [1] * STOPPED + [2] * (STEPS - STOPPED)
    summary = run.summary
    assert (summary["steps"], summary["weights_step"], summary["checkpoint_step"]) == (STEPS, STEPS, STEPS)
    mine, theirs = weights(folder), weights(whole.folder)
    assert mine.keys() == theirs.keys()
    if workers == 4:
        assert losses(folder) == losses(whole.folder)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    else:
        assert losses(folder) == pytest.approx(losses(whole.folder), rel=1e-5)
        assert all(torch.allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-6) for name in theirs)


@pytest.mark.full
def test_ctrl_c_prints_the_command_that_goes_on(desk: Machines) -> None:
    run = train(desk, "interrupted", "--local", "2", "--checkpoint-every", "3")
    run.reaches(4)
    run.command.stop()
    summary = run.summary
    reached = summary["steps"]
    assert (summary["state"], summary["checkpoint_step"]) == ("cancelled", reached)
    (line,) = (line for line in run.command.err.splitlines() if "farflung train" in line)
    words = shlex.split(line.partition(": ")[2])
    assert words == ["farflung", "train", "net.py", "--resume", "interrupted"]
    again = Run(desk.start("desk", *words[1:], "--steps", str(reached + 3)), run.folder)
    done(again)
    assert len(losses(run.folder)) == len(again.rows) == reached + 3
    whole = done(train(desk, "uninterrupted", "--local", "2", "--steps", str(reached + 3)))
    assert losses(run.folder) == losses(whole.folder)


def test_a_killed_run_goes_on_from_a_checkpoint_of_its_middle(desk: Machines) -> None:
    run = train(desk, "killed", "--local", "1", "--checkpoint-every", "2")
    saved = run.folder / "checkpoints"
    ended = run.command.process.poll
    eventually("a checkpoint", lambda: ended() is not None or any(saved.glob("[0-9]*")))
    run.command.signal(signal.SIGKILL)
    run.command.code()
    eventually("its worker and broker end", lambda: not desk.orphans())
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')
    steps = max(len(run.folder.joinpath("metrics.jsonl").read_text().splitlines()), STOPPED) + 3
    again = done(resume(desk, run.folder, "--steps", str(steps)))
    assert {row.attempt for row in effective_rows(run.folder)} == {1, 2}
    assert len(losses(run.folder)) == steps and again.summary["steps"] == steps
    whole = done(train(desk, "not-killed", "--local", "1", "--steps", str(steps)))
    assert losses(run.folder) == losses(whole.folder)


OTHERS = {
    "model": (
        "nn.Linear(8, 8)",
        "nn.Linear(8, 8, bias=False)",
        "model: parameters of 432 numbers there, 384",
    ),
    "data": ("+ index", "- index", "data: of 8 sampled items 7 are not the same"),
    "optimizer": ("lr=1e-2", "lr=1e-3", "optimizer: lr 0.01 there, 0.001 here"),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", OTHERS)
def test_another_job_is_refused_and_the_run_stays_as_it_was(desk: Machines, stopped: Run, name: str) -> None:
    old, new, words = OTHERS[name]
    assert JOB.count(old) == 1
    (desk.folder / f"other_{name}.py").write_text(JOB.replace(old, new))
    before = contents(stopped.folder)
    line = desk.fails("desk", "train", f"other_{name}.py", "--resume", "stopped", "--steps", str(STEPS))
    assert f"the checkpoint of step {STOPPED} is of another run (of " in line and words in line
    assert contents(stopped.folder) == before


@pytest.mark.full
def test_a_run_that_still_trains_is_not_resumed(desk: Machines) -> None:
    run = train(desk, "running", "--local", "1")
    run.reaches(1)
    line = desk.fails("desk", "train", "net.py", "--resume", "running")
    assert "another run is writing to" in line and line.endswith("wait for it, or stop it first")
    run.command.stop()


@pytest.mark.full
def test_a_run_at_a_broker_goes_on_there_and_on_fewer_workers(tmp_path: Path) -> None:
    with machines(tmp_path / "machines") as on:
        broker, token = on.broker(), on.token("worker", "--uses", "2")
        workers = {name: on.worker(name, token) for name in ("a", "b")}
        where = ["--broker", on.address, "--token", on.token("submitter"), "--workers", "2"]
        run = train(on, "run", *where, "--codec", "int8")
        run.reaches(3)
        run.command.stop()
        reached = run.summary["steps"]
        on.idle("a", "b")
        again = done(resume(on, run.folder, "--steps", str(reached + 3)))
        assert set(again.workers) == {"a", "b"}
        on.idle("a", "b")
        again = done(resume(on, run.folder, "--steps", str(reached + 5), "--on", "a", "--codec", "dense"))
        assert again.workers == ["a"] and len(losses(run.folder)) == reached + 5
        assert "warning: codecs: int8 there, dense here" in again.command.err
        for command in (*workers.values(), broker):
            command.stop()
