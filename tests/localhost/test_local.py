"""The Python API on real workers: what a script or a notebook does with a run."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.localhost.jobs import Chain, Vectors, job

import farflung
from farflung.client.beginning.run_start import RunStart
from farflung.client.beginning.source import PythonJob
from farflung.client.options.asked import Request, ask
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.run_record import RunOptions
from farflung.errors import CallbackFailed, FleetClosed, JobError, NoWeights, RunFailed
from farflung.runtime.optimizers.declared import SGD

pytestmark = pytest.mark.processes

ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def fleet() -> Iterator[farflung.Fleet]:
    with farflung.local(2, device="cpu") as fleet:
        yield fleet


def test_a_run_trains_beside_the_program(fleet: farflung.Fleet, tmp_path: Path) -> None:
    steps: list[int] = []
    validations: list[int] = []
    places: list[str] = []
    threads = set[str]()

    def on_step(row: farflung.StepRow) -> None:
        steps.append(row.step)
        threads.add(threading.current_thread().name)

    model = Chain()
    run = fleet.train(
        job(model=model, validation=Vectors(), name=None),
        steps=4,
        out=tmp_path / "run",
        checkpoint_every=2,
        on_step=on_step,
        on_validation=lambda step, loss: validations.append(step),
        on_checkpoint=lambda step, place: places.append(place),
    )
    with pytest.raises(NoWeights, match=r"no trained weights yet .*: call run.wait\(\) first"):
        run.state_dict()
    assert [row["step"] for row in run.metrics] == [1, 2, 3, 4]  # waits for them
    summary = run.wait()
    assert (summary.state, summary.steps, run.status) == ("done", 4, "done")
    assert run.wait() is summary and run.summary is summary
    assert steps == [1, 2, 3, 4] == [row.step for row in run.metrics.rows]
    assert threads == {"farflung-callbacks"}
    assert validations == [0, 4] == [found.step for found in run.metrics.validations] and places
    assert run.metrics.latest == run.metrics.rows[-1] and run.metrics.rows[-1].loss == summary.train_loss
    assert run.plan is not None and run.plan.workers() == ["worker-0", "worker-1"]
    assert run.id == summary.job and run.folder == tmp_path / "run"
    assert repr(run).startswith(f"<Run chain ({run.id}): done, step 4 of 4, loss ")
    before = model.state_dict()["layers.0.weight"].clone()
    run.load_into(model)
    state = run.state_dict()
    assert not torch.equal(state["layers.0.weight"], before)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert [worker.worker for worker in fleet.workers] == ["worker-0", "worker-1"]
    assert [known.job for known in fleet.status().jobs][-1] == run.id


def test_a_stopped_run_goes_on_from_python(
    fleet: farflung.Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    run = fleet.train(job(ENDLESS), out=tmp_path / "run", on_step=lambda row: done.set())
    assert done.wait(60)
    run.stop()
    summary = run.wait()
    assert summary.state == "cancelled" == run.status and summary.checkpoint_step == summary.steps
    assert run.resuming == f"fleet.train(job, resume={str(tmp_path / 'run')!r})"
    more = fleet.train(job(summary.steps + 2), resume=tmp_path / "run", steps=summary.steps + 2)
    assert [more.wait().state, more.metrics.rows[0].step] == ["done", summary.steps + 1]
    with pytest.raises(JobError, match=r"is done \(.*\): ask for more with steps=, or `farflung export "):
        fleet.train(job(), resume=tmp_path / "run")


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_run_that_is_stopped_while_its_fleet_starts_is_cancelled(tmp_path: Path, seconds: float) -> None:
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(job(), steps=ENDLESS, out=tmp_path / "run")
        time.sleep(seconds)
        run.stop()
        summary = run.wait()
        assert (summary.state, summary.reason, summary.steps) == ("cancelled", "stopped by the user", 0)
        assert run.status == "cancelled"


def test_a_callback_that_raises_stops_the_run_in_good_order(fleet: farflung.Fleet, tmp_path: Path) -> None:
    def on_step(row: farflung.StepRow) -> None:
        raise ValueError("no room\nfor more")

    run = fleet.train(job(ENDLESS), out=tmp_path / "run", on_step=on_step)
    for _ in range(2):
        with pytest.raises(CallbackFailed) as failed:
            run.wait()
    words = str(failed.value)
    assert words.startswith("on_step raised ValueError: no room (test_local.py:")
    assert f"the weights of step {run.summary.weights_step} are in {run.folder}" in words  # type: ignore[union-attr]
    assert isinstance(failed.value.__cause__, ValueError) and "\n" not in words
    assert run.state_dict()


WAITING: dict[str, Callable[[farflung.Fleet, farflung.Run], object]] = {
    "wait": lambda fleet, run: run.wait(),
    "settled": lambda fleet, run: run.settled(),
    "metrics": lambda fleet, run: list(run.metrics),
    "close": lambda fleet, run: fleet.close(),
}
STATUS: dict[str, Callable[[farflung.Fleet, farflung.Run], object]] = {
    "status": lambda fleet, run: fleet.status()
}


class Stepping(farflung.Observer):
    """Calls a function after each step."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def stepped(self, row: farflung.StepRow) -> None:
        self._call()


