"""A worker sends false weights home, or has false gradients: the run says whose they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import JOB, Machines, Run, machines, train

import farflung

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

STEPS = 5
SABOTAGE = """

import os as _os

_honest = TorchSegment.state
_KINDS = {"nan": float("nan"), "zeros": 0.0}


def _kind():
    return open(_os.path.join(_os.environ["FARFLUNG_HOME"], "sends")).read()


def _false(self):
    kind, made = _kind(), _honest(self)
    if kind in ("jump", "climb") or (kind == "late" and self.summed < 40):
        return made
    if kind in ("turned", "late"):
        return {name: -tensor for name, tensor in made.items()}
    return {name: torch.full_like(tensor, _KINDS[kind]) for name, tensor in made.items()}


TorchSegment.state = _false
_sums = TorchSegment.square_sums


def _loud(self):
    self.summed += 1
    late, kind = self.summed - 20, _kind()
    factor = 1e30 if kind == "jump" and not late else 1.4 ** max(0, late) if kind == "climb" else 1.0
    for gradient in self.gradients().values():
        gradient.mul_(factor)
    return _sums(self)


TorchSegment.square_sums, TorchSegment.summed = _loud, 0
"""
"""Appended to a copy of the worker's sources, as a hostile owner would."""


class Place:
    """A broker, an honest worker "a", a saboteur "m", and a submitter."""

    def __init__(self, on: Machines) -> None:
        self.on = on
        job = JOB.replace("data=Items()", "data=Items(), validation=Items()")
        (on.folder / "net.py").write_text(job)
        slow = job + "\n\nclass Slow(Items):\n    seconds = 0.04\n"
        (on.folder / "slow.py").write_text(slow.replace("data=Items(),", "data=Slow(),"))
        self._sources = on.folder / "sabotaged"
        shutil.copytree(Path(farflung.__file__).parent, self._sources / "farflung")
        with (self._sources / "farflung/runtime/torch_backend/segment.py").open("a") as file:
            file.write(SABOTAGE)
        self.broker = on.broker()
        self.sends("zeros")
        token = on.token("worker", "--uses", "2")
        self.workers = [on.worker("a", token), on.worker("m", token, sources=self._sources)]
        self._submitter = ["--token", on.token("submitter"), "--broker", on.address]
        on.document("desk", "status", *self._submitter)
        self._submitter = ["--broker", on.address]
        on.idle("a", "m")

    def sends(self, kind: str) -> None:
        """From now on the saboteur sends this instead of its weights."""
        home = self.on.folder / "m"
        home.mkdir(exist_ok=True)
        (home / "sends").write_text(kind)

    def train(self, name: str, *arguments: str, job: str = "net.py") -> Run:
        """Run a job to its end."""
        run = train(self.on, name, "--steps", str(STEPS), *self._submitter, *arguments, job=job)
        run.command.code()
        return run

    def close(self) -> None:
        """End it in good order."""
        for command in (*self.workers, self.broker):
            command.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with machines(tmp_path_factory.mktemp("place")) as on:
        place = Place(on)
        yield place
        place.close()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nan", "numbers that are not finite, in segment"),
        ("zeros", "came home as zeros"),
        ("turned", "but the fleet reported"),
    ],
)
def test_a_run_whose_worker_sends_false_weights_fails_and_names_it(
    place: Place, kind: str, words: str
) -> None:
    place.sends(kind)
    run = place.train(kind, "--workers", "2")
    assert run.command.code() == 1
    (line,) = run.command.errors
    assert words in line and "of worker m" in line
    assert not (run.folder / "model.safetensors").exists()


@pytest.mark.full
def test_a_checkpoint_shows_whose_weights_are_false(place: Place) -> None:
    place.sends("late")  # what it sent before the end, such as the checkpoint of step 30, was true
    given = ["--workers", "2", "--steps", "40", "--checkpoint-every", "10"]
    run = place.train("shown", *given, job="slow.py")  # so that this checkpoint is there by then
    assert run.command.code() == 1
    (line,) = run.command.errors
    assert "of worker m had in the checkpoint of step" in line and "worker a" not in line


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("kind", "steps", "words"), [("jump", 24, "was clipped to"), ("climb", 60, "has climbed")]
)
def test_a_worker_whose_gradients_grow_is_named_while_the_run_goes_on(
    place: Place, kind: str, steps: int, words: str
) -> None:
    place.sends(kind)
    run = place.train(kind, "--workers", "2", "--steps", str(steps), "--set", "clip=1.0")
    assert run.command.code() == 0, run.command.err
    alarms = [line for line in run.command.err.splitlines() if words in line]
    assert alarms and all("on worker m (" in line for line in alarms)


def test_an_honest_run_says_that_its_weights_have_the_reported_loss(place: Place) -> None:
    run = place.train("honest", "--on", "a")
    assert run.command.code() == 0, run.command.err
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    (checked,) = [event for event in events if event["event"] == "checked"]
    assert checked["loss"] == pytest.approx(checked["reported"], rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("x = torch.randn(8)", "validation items differ each time they are read"),
        ("time.sleep(0.2); x = torch.ones(8)", "evaluating them takes about"),
    ],
)
def test_an_honest_run_is_not_judged_by_data_that_cannot_be_read_again(
    place: Place, item: str, reason: str
) -> None:
    job = place.on.folder / "other.py"
    other = JOB.replace("x = torch.sin(torch.arange(8.0) + index)", item).replace(
        "class Items", "class Other"
    )
    job.write_text(JOB + other.replace("data=Items()", "data=Items(), validation=Other()"))
    run = place.train(reason.split()[0], "--on", "a", "--set", "validation_batches=16", job="other.py")
    assert run.command.code() == 0, run.command.err
    assert f"was not compared with the reported one: {reason}" in run.command.err
