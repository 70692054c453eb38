"""What happens to everybody else when one process of a run is killed, frozen or interrupted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from tests.support.processes import JOB, LEASE_SECONDS, Command, Machines, Run, eventually, machines, train
from torch import nn

from farflung.client.output.weights import load_weights

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

WORKERS = ("a", "b", "c")


class Net(nn.Module):
    """The model of the job, to load weights into."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))


class Place:
    """A broker, three workers, and somebody who submits jobs."""

    def __init__(self, on: Machines) -> None:
        self.on = on
        self.broker = on.broker()
        token = on.token("worker", "--uses", "3")
        self.workers = {name: on.worker(name, token) for name in WORKERS}
        self._submitter = ["--token", on.token("submitter"), "--broker", on.address]
        for worker in self.workers.values():
            worker.says("registered", "idle in the backup pool")

    def train(self, name: str, *arguments: str, workers: str = "2") -> Run:
        """Start a run on two of the workers, and see it train."""
        run = train(self.on, name, "--workers", workers, *self._submitter, *arguments)
        self._submitter = []
        run.reaches(3)
        return run

    def close(self) -> None:
        """End it in good order."""
        for command in (*self.workers.values(), self.broker):
            command.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with machines(tmp_path_factory.mktemp("place")) as on:
        place = Place(on)
        yield place
        place.close()


def job_of(place: Place, name: str) -> dict[str, object]:
    """The last job, as `farflung status` shows it."""
    jobs = place.on.status()["jobs"]
    assert jobs[-1]["name"] == name
    return dict(jobs[-1])


def rejoin(place: Place, name: str) -> Command:
    place.workers[name] = worker = place.on.worker(name)
    worker.says("idle in the backup pool")
    return worker


STEPS = 60
EVERY = 4


@pytest.fixture(scope="module")
def undisturbed(place: Place) -> Run:
    """A run without a fault, to which others are compared."""
    run = place.train("undisturbed", "--steps", str(STEPS))
    assert run.command.code() == 0
    return run


def assert_same(run: Run, undisturbed: Run) -> None:
    """The run has ended with the losses and weights of the other, bit for bit."""
    assert run.command.code() == 0, run.command.err
    losses = {row["step"]: row["loss"] for row in run.rows}  # of two rows for a step the later one counts
    assert losses == {row["step"]: row["loss"] for row in undisturbed.rows}
    ours, theirs = Net(), Net()
    load_weights(run.folder / "model.safetensors", ours)
    load_weights(undisturbed.folder / "model.safetensors", theirs)
    assert all(torch.equal(theirs.state_dict()[name], tensor) for name, tensor in ours.state_dict().items())


def saved(run: Run) -> None:
    """Wait for the first checkpoint."""
    eventually("a checkpoint", lambda: bool(run.events("checkpoint")))


def protected(place: Place, run: Run) -> None:
    """Wait until each worker's state is on two disks, and a few steps more."""

    def copies() -> int:
        return len(list(place.on.folder.glob("*/worker/copies/*/*.safetensors")))

    eventually("copies", lambda: copies() >= 2 * len(run.workers))
    run.reaches(len(run.rows) + 5)


def test_a_killed_worker_is_replaced_and_no_committed_step_runs_again(place: Place, undisturbed: Run) -> None:
    """The worker that takes its place runs some again, alone; the submitter has no checkpoint."""
    run = place.train("killed-worker", "--steps", str(STEPS))
    killed, survivor = run.workers[1], run.workers[0]
    protected(place, run)
    place.workers[killed].signal(signal.SIGKILL)
    assert_same(run, undisturbed)
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    assert [one["step"] for one in run.events("checkpoint")] == [STEPS]  # only at the end
    (taken,) = run.events("regrouping")
    (other,) = {*WORKERS} - {killed, survivor}
    assert not run.events("rolled back") and taken["replayers"] == [other]
    assert taken["replay_from"] <= taken["unit"] and {row["attempt"] for row in run.rows} == {1, 2}
    assert f"worker {killed} was lost at step" in taken["reason"]
    assert "the process at the other end may have died" in taken["reason"]
    assert f"warning: {taken['reason']}. {other} runs " in run.command.err
    place.broker.says(f"worker {killed} was lost", f" run again on {other} alone", "from own copies")
    place.workers[other].says("standing by for")  # so no state had to be sent after the kill
    place.workers[survivor].says("the state stays", f"worker {killed} was lost")
    place.workers[killed].code()
    rejoin(place, killed)
    place.on.idle(*WORKERS)