@pytest.mark.parametrize("where", ["callback", "observer"])
def test_whoever_waits_where_the_run_needs_its_thread_hears_so(
    fleet: farflung.Fleet, tmp_path: Path, where: str
) -> None:
    runs: list[farflung.Run] = []
    begun = threading.Event()
    heard: dict[str, str] = {}
    waiting = WAITING | (STATUS if where == "observer" else {})

    def try_all() -> None:
        begun.wait(60)
        for name, wait in waiting.items():
            try:
                wait(fleet, runs[0])
            except JobError as error:
                heard.setdefault(name, str(error))

    given = {"on_step": lambda row: try_all()} if where == "callback" else {"observer": Stepping(try_all)}
    runs.append(fleet.train(job(), steps=2, out=tmp_path / "run", **given))  # type: ignore[arg-type]
    begun.set()
    assert runs[0].wait(120).state == "done"
    assert heard.keys() == waiting.keys() and all("run.stop()" in words for words in heard.values())


def test_a_run_that_fails_raises_the_reason(fleet: farflung.Fleet, tmp_path: Path) -> None:
    run = fleet.train(job(2, Vectors(broken=5), seed=0), out=tmp_path / "run", steps=50)
    with pytest.raises(RunFailed, match="the file is gone"):
        run.wait()
    assert run.status == "failed" and run.summary is not None and run.summary.state == "failed"


def test_a_run_can_be_awaited_in_an_event_loop(fleet: farflung.Fleet, tmp_path: Path) -> None:
    async def main() -> tuple[str, int]:
        run = fleet.train(job(), steps=2, out=tmp_path / "run")
        ticks = 0
        while run.status not in ("done", "failed"):
            await asyncio.sleep(0.01)
            ticks += 1
        return (await run).state, ticks

    state, ticks = asyncio.run(main())
    assert state == "done" and ticks > 0


def test_what_cannot_be_is_one_line_in_the_words_of_python(fleet: farflung.Fleet, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^checkpoint_every= takes a number of steps"):
        fleet.train(job(), checkpoint_every="often", out=tmp_path / "run")
    with pytest.raises(JobError, match=r"train takes a farflung.Job, found .*Chain"):
        fleet.train(Chain())  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"^farflung.local\(\) takes 1 to 256 workers, found 0"):
        farflung.local(0)
    with pytest.raises(JobError, match=r"^farflung.local\(2\) trains on all its 2 workers: leave workers="):
        fleet.train(job(), workers=9)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_block_closes_what_it_opened(tmp_path: Path) -> None:
    begun, others = threading.Event(), set(threading.enumerate())
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(job(ENDLESS), out=tmp_path / "run", on_step=lambda row: begun.set())
        assert begun.wait(60)
    assert run.status == "cancelled" and run.wait().reason == "the program closed the fleet"
    assert run.state_dict() and {*threading.enumerate()} <= others
    for use in (fleet.status, lambda: fleet.train(job()), fleet.__enter__):
        with pytest.raises(FleetClosed, match="this fleet is closed: connect again"):
            use()
    fleet.close()


SCRIPT = """
import sys, farflung
from tests.localhost.jobs import job

def main():
    fleet = farflung.local(2, device="cpu")
    run = fleet.train(job(1_000_000), out=sys.argv[1], on_step=lambda row: print(row.step, flush=True))
    if sys.argv[2] == "wait":
        print(run.wait().state, flush=True)
    else:
        sys.stdin.readline()

main()
"""


