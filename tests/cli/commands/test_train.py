"""`farflung train`: run.json, checkpoints and --resume, with a submitter that only pretends to train."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.client.output.test_run_folder import contents, row, summary

import farflung
from farflung.cli.main import run
from farflung.client.capture.prepared import Prepared
from farflung.client.output.checkpoints.contents import Contents
from farflung.client.output.checkpoints.identity import identity_of
from farflung.client.output.checkpoints.record import CheckpointRecord, RunIdentity, Versions
from farflung.client.output.records import Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
from farflung.client.run.submission import training_of
from farflung.errors import JobRefused

JOB = """
import torch, farflung
from torch import nn

class Items:
    def __len__(self): return 64
    def __getitem__(self, index):
        x = torch.sin(torch.arange(4.0) + index)
        return {"x": x, "y": x[:2]}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    def forward(self, x, y):
        return ((self.layers(x) - y) ** 2).mean()

def job():
    torch.manual_seed(1)
    return farflung.Job(model=Model(), data=Items(), optimizer=farflung.SGD(lr=0.1), batch=4,
                        microbatches=2, steps=6)
"""


class Fleet:
    """No processes."""

    identity = None

    def __init__(self, count: int, logs: Path, backends: Any, devices: Any, web: str = "") -> None:
        Pretending.fleets.append((count, list(backends)))

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def computing(self) -> dict[str, list[str]]:
        """See `LocalFleet`."""
        return {}

    async def watch(self, _: object) -> None:
        """See `LocalFleet`."""


class Pretending:
    """Stands for `Submitter`: "trains" to the last step or to `stops_at`, and saves one checkpoint there."""

    fleets: list[tuple[int, list[str]]]
    seen: list[Pretending]
    stops_at: int | None
    saves: bool

    def __init__(
        self, prepared: Prepared, identity: object, folder: RunFolder, *_: object, **options: Any
    ) -> None:
        self.prepared, self.folder, self.options = prepared, folder, options
        self.checkpointing: Checkpointing = options["checkpointing"]
        self.seen.append(self)

    async def run(self) -> Summary:
        """See `Submitter`."""
        steps, begun = self.prepared.job.steps, self.checkpointing
        first = begun.resumed.record.step if begun.resumed else 0
        last = min(steps, self.stops_at or steps)
        attempt = begun.attempts + 1
        self.folder.add_event(time.time(), "planned", attempt=attempt)
        for step in range(first + 1, last + 1):
            self.folder.add_step(msgspec.structs.replace(row(step), attempt=attempt))
        saved = self._save(last, attempt) if self.saves and begun.policy.saves else None
        found = msgspec.structs.replace(
            summary("done" if last == steps else "cancelled"),
            reason="" if last == steps else "stopped by the user", steps=last, checkpoint_step=saved,
        )  # fmt: skip
        self.folder.write_summary(found)
        return found

    def fail_soon(self, reason: str) -> None:
        """See `Submitter`."""

    @property
    def identity(self) -> RunIdentity:
        """What identifies the run."""
        return identity_of(self.prepared, training_of(self.prepared, self.options["wishes"].codecs))

    def _save(self, step: int, attempt: int) -> int:
        record = CheckpointRecord(
            run=self.checkpointing.run, job="chain", step=step, attempt=attempt, loss=1.5,
            identity=self.identity, versions=Versions.own(),
        )  # fmt: skip
        module, graph = self.prepared.job.model, self.prepared.graph
        self.checkpointing.store.save(record, Contents(module, dict(self.prepared.state), graph.ties, {}))
        return step


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a job file; training there is pretended."""
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FARFLUNG_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chain.py").write_text(JOB)
    Pretending.fleets, Pretending.seen = [], []
    Pretending.stops_at, Pretending.saves = None, True
    monkeypatch.setattr("farflung.localhost.local.LocalFleet", Fleet)
    monkeypatch.setattr("farflung.client.run.submitter.Submitter", Pretending)
    return tmp_path


def stopped_at(step: int, *arguments: str) -> None:
    """A run in `run` that was stopped after so many steps."""
    Pretending.stops_at = step
    assert run(["train", "chain.py", "--local", "2", "--out", "run", *arguments]) == 130
    Pretending.stops_at = None


def options_of(run_folder: Path) -> dict[str, Any]:
    """The options in `run.json` that were given."""
    document = json.loads((run_folder / "run.json").read_text())
    return {name: value for name, value in document["options"].items() if value is not None}