@pytest.mark.full
def test_a_worker_that_nobody_can_replace_returns_with_its_disk_and_no_committed_step_runs_again(
    place: Place, undisturbed: Run
) -> None:
    run = place.train("waiting", "--on", "a,b", "--steps", str(STEPS), workers="0")
    protected(place, run)
    place.workers["b"].signal(signal.SIGKILL)
    place.workers["b"].code()
    eventually("it says so", lambda: "waiting for b to return with its disk" in str(job_of(place, "net")))
    place.workers["b"] = place.on.worker("b")
    assert_same(run, undisturbed)
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    (taken,) = run.events("regrouping")
    assert not run.events("rolled back") and taken["replayers"] == ["b"]
    assert taken["replay_from"] <= taken["unit"]
    place.broker.says("waits for b, and its other workers keep their state")
    place.broker.says(" run again on b alone")
    place.workers["a"].says("the state stays")
    place.on.idle(*WORKERS)


@pytest.mark.full
def test_a_run_goes_on_without_a_lost_worker_from_the_disks_of_those_that_are_left(
    place: Place, undisturbed: Run
) -> None:
    run = place.train("smaller", "--on", "a,b", "--steps", str(STEPS), workers="0")
    protected(place, run)
    place.workers["b"].signal(signal.SIGKILL)
    assert_same(run, undisturbed)
    (back,), (cut,) = run.events("rolled back"), run.events("another cut")
    assert 0 < back["step"] == cut["step"] - 1 and not cut["another_run"]
    assert run.events("planned")[-1]["workers"] == ["a"]
    place.broker.says("may go on from its newest copies on other workers: b did not come back within")
    assert f"from step {cut['step']} on the model is cut in another way" in run.command.err
    place.workers["b"].code()
    rejoin(place, "b")
    place.on.idle(*WORKERS)


def test_a_stopped_worker_hands_its_share_over_and_no_step_runs_again(place: Place, undisturbed: Run) -> None:
    run = place.train("stopped-worker", "--steps", str(STEPS))
    stopped = run.workers[1]
    (other,) = {*WORKERS} - {*run.workers}
    place.workers[stopped].signal(signal.SIGTERM)
    assert place.workers[stopped].code() == 0
    assert place.workers[stopped].err.count("may go: it left in good order") == 1
    assert_same(run, undisturbed)
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    (taken,) = run.events("regrouping")
    assert not run.events("rolled back") and taken["replayers"] == [other]
    assert taken["reason"] == f"worker {stopped} leaves in good order (its owner stops it)"
    rejoin(place, stopped)


def test_a_frozen_worker_is_lost_within_the_lease_and_comes_back(place: Place, undisturbed: Run) -> None:
    run = place.train("frozen-worker", "--steps", str(STEPS), "--checkpoint-every", str(EVERY))
    frozen, survivor = run.workers
    saved(run)
    place.workers[frozen].signal(signal.SIGSTOP)
    try:
        reason = run.ends_an_attempt()
        assert "at step" in reason and f"nothing heard from worker {frozen} for {LEASE_SECONDS:g} s" in reason
        place.workers[survivor].says("job job-", frozen)
        assert_same(run, undisturbed)
        place.on.idle(*(name for name in WORKERS if name != frozen))
    finally:
        place.workers[frozen].signal(signal.SIGCONT)
    place.on.idle(*WORKERS)
    place.workers[frozen].says("job job-", "; idle")
    place.workers[frozen].says("lost the broker", "dialling again")