@pytest.mark.full
@pytest.mark.parametrize("how", ["wait", "leave open"])
def test_a_script_that_is_interrupted_or_ends_keeps_its_weights(how: str, tmp_path: Path) -> None:
    """Ctrl-C in `wait` stops in good order, and so does the end of a script that closes nothing."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None and script.stdin is not None and script.stderr is not None
        assert script.stdout.readline() == "1\n"
        if how == "wait":
            script.send_signal(signal.SIGINT)
        else:
            script.stdin.write("\n")
            script.stdin.flush()
        said, errors = script.communicate(timeout=120)
    assert script.returncode == 0, errors
    assert (tmp_path / "run" / "model.safetensors").exists()
    if how == "leave open":
        assert (
            "the program ends while 1 run of <Fleet of 2 workers on this machine> goes on: stopping" in errors
        )
    if how == "wait":
        assert said.splitlines()[-1] == "cancelled"
        assert "stopping: collecting the weights of the last applied step first" in errors
    assert "Traceback" not in errors


def test_a_name_comes_from_the_model(
    fleet: farflung.Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = fleet.train(job(2, optimizer=SGD(lr=0.1), name=None))
    assert run.wait().state == "done" and run.folder == tmp_path / "runs" / "chain"


@pytest.mark.full
def test_a_fleet_that_lost_a_worker_starts_anew_for_the_next_run(tmp_path: Path) -> None:
    begun = threading.Event()
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(job(ENDLESS), out=tmp_path / "run", on_step=lambda row: begun.set())
        assert begun.wait(60)
        fleet._processes.workers[1].kill()  # type: ignore[attr-defined]
        with pytest.raises(RunFailed, match="worker-1"):
            run.wait(120)
        assert fleet.train(job(), steps=2, out=tmp_path / "next").wait(120).state == "done"


@pytest.mark.full
def test_a_fleet_releases_a_run_that_is_over(fleet: farflung.Fleet, tmp_path: Path) -> None:
    """It holds a graph, a model and its program."""
    run = fleet.train(job(), steps=2, out=tmp_path / "run", on_step=lambda row: None)
    run.wait()
    released = weakref.ref(run)
    del run
    until = time.monotonic() + 30
    while released() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert released() is None


@pytest.mark.full
def test_a_fleet_that_is_closed_while_a_run_begins_holds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(threading.enumerate())
    fleet = farflung.local(2, device="cpu")
    fleet.train(job(), steps=2, out=tmp_path / "run").wait()
    summary = (tmp_path / "run" / "summary.json").read_bytes()
    begin = RunStart.begin

    def closing(self: RunStart, *given: Any) -> Any:
        begun = begin(self, *given)
        fleet.close()
        return begun

    monkeypatch.setattr(RunStart, "begin", closing)
    with pytest.raises(FleetClosed, match="this fleet is closed"):
        fleet.train(job(), out=tmp_path / "run", on_step=lambda row: None)
    assert (tmp_path / "run" / "summary.json").read_bytes() == summary  # the older run has its folder back
    RunFolder.reopen(tmp_path / "run").close()
    until = time.monotonic() + 30
    while not {*threading.enumerate()} <= others and time.monotonic() < until:
        time.sleep(0.01)
    assert {*threading.enumerate()} <= others


def test_a_run_that_never_started_ends_with_its_fleet(tmp_path: Path) -> None:
    fleet = farflung.local(2, device="cpu")
    request = Request(RunOptions(local=2, device="cpu"), tmp_path / "run")
    run = fleet.begin(ask(request), PythonJob(job()))
    fleet.close()
    for use in (run.wait, run.start):
        with pytest.raises(FleetClosed, match="before the run began"):
            use()
    RunFolder.reopen(tmp_path / "run").close()


@pytest.mark.full
def test_a_program_that_ends_does_not_wait_for_ever_for_a_run_that_does_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its broker is lost: that is awaited for a day."""
    monkeypatch.setattr("farflung.client.api.fleet.EXIT_SECONDS", 0.1)
    monkeypatch.setattr(farflung.Run, "stop", lambda run, reason: None)
    begun = threading.Event()
    fleet = farflung.local(2, device="cpu")
    run = fleet.train(job(ENDLESS), out=tmp_path / "run", on_step=lambda row: begun.set())
    assert begun.wait(60)
    fleet.close_at_exit()
    assert run.status == "cancelled"
