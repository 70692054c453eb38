"""`farflung train --resume` where the job of the run still stands at the broker, and `--detach`."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.cli.commands.test_status import status_of
from tests.cli.commands.test_train import JOB, Pretending, folder
from tests.client.output.test_run_folder import contents, row

from farflung.cli.main import run
from farflung.client.output.checkpoints.identity import values_digest
from farflung.client.output.checkpoints.record import Versions
from farflung.client.output.history import Recorded
from farflung.client.output.records import Summary
from farflung.client.output.run_record import SubmittedJob
from farflung.client.run.checkpointing import Place
from farflung.client.run.returns import PlaceGone, RunLeft
from farflung.protocol.viewer import JobStatus

__all__ = ["folder"]

ADDRESS = "hub:7700"


class Leaving(Pretending):
    """A submitter that is gone after two steps; one that takes its place may find that gone, too."""

    place_is_gone = False

    async def run(self) -> Summary:
        """See `Submitter`."""
        if self.checkpointing.place is not None:
            if self.place_is_gone:
                raise PlaceGone("job-1 is over at the broker: failed")
            return await super().run()
        if self.checkpointing.resumed is not None:
            return await super().run()
        self.folder.add_event(time.time(), "planned", attempt=1)
        for step in (1, 2):
            self.folder.add_step(row(step))
        self.folder.add_submitted(
            SubmittedJob(
                job="job-1",
                broker=ADDRESS,
                identity=self.identity,
                versions=Versions.own(),
                values=values_digest(self.prepared.state),
            )
        )
        if self.saves:
            self._save(2, 1)
        raise RunLeft("the terminal was closed")


@pytest.fixture
def jobs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[JobStatus]:
    """The jobs of the broker; the run in `run` was left after two steps, without a checkpoint."""
    known: list[JobStatus] = []

    async def identity(*_: Any) -> Any:
        return SimpleNamespace(broker=ADDRESS, id="ana")

    async def status(*_: Any) -> Any:
        return msgspec.structs.replace(status_of(), jobs=list(known))

    monkeypatch.setattr("farflung.client.api.connect.obtain_identity", identity)
    for name in ("ask_status", "ask_workers"):
        monkeypatch.setattr(f"farflung.client.api.connect.{name}", status)
    monkeypatch.setattr("farflung.client.run.submitter.Submitter", Leaving)
    monkeypatch.setattr(Leaving, "place_is_gone", False)
    Pretending.saves = False
    assert run(["train", "chain.py", "--broker", ADDRESS, "--out", "run", "--patience", "30m"]) == 129
    assert Pretending.seen[-1].options["patience_seconds"] == 1800
    known.append(job("running"))
    return known


def job(state: str) -> JobStatus:
    return JobStatus("job-1", "chain", state, "", 2, 6, None, None, [])


def resume(*arguments: str) -> int:
    return run(["train", "chain.py", "--resume", "run", *arguments])


def test_a_run_takes_its_place_where_its_job_stands(
    jobs: list[JobStatus], capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume() == 0
    begun = Pretending.seen[-1].checkpointing
    assert begun.place == Place("job-1", Recorded(2, 2, 1.5)) and begun.resumed is None
    assert Pretending.seen[-1].options["patience_seconds"] == 1800
    assert "job-1 still stands at the broker (running, step 2 of 6)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ([job("failed")], "job-1 is failed at the broker at hub:7700: going on from the newest checkpoint"),
        ([], "job-1 is not known to the broker at hub:7700: going on from the newest checkpoint"),
    ],
)
def test_a_job_that_is_over_is_resumed_from_a_checkpoint(
    jobs: list[JobStatus], capsys: pytest.CaptureFixture[str], known: list[JobStatus], words: str
) -> None:
    jobs[:] = known
    assert resume() == 2
    said = capsys.readouterr().err
    assert words in said and "has no whole checkpoint to go on from" in said


def test_a_place_that_goes_meanwhile_is_left_for_a_checkpoint(
    jobs: list[JobStatus], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Pretending.saves = True
    assert run(["train", "chain.py", "--broker", ADDRESS, "--out", "run"]) == 129
    monkeypatch.setattr(Leaving, "place_is_gone", True)
    assert resume() == 0
    assert (
        "job-1 is over at the broker: failed: going on from the newest checkpoint" in capsys.readouterr().err
    )
    begun = Pretending.seen[-1].checkpointing
    assert begun.place is None and begun.resumed is not None and begun.resumed.record.step == 2


def test_too_many_workers_are_told_with_how_many_are_connected(
    jobs: list[JobStatus], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one_is_there(*_: Any) -> Any:
        return status_of("ready", "left")

    monkeypatch.setattr("farflung.client.api.connect.ask_workers", one_is_there)
    assert run(["train", "chain.py", "--broker", ADDRESS, "--workers", "9", "--out", "other"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("use --workers 1, as many as are connected, or up to 2 once more have joined")


OTHERS = {
    "lr=0.1": ("lr=0.2", "optimizer: lr 0.1 there, 0.2 here"),
    "nn.Linear(4, 4)": ("nn.Linear(4, 4, bias=False)", "model: parameters of 30 numbers there, 26 here"),
    "+ index": ("- index", "data: of 8 sampled items 7 are not the same"),
    "steps=6": ("steps=7", "steps: 6 there, 7 here"),
    "manual_seed(1)": ("manual_seed(2)", "model: it begins with other values than there"),
}


@pytest.mark.parametrize("old", OTHERS)
def test_a_job_that_stands_is_not_resumed_as_another(
    jobs: list[JobStatus], capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str
) -> None:
    new, words = OTHERS[old]
    assert JOB.count(old) == 1
    (tmp_path / "chain.py").write_text(JOB.replace(old, new))
    before = contents(tmp_path / "run")
    assert resume() == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: job-1 still stands at the broker {ADDRESS}, and is another job: ")
    assert words in line and contents(tmp_path / "run") == before


def test_other_options_are_refused_while_the_job_stands(
    jobs: list[JobStatus], capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume("--steps", "9", "--codec", "int8") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "--steps: none there, 9 here" in line and "--codec: none there, int8 here" in line


@pytest.mark.parametrize("arguments", [["--local", "2", "--out", "new"], ["--resume", "run", "--local", "1"]])
def test_a_local_run_does_not_go_on_in_the_background(
    jobs: list[JobStatus], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(["train", "chain.py", *arguments, "--detach"]) == 2
    assert "--detach needs a broker" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_that_goes_on_locally_says_that_its_job_may_still_stand(
    jobs: list[JobStatus], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resume("--local", "1")
    said = capsys.readouterr().err
    assert "job-1 of this run may still stand at the broker hub:7700" in said
    assert "`farflung train chain.py --resume run --broker hub:7700` takes its place instead" in said