def refused(capsys: pytest.CaptureFixture[str], run_folder: Path, *arguments: str) -> str:
    """The one line with which a resume is refused, which must leave every byte of the run as it was."""
    before = contents(run_folder)
    capsys.readouterr()
    assert run(["train", "chain.py", "--resume", str(run_folder), *arguments]) == 2
    assert contents(run_folder) == before
    said = capsys.readouterr().err.splitlines()
    assert not Pretending.seen[1:]
    (line,) = (line for line in said if line.startswith("error: "))
    assert said[-1] == line
    return line


def test_a_run_keeps_its_name_and_options(folder: Path) -> None:
    (folder / "words.txt").write_text("x")
    assert run(["train", "chain.py", "--local", "2", "--out", "run", "--codec", "int8", "--steps", "3"]) == 0
    document = json.loads((folder / "run" / "run.json").read_text())
    (pretended,) = Pretending.seen
    assert document["run"] == pretended.checkpointing.run
    assert (document["farflung"], document["job"]) == (farflung.__version__, str(folder / "chain.py"))
    assert options_of(folder / "run") == {"local": 2, "steps": 3, "codec": ["int8"]}
    assert pretended.checkpointing.policy == CheckpointPolicy()
    assert pretended.identity.training.codecs == ("int8",)
    assert pretended.checkpointing.store.name == str(folder / "run" / "checkpoints")


def test_when_and_where_checkpoints_are_saved_is_passed_on(folder: Path) -> None:
    asked = ["--checkpoint-every", "10m", "--checkpoint-to", "saved"]
    assert run(["train", "chain.py", "--local", "1", *asked]) == 0
    checkpointing = Pretending.seen[0].checkpointing
    assert checkpointing.policy == CheckpointPolicy(seconds=600.0)
    assert checkpointing.store.name == str(folder / "saved") and (folder / "saved" / "6").is_dir()
    assert options_of(folder / "runs" / "chain")["checkpoint_to"] == str(folder / "saved")


def test_a_resumed_run_keeps_the_fields_that_were_set(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_at(4, "--set", "lr=0.05", "--set", "batch=8")
    job = Pretending.seen[0].prepared.job
    assert (job.optimizer.lr, job.batch, job.seed) == (0.05, 8, 0)
    assert options_of(folder / "run")["set"] == ["lr=0.05", "batch=8"]
    assert "optimizer: lr 0.05 there, 0.07 here" in refused(capsys, folder / "run", "--set", "lr=0.07")
    assert run(["train", "chain.py", "--resume", "run"]) == 0
    assert Pretending.seen[1].prepared.job.optimizer == job.optimizer


@pytest.mark.parametrize("before", ["nothing", "a run", "a folder"])
def test_a_refused_job_leaves_what_was_there_before(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    async def refused(pretended: Pretending) -> Summary:
        pretended.folder.add_event(time.time(), "submitted")
        raise JobRefused("the broker refused the job: ana has 100 jobs here")

    if before == "a run":
        assert run(["train", "chain.py", "--local", "1", "--out", "run"]) == 0
    if before == "a folder":
        (folder / "run").mkdir()
    there = contents(folder)
    monkeypatch.setattr(Pretending, "run", refused)
    capsys.readouterr()
    assert run(["train", "chain.py", "--local", "1", "--out", "run"]) == 2
    *_, note, last = capsys.readouterr().err.splitlines()
    assert last == "error: the broker refused the job: ana has 100 jobs here"
    if before == "a folder":
        assert note == f"nothing was trained: {folder / 'run'} has only the record of the refused job"
    else:
        assert contents(folder) == there and (before == "a run") == (folder / "run").exists()


def test_a_run_can_save_nothing(folder: Path) -> None:
    assert run(["train", "chain.py", "--local", "1", "--checkpoint-every", "never"]) == 0
    (pretended,) = Pretending.seen
    assert not pretended.checkpointing.policy.saves


def test_a_place_with_checkpoints_of_another_run_is_refused_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "chain.py", "--local", "1", "--checkpoint-to", "saved"]) == 0
    before = contents(folder)
    assert run(["train", "chain.py", "--local", "1", "--checkpoint-to", "saved"]) == 2
    assert contents(folder) == before
    said = capsys.readouterr().err.splitlines()
    assert "it has checkpoints of another run (chain, step 6)" in said[-1]
    assert "capturing" not in said[-2]