def test_one_ctrl_c_brings_the_weights_of_the_last_step_home(place: Place) -> None:
    run = place.train("ctrl-c")
    run.command.signal(signal.SIGINT)
    assert run.command.code() == 130
    assert run.command.errors == [] and "\nstopped by the user after " in run.command.err
    assert (run.summary["state"], run.summary["reason"]) == ("cancelled", "stopped by the user")
    assert run.summary["weights_step"] == run.summary["steps"] == len(run.rows)
    net = Net()
    load_weights(run.folder / "model.safetensors", net)
    torch.manual_seed(1)
    assert not torch.equal(net.layers[0].weight, Net().layers[0].weight)
    place.on.idle(*WORKERS)
    assert job_of(place, "net")["state"] == "cancelled"


@pytest.mark.full
def test_a_second_ctrl_c_ends_the_run_at_once(place: Place) -> None:
    run = place.train("twice-ctrl-c")
    frozen = run.workers[0]
    place.workers[frozen].signal(signal.SIGSTOP)  # so that the weights cannot come home meanwhile
    try:
        run.command.signal(signal.SIGINT)
        run.command.says("stopping")
        run.command.signal(signal.SIGINT)
        assert run.command.code() == 130
    finally:
        place.workers[frozen].signal(signal.SIGCONT)
    assert run.command.errors == ["error: stopped at once by the user: the weights were not collected"]
    assert run.summary["state"] == "cancelled" and len(run.rows) == run.summary["steps"]
    assert not (run.folder / "model.safetensors").exists()
    place.on.idle(*WORKERS)


def test_a_killed_submitter_is_replaced_and_no_step_runs_again(place: Place, undisturbed: Run) -> None:
    run = place.train("killed-submitter", "--steps", str(STEPS))
    run.command.signal(signal.SIGKILL)
    run.command.code()
    assert 3 <= len(run.rows) < STEPS  # each whole
    assert job_of(place, "net")["state"] == "running"
    again = Run(place.on.start("desk", "train", "net.py", "--resume", run.folder.name), run.folder)
    assert_same(again, undisturbed)
    again.command.says("still stands at the broker")
    assert [row["step"] for row in again.rows] == list(range(1, STEPS + 1))
    (returned,) = again.events("returned")
    assert returned["step"] >= 3 and again.summary["state"] == "done"
    place.on.idle(*WORKERS)


@pytest.mark.full
def test_a_closed_terminal_leaves_the_job_to_the_broker(place: Place, undisturbed: Run) -> None:
    run = place.train("hang-up", "--steps", str(STEPS))
    run.command.signal(signal.SIGHUP)
    assert run.command.code() == 129
    assert "to go on: farflung train net.py --resume hang-up" in run.command.err
    again = Run(place.on.start("desk", "train", "net.py", "--resume", run.folder.name), run.folder)
    assert_same(again, undisturbed)
    assert [row["step"] for row in again.rows] == list(range(1, STEPS + 1))
    place.on.idle(*WORKERS)


@pytest.mark.full
def test_a_run_in_the_background_is_watched_from_elsewhere(place: Place, undisturbed: Run) -> None:
    where = ["--workers", "2", "--steps", str(STEPS), "--out", "background"]
    started = place.on.document("desk", "train", "net.py", *where, "--detach")
    assert started["folder"] == str(place.on.folder / "background")
    watching = place.on.start("desk", *started["attach"].split()[1:])
    assert watching.code() == 0, watching.err
    assert f"{started['job']} done" in watching.out
    folder = place.on.folder / "background"
    eventually("it ends", lambda: not psutil.pid_exists(started["process"]))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows if "loss" in row] == [row["loss"] for row in undisturbed.rows]
    assert f"done: {STEPS} steps" in (folder / "train.log").read_text()
    place.on.idle(*WORKERS)


def local_run(on: Machines, name: str) -> Run:
    run = train(on, name, "--local", "2")
    run.reaches(3)
    return run


@pytest.mark.full
def test_a_killed_local_run_takes_its_fleet_along(tmp_path: Path) -> None:
    with machines(tmp_path / "machines") as on:
        run = local_run(on, "run")
        assert len(on.orphans()) == 5  # itself, broker, two workers, and of whom these were forked
        run.command.signal(signal.SIGKILL)
        run.command.code()
        eventually("the fleet ends", lambda: not on.orphans())
        eventually("its folder is removed", lambda: not on.left_behind())
        assert len(run.rows) >= 3
    for log in (run.folder / "logs").iterdir():
        assert "Traceback" not in log.read_text()


