"""Real brokers and workers as processes of this machine: whole runs, and every way in which one may end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.localhost.jobs import Chain, Vectors, item_of_step, job

from farflung.client.api.job import Job
from farflung.client.capture.prepared import Prepared, prepare
from farflung.client.output.progress import Observer
from farflung.client.output.records import StepRow, Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.weights import load_weights
from farflung.client.run.submitter import Submitter
from farflung.errors import RunFailed
from farflung.localhost.fleet import LocalFleet
from farflung.plans import NO_WISHES, Wishes, read_plan

pytestmark = pytest.mark.processes

ENDLESS = 1_000_000

Act = Callable[[Submitter], object]


class AtStep(Observer):
    """Calls `act` once, when `step` was applied."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self._step, self._act = step, act

    def stepped(self, row: StepRow) -> None:
        if row.step == self._step:
            self._act()


def is_alive(process_id: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes() -> set[int]:
    """Those that this one started, or that these did, as long as nobody has reaped them."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def folders(temporary: Path) -> set[Path]:
    """What fleets have left in their temporary folder."""
    return set(temporary.glob("farflung-*"))


async def train(
    fleet: LocalFleet,
    prepared: Prepared,
    declared: Job,
    path: Path,
    act: Act | None = None,
    wishes: Wishes = NO_WISHES,
) -> Summary:
    """Run a job on two workers; `act` is called after step 3. No task may be left of it."""
    run = RunFolder.create(path)
    tasks = asyncio.all_tasks()
    observer = AtStep(3, lambda: act(submitter) if act else None)
    ready = replace(prepared, job=declared)
    submitter = Submitter(ready, fleet.identity, run, observer, 2, wishes=wishes, closed=True)
    summary = await submitter.run()
    assert {task for task in asyncio.all_tasks() if not task.done()} == tasks
    run.close()
    assert json.loads((path / "summary.json").read_text())["state"] == summary.state
    return summary


def rows(path: Path) -> list[dict[str, float]]:
    """The steps."""
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if "loss" in row]


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """The captured chain; tests give it jobs of their own around the same module."""
    return prepare(job())


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def fleet(
    runner: asyncio.Runner, temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    """Two workers that serve one run after the other; nothing of them may be left afterwards."""
    fleet = LocalFleet(2, tmp_path_factory.mktemp("fleet") / "logs")
    others = processes()
    runner.run(fleet.__aenter__())
    yield fleet
    runner.run(fleet.__aexit__(None, None, None))
    assert processes() <= others
    assert not folders(temporary)


@pytest.fixture
def run(runner: asyncio.Runner, fleet: LocalFleet, prepared: Prepared) -> Callable[..., Summary]:
    """Runs a job of these changes on the shared fleet."""

    def run(path: Path, act: Act | None = None, wishes: Wishes = NO_WISHES, **changes: Any) -> Summary:
        declared = job(model=prepared.job.model, **changes)
        return runner.run(train(fleet, prepared, declared, path, act, wishes))

    return run


def test_backends_are_given_out_in_turns(tmp_path: Path) -> None:
    fleet = LocalFleet(3, tmp_path, backends=["torch", "jax"])
    assert fleet.computing() == {"torch": ["worker-0", "worker-2"], "jax": ["worker-1"]}
    assert LocalFleet(3, tmp_path).computing() == {}


def test_a_run_learns_and_saves_its_weights(
    run: Callable[..., Summary], prepared: Prepared, tmp_path: Path
) -> None:
    initial = {name: tensor.clone() for name, tensor in prepared.job.model.state_dict().items()}
    summary = run(tmp_path / "run", steps=6, validation=Vectors(), validation_batches=2, validate_every=3)
    assert (summary.state, summary.reason, summary.steps, summary.workers) == ("done", "", 6, 2)
    assert summary.validation_loss is not None and summary.initial_validation_loss is not None
    assert summary.validation_loss < summary.initial_validation_loss
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert all(row["bytes_on_wire"] > 0 and row["samples"] == 8 for row in found)
    assert summary.bytes_on_wire > sum(row["bytes_on_wire"] for row in found)
    trained = Chain()
    load_weights(tmp_path / "run" / "model.safetensors", trained)
    assert not torch.equal(trained.layers[0].weight, initial["layers.0.weight"])
    # The submitter's own module is only read from.
    assert all(torch.equal(now, initial[name]) for name, now in prepared.job.model.state_dict().items())


def test_a_repeated_run_has_the_same_losses(run: Callable[..., Summary], tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tmp_path / name, steps=4)
    losses = [[row["loss"] for row in rows(tmp_path / name)] for name in ("a", "b")]
    assert losses[0] == losses[1]


def test_a_run_that_recomputes_has_the_same_losses(run: Callable[..., Summary], tmp_path: Path) -> None:
    for when in ("never", "always"):
        run(tmp_path / when, steps=4, wishes=Wishes(recompute=when))  # type: ignore[arg-type]
    losses = [[row["loss"] for row in rows(tmp_path / when)] for when in ("never", "always")]
    assert losses[0] == losses[1]
    plans = [read_plan(tmp_path / when) for when in ("never", "always")]
    assert [plan.recomputing() for plan in plans] == [set(), {0, 1}]


def test_stopping_saves_the_weights_of_the_last_step(run: Callable[..., Summary], tmp_path: Path) -> None:
    summary = run(tmp_path / "run", lambda submitter: submitter.stop("enough"), steps=ENDLESS)
    assert (summary.state, summary.reason) == ("cancelled", "enough")
    assert summary.weights_step == summary.steps == len(rows(tmp_path / "run")) >= 3
    load_weights(tmp_path / "run" / "model.safetensors", Chain())


def test_stopping_a_run_that_is_done_changes_nothing(
    runner: asyncio.Runner, fleet: LocalFleet, prepared: Prepared, tmp_path: Path
) -> None:
    class Late(Observer):
        def collecting(self, received_bytes: int, total_bytes: int) -> None:
            submitter.stop("too late")

    run = RunFolder.create(tmp_path / "run")
    declared = replace(prepared, job=job(3, model=prepared.job.model))
    submitter = Submitter(declared, fleet.identity, run, Late(), 2)
    summary = runner.run(submitter.run())
    run.close()
    assert (summary.state, summary.weights_step) == ("done", 3)
    load_weights(tmp_path / "run" / "model.safetensors", Chain())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (Vectors(poisoned=item_of_step(4)), "the loss became NaN at step 5"),
        (Vectors(broken=item_of_step(4)), "raised OSError: the file is gone"),
    ],
    ids=["nan", "broken item"],
)
def test_a_run_that_fails_keeps_the_last_good_weights(
    run: Callable[..., Summary], tmp_path: Path, data: Vectors, reason: str
) -> None:
    summary = run(tmp_path / "run", steps=ENDLESS, data=data)
    assert summary.state == "failed" and reason in summary.reason
    assert summary.weights_step == summary.steps == len(rows(tmp_path / "run")) == 4
    trained = Chain()
    load_weights(tmp_path / "run" / "model.safetensors", trained)
    assert all(bool(tensor.isfinite().all()) for tensor in trained.state_dict().values())


def test_a_disk_that_fills_ends_the_run(run: Callable[..., Summary], tmp_path: Path) -> None:
    def fill(submitter: Submitter) -> None:
        def full(row: bytes) -> None:
            raise OSError(28, "No space left on device")

        submitter.recorder.folder._metrics.append = full  # type: ignore[method-assign]

    summary = run(tmp_path / "run", fill, steps=ENDLESS)
    assert summary.state == "failed" and "(No space left on device)" in summary.reason
    assert len(rows(tmp_path / "run")) == 2


def test_the_fleet_still_serves_after_failed_runs(run: Callable[..., Summary], tmp_path: Path) -> None:
    assert run(tmp_path / "run", steps=2).state == "done"


@pytest.mark.full
def test_a_killed_process_is_named(prepared: Prepared, temporary: Path, tmp_path: Path) -> None:
    async def killed(name: str, victim: str) -> Summary:
        async with LocalFleet(2, tmp_path / "logs" / name) as fleet:
            ids = {child.name: await child.process_id() for child in fleet.children()}

            def kill(submitter: Submitter) -> None:
                plan = json.loads((tmp_path / name / "plan.json").read_text())
                os.kill(ids[victim or plan["placements"][0]["workers"][0]], signal.SIGKILL)

            return await train(fleet, prepared, endless, tmp_path / name, kill)

    endless = job(ENDLESS, model=prepared.job.model)
    worker_lost, broker_lost = asyncio.run(killed("a", "")), asyncio.run(killed("b", "broker"))
    assert worker_lost.state == broker_lost.state == "failed"
    assert "the broker at 127.0.0.1:" in broker_lost.reason and "was lost" in broker_lost.reason
    plan = json.loads((tmp_path / "a" / "plan.json").read_text())
    assert "no other workers will join here: worker " in worker_lost.reason
    assert plan["placements"][0]["workers"][0] in worker_lost.reason
    assert broker_lost.steps == len(rows(tmp_path / "b"))
    for name in ("a", "b"):
        assert len(rows(tmp_path / name)) >= 3
        assert not (tmp_path / name / "model.safetensors").exists()


def test_a_broker_that_cannot_start_says_why(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with LocalFleet(1, tmp_path / "logs"):
            raise AssertionError("started")

    before = folders(temporary)
    monkeypatch.setattr("farflung.localhost.fleet.HOST", "192.0.2.1")  # nobody has this address (RFC 5737)
    with pytest.raises(RunFailed, match=r"the local broker exited with code 2: error: cannot listen on 192"):
        asyncio.run(scenario())
    assert folders(temporary) == before


def test_a_worker_that_dies_early_is_reported(temporary: Path, tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        notify: list[str] = []
        async with LocalFleet(1, tmp_path / "logs", memory_bytes=0) as fleet:
            await fleet.watch(notify.append)
        return notify

    assert "worker-0 exited with code 2: error: --memory must be" in asyncio.run(scenario())[0]


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def test_a_killed_parent_leaves_no_orphans_and_no_files(temporary: Path, tmp_path: Path) -> None:
    program = """
        import asyncio, sys
        from pathlib import Path
        from farflung.localhost.fleet import LocalFleet
        async def main():
            async with LocalFleet(2, Path(sys.argv[1])) as fleet:
                print(*[await child.process_id() for child in fleet.children()], flush=True)
                await asyncio.sleep(600)
        asyncio.run(main())
    """
    before = folders(temporary)
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "logs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ids = [int(text) for text in parent.stdout.readline().split()]
        assert len(ids) == 3 and all(map(is_alive, ids))
        parent.kill()
    assert wait_until(lambda: not any(map(is_alive, ids)))
    assert wait_until(lambda: folders(temporary) == before)