def test_a_run_goes_on_from_its_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_at(4, "--checkpoint-every", "2")
    assert run(["train", "chain.py", "--resume", "run"]) == 0
    first, second = Pretending.seen
    assert second.checkpointing.run == first.checkpointing.run
    assert second.checkpointing.policy == first.checkpointing.policy == CheckpointPolicy(steps=2)
    assert second.checkpointing.attempts == 1 and first.checkpointing.attempts == 0
    resumed = second.checkpointing.resumed
    assert resumed is not None and resumed.record.step == 4 and "layers.0.weight" in resumed.weights
    assert Pretending.fleets == [(2, []), (2, [])]
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["attempt"]) for row in rows] == [*((n, 1) for n in range(1, 5)), (5, 2), (6, 2)]
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    assert [(one["event"], one["attempt"]) for one in events] == [("planned", 1), ("planned", 2)]
    assert sorted(path.name for path in (folder).iterdir()) == ["chain.py", "run"]
    said = capsys.readouterr().err
    assert "comparing the job with that of the run in run\ngoing on from the checkpoint of step 4 in" in said


def test_given_options_replace_those_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_at(4, "--codec", "int8")
    changed = ["--steps", "9", "--local", "1", "--codec", "dense", "--checkpoint-every", "never"]
    assert run(["train", "chain.py", "--resume", "run", *changed]) == 0
    second = Pretending.seen[1]
    assert (second.prepared.job.steps, second.checkpointing.policy.saves) == (9, False)
    assert Pretending.fleets[1] == (1, [])
    expected = {"steps": 9, "local": 1, "codec": ["dense"], "checkpoint_every": "never"}
    assert options_of(folder / "run") == expected
    words = "codecs: int8 there, dense here; the run goes on with the latter from step 5"
    assert f"warning: {words}" in capsys.readouterr().err
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    assert [one["words"] for one in events if one["event"] == "warned"] == [[words]]


def test_a_run_can_go_on_in_another_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_at(4, "--checkpoint-to", "saved")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert run(["train", "../chain.py", "--resume", "../run"]) == 0
    assert Pretending.seen[1].checkpointing.store.name == str(folder / "saved")


def test_checkpoints_can_move_to_another_place(folder: Path) -> None:
    stopped_at(4)
    assert run(["train", "chain.py", "--resume", "run", "--checkpoint-to", "saved"]) == 0
    assert run(["train", "chain.py", "--resume", "run", "--steps", "8"]) == 0
    steps = [one.checkpointing.resumed.record.step for one in Pretending.seen if one.checkpointing.resumed]
    assert steps == [4, 6] and (folder / "saved" / "8").is_dir()


def test_the_newest_checkpoint_that_is_whole_is_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_at(3)
    Pretending.stops_at = 5
    assert run(["train", "chain.py", "--resume", "run"]) == 130
    Pretending.stops_at = None
    model = folder / "run" / "checkpoints" / "5" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    assert run(["train", "chain.py", "--resume", "run"]) == 0
    assert Pretending.seen[2].checkpointing.resumed.record.step == 3  # type: ignore[union-attr]
    assert "is damaged: its SHA-256 differs" in capsys.readouterr().err


CHANGES = {
    "model": ("nn.Linear(4, 4)", "nn.Linear(4, 4, bias=False)", "model: parameters of 30 numbers there"),
    "loss": ("** 2", "** 4", "model: graph "),
    "optimizer": ("lr=0.1", "lr=0.2", "optimizer: lr 0.1 there, 0.2 here"),
    "batch": ("batch=4", "batch=8", "microbatch_size: 2 there, 4 here"),
    "data": ("return 64", "return 65", "data: 64 items there, 65 here"),
    "items": ("+ index", "- index", "data: of 8 sampled items 7 are not the same"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_job_is_refused_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    old, new, words = CHANGES[change]
    stopped_at(4)
    with (folder / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    (folder / "chain.py").write_text(JOB.replace(old, new))
    line = refused(capsys, folder / "run")
    assert (
        f"the checkpoint of step 4 is of another run (of {folder / 'chain.py'}): " in line and words in line
    )


def test_a_run_that_is_done_says_how_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "chain.py", "--local", "2", "--out", "run"]) == 0
    assert "to train on: farflung train chain.py --resume run --steps 12" in capsys.readouterr().err
    line = refused(capsys, Path("run"))
    assert line == (
        "error: the run in run is done (6 of 6 steps): ask for more with --steps, or `farflung export run`"
    )
    assert "is done (6 of 5 steps)" in refused(capsys, Path("run"), "--steps", "5")


def test_a_run_that_is_done_is_found_before_the_model_is_captured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "chain.py", "--local", "2", "--out", "run"]) == 0
    capsys.readouterr()
    assert run(["train", "chain.py", "--resume", "run"]) == 2
    assert "captur" not in capsys.readouterr().err
    (folder / "chain.py").write_text(JOB.replace(*CHANGES["model"][:2]))
    assert run(["train", "chain.py", "--resume", "run"]) == 2
    said = capsys.readouterr().err
    assert "capturing the model" in said and CHANGES["model"][2] in said


