"""Work that is run again: a worker that skips its updates or flips a bit is found and named."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import JOB, Command, Machines, Run, machines, train

import farflung

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

STEPS = 8
SABOTAGE = """

import os as _os

_honest_apply, _honest_forward = TorchSegment.apply, TorchSegment.forward


def _does():
    return open(_os.path.join(_os.environ["FARFLUNG_HOME"], "does")).read()


def _apply(self, step, scale):
    if _does() == "no update" and step >= 3:
        self.drop()
    else:
        _honest_apply(self, step, scale)


def _forward(self, unit, *given):
    made = {name: tensor.clone() for name, tensor in _honest_forward(self, unit, *given).items()}
    if _does() == "a flipped bit" and unit.train and unit.step >= 3:
        for tensor in made.values():
            tensor.view(-1).view(torch.int32)[0] ^= 1
    return made


TorchSegment.apply, TorchSegment.forward = _apply, _forward
"""
"""Appended to a copy of the worker's sources, as a hostile owner would."""


class Place:
    """A broker, a saboteur "m", an honest worker "x" after it and a submitter; others join later."""

    def __init__(self, on: Machines, does: str) -> None:
        self.on = on
        checked = JOB.replace("steps=1_000_000", f"steps={STEPS}, verify=1.0")
        (on.folder / "net.py").write_text(checked)
        sources = on.folder / "sabotaged"
        shutil.copytree(Path(farflung.__file__).parent, sources / "farflung")
        with (sources / "farflung/runtime/torch_backend/segment.py").open("a") as file:
            file.write(SABOTAGE)
        (on.folder / "m").mkdir()
        (on.folder / "m" / "does").write_text(does)
        self.broker = on.broker()
        self._token = on.token("worker", "--uses", "4")
        self.workers = [self.join("x"), self.join("m", sources)]
        submitter = ["--token", on.token("submitter"), "--broker", on.address]
        on.document("desk", "status", *submitter)
        on.idle("m", "x")

    def join(self, name: str, sources: Path | None = None) -> Command:
        """Start a worker."""
        return self.on.worker(name, self._token, sources)

    def train(self, name: str, *arguments: str) -> Run:
        """Start to train on two workers."""
        return train(self.on, name, "--workers", "2", "--broker", self.on.address, *arguments)

    def suspicions(self) -> dict[str, str]:
        """What is held against members, as operators see it."""
        members = self.on.document("hub", "member", "list")["members"]
        return {one["member"]: one["suspected"] for one in members if one["suspended"]}

    def close(self) -> None:
        """End it in good order."""
        for command in (*self.workers, self.broker):
            command.stop()


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    with machines(tmp_path) as on:
        place = Place(on, request.param)
        yield place
        place.close()


@pytest.mark.cases(1)
@pytest.mark.parametrize("place", ["no update", "a flipped bit"], indirect=True)
def test_a_saboteur_is_named_and_the_weights_are_those_of_an_undisturbed_run(place: Place) -> None:
    run = place.train("checked")
    run.reaches(1)
    run.command.says("waiting for an idle worker to check", "start another worker with `farflung join`")
    (waits,) = [one["reason"] for one in place.on.status()["jobs"]]
    assert waits in run.command.err
    place.workers += [place.join("c"), place.join("d")]
    assert run.command.code() == 0, run.command.err
    assert set(place.suspicions()) == {"m"}
    assert "did other work than it said" in place.suspicions()["m"]
    (back,) = run.events("rolled back")
    assert "worker m did other work than it said" in back["reason"]
    assert run.events("planned")[0]["workers"] == ["m", "x"] and run.summary["state"] == "done"
    undisturbed = place.train("undisturbed", "--set", "verify=0")
    assert undisturbed.command.code() == 0, undisturbed.command.err
    assert "m" not in [*undisturbed.workers, *run.workers]
    weights = [(one.folder / "model.safetensors").read_bytes() for one in (run, undisturbed)]
    assert weights[0] == weights[1]
    last = {row["step"]: row["loss"] for row in run.rows}
    assert last == {row["step"]: row["loss"] for row in undisturbed.rows}


@pytest.mark.full
@pytest.mark.parametrize("place", ["nothing bad"], indirect=True)
def test_every_step_of_honest_workers_is_checked_before_the_weights_come_home(place: Place) -> None:
    place.workers.append(place.join("c"))
    run = place.train("honest")
    assert run.command.code() == 0, run.command.err
    checks = [row for row in run.events("check") if row["worker"] is not None]
    assert all(row["agrees"] for row in checks), checks
    for worker in run.workers:
        mine = sorted((row["first"], row["over"]) for row in checks if row["worker"] == worker)
        assert [first for first, _ in mine] == [0, *(over for _, over in mine[:-1])]
        assert mine[-1][1] == STEPS
    assert not place.suspicions() and not run.events("rolled back")
    assert run.summary["weights_step"] == run.summary["checkpoint_step"] == STEPS


@pytest.mark.full
@pytest.mark.parametrize("place", ["nothing bad"], indirect=True)
def test_a_run_that_is_stopped_brings_home_nothing_that_was_not_checked(place: Place) -> None:
    place.workers.append(place.join("c"))
    run = place.train("stopped", "--steps", "1000000")
    run.reaches(STEPS)
    run.command.signal(signal.SIGINT)
    assert run.command.code() == 130, run.command.err
    assert "no weights came home, as the last were not checked (verify=1): train again" in run.command.err
    assert "stopping: no weights come home" in run.command.err
    assert run.summary["state"] == "cancelled" and run.summary["weights_step"] is None
    assert not (run.folder / "model.safetensors").exists()
    assert not [*(run.folder / "checkpoints").glob("[0-9]*")]