@pytest.mark.cases(1)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_at_a_terminal_ends_a_local_run_in_order(tmp_path: Path, times: int) -> None:
    with machines(tmp_path / "machines") as on:
        run = local_run(on, "run")
        for _ in range(times):
            run.command.signal(signal.SIGINT)
        assert run.command.code() == 130
        assert len(run.command.errors) <= times - 1 and run.summary["state"] == "cancelled"
        assert run.command.err.count("by the user") == 1
        assert (run.folder / "model.safetensors").exists() or times == 2


def test_ctrl_c_during_capture_is_one_line(tmp_path: Path) -> None:
    with machines(tmp_path / "machines") as on:
        (on.folder / "long.py").write_text(JOB.replace("for layer", "time.sleep(600)\n        for layer"))
        run = train(on, "run", "--local", "2", job="long.py")
        run.command.says("capturing the model")
        run.command.signal(signal.SIGINT)
        assert run.command.code() == 130
        assert run.command.errors == ["error: interrupted"] and not run.folder.exists()


@pytest.mark.full
def test_a_killed_local_broker_ends_the_run(tmp_path: Path) -> None:
    with machines(tmp_path / "machines") as on:
        run = local_run(on, "run")
        (broker,) = [child for child in on.orphans() if "broker" in child.cmdline()]
        os.kill(broker.pid, signal.SIGKILL)
        assert "the broker at 127.0.0.1:" in run.fails()
        events = [json.loads(line)["event"] for line in (run.folder / "events.jsonl").open()]
        assert events[-1] == "ended"


def test_an_operator_lets_a_worker_leave(place: Place) -> None:
    token = place.on.token("operator")
    drain = place.on.start("desk", "drain", "b", "--broker", place.on.address, "--token", token)
    assert drain.code() == 0, drain.err
    assert "b has left: it left in good order: operator " in drain.out
    assert place.workers["b"].code() == 0
    left = {one["worker"]: one for one in place.on.status()["workers"]}["b"]
    assert (left["state"], left["is_lost"], left["connected"]) == ("left", False, False)
    rejoin(place, "b")


def drained(place: Place, name: str, token: str, *arguments: str) -> Command:
    where = ["--broker", place.on.address, "--token", token]
    command = place.on.start("desk", "drain", name, *arguments, *where)
    command.code()
    return command


@pytest.mark.full
def test_the_only_worker_of_a_run_leaves_once_its_state_has_come_home_and_no_step_is_lost(
    place: Place, undisturbed: Run
) -> None:
    token = place.on.token("operator")
    run = place.train("lone-worker", "--on", "c", workers="0")
    drain = drained(place, "c", token)
    assert drain.process.poll() == 0, drain.err
    assert "c has left: it left in good order: operator " in drain.out
    assert place.workers["c"].code() == 0
    stopped = len(run.rows)
    assert [one["step"] for one in run.events("checkpoint")] == [stopped]
    rejoin(place, "c")
    run.reaches(max(STEPS, stopped + 3))
    run.stops()
    assert [row["loss"] for row in run.rows][:STEPS] == [row["loss"] for row in undisturbed.rows]
    assert [row["step"] for row in run.rows] == list(range(1, len(run.rows) + 1))  # each once
    place.on.idle(*WORKERS)


@pytest.mark.full
def test_drain_says_by_its_code_that_a_worker_left_with_its_share(place: Place) -> None:
    token = place.on.token("operator")
    run = place.train("lone-worker-at-once", "--on", "c", workers="0")
    drain = drained(place, "c", token, "--within", "0")
    assert drain.process.poll() == 1
    (line,) = drain.errors
    assert line.startswith("error: c has left, but not in good order: it left with its share of job-")
    assert place.workers["c"].code() == 1
    rejoin(place, "c")
    run.reaches(len(run.rows) + 3)
    run.stops()
    place.on.idle(*WORKERS)