def test_a_run_that_is_done_is_not_taken_for_that_of_another_job(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "chain.py", "--local", "2", "--out", "run"]) == 0
    old, new, words = CHANGES["model"]
    (folder / "other.py").write_text(JOB.replace(old, new))
    (folder / "same.py").write_text(JOB)
    for file, said in {"other.py": words, "same.py": "the run in run is done (6 of 6 steps)"}.items():
        before = contents(folder)
        capsys.readouterr()
        assert run(["train", file, "--resume", "run"]) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
        assert contents(folder) == before


def test_a_run_without_a_checkpoint_says_what_was_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_at(4, "--checkpoint-every", "never")
    line = refused(capsys, folder / "run")
    place = folder / "run" / "checkpoints"
    assert f"has no whole checkpoint to go on from ({place}: it is empty or missing): start again" in line
    (place / "4").mkdir(parents=True)
    line = refused(capsys, folder / "run")
    assert f"{place}/4 has no checkpoint.json: it was not written to its end" in line


def test_a_damaged_record_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_at(4)
    record = folder / "run" / "run.json"
    record.write_bytes(record.read_bytes()[:-30])
    assert "run.json is damaged or foreign" in refused(capsys, folder / "run")
    record.unlink()
    assert "expected a run to resume in" in refused(capsys, folder / "run")


def test_a_run_that_goes_on_is_not_resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_at(4)
    with (folder / "run" / "events.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = refused(capsys, folder / "run")
    assert line.endswith("run: wait for it, or stop it first") and "another run is writing to" in line


def test_a_resumed_run_stays_in_its_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_at(4)
    assert "stays in its folder" in refused(capsys, folder / "run", "--out", "other")
    assert run(["train", "chain.py", "--resume", "run", "--out", "./run"]) == 0


def test_emulated_devices_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_at(4)
    (folder / "program").write_bytes(b"")
    line = refused(capsys, folder / "run", "--emulated", "program")
    assert "emulated devices have no state to save" in line


def test_a_run_that_was_stopped_prints_the_command_that_resumes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_at(4)
    said = capsys.readouterr().err.splitlines()
    assert "to go on from the newest checkpoint: farflung train chain.py --resume run" in said
    for stops_at, saves, expected in [
        (5, True, "farflung train chain.py --resume 'a run'"),
        (5, False, None),
        (None, True, None),
    ]:
        Pretending.stops_at, Pretending.saves = stops_at, saves
        run(["train", "chain.py", "--local", "1", "--json", "--out", "a run"])
        printed = capsys.readouterr()
        document = json.loads(printed.out)
        assert document["resume"] == expected and document["steps"] == (stops_at or 6)
        assert ("to go on" in printed.err) == (expected is not None)
        assert ("to train on" in printed.err) == (stops_at is None)


def test_a_password_is_asked_for_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    from farflung.client.output.checkpoints.store import CheckpointStore

    opened: list[str] = []

    def local(where: str | Path, *_: object, **__: object) -> CheckpointStore:
        from farflung.client.output.checkpoints.places import Folder

        opened.append(str(where))
        return CheckpointStore(Folder(folder / "saved"))

    monkeypatch.setattr(CheckpointStore, "open", staticmethod(local))
    stopped_at(4, "--checkpoint-to", "ftp://me:secret@host/run")
    assert set(opened) == {"ftp://me:secret@host/run"}
    command = "farflung train chain.py --resume run --checkpoint-to URL"
    printed = capsys.readouterr().err
    assert command in printed and "secret" not in printed
    assert not [path for path, held in contents(folder / "run").items() if b"secret" in held]
