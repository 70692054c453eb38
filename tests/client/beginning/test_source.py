"""A job from a Python program has the values that were asked for, and those that its run keeps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.localhost.jobs import job

import farflung
from farflung.client.beginning.source import JobFile, PythonJob
from farflung.client.options.asked import Request, ask
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.run_record import RunOptions, RunRecord
from farflung.errors import JobError


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run that a command began with `--set`."""
    made = RunFolder.create(tmp_path / "run")
    made.write_record(RunRecord.of("job.py", RunOptions(set_=["lr=0.125", "batch=16"], steps=5)))
    made.close()
    return made.path


def test_a_run_that_goes_on_from_python_keeps_what_a_command_set(earlier: Path) -> None:
    asked = ask(Request(RunOptions(steps=9), resume=earlier))
    loaded = PythonJob(job()).load(asked)
    assert (loaded.optimizer.lr, loaded.batch, loaded.steps) == (0.125, 16, 9)


def test_inner_steps_keep_the_rest_of_what_the_job_says_of_merges(tmp_path: Path) -> None:
    asked = ask(Request(RunOptions(inner_steps=5, replicas="2"), tmp_path / "run"))
    sync = farflung.DiLoCo(inner_steps=50, outer=farflung.Nesterov(0.5, 0.25), warmup=3)
    assert PythonJob(job(sync=sync)).load(asked).sync == farflung.DiLoCo(5, sync.outer, 3)
    assert PythonJob(job()).load(asked).sync == farflung.DiLoCo(5)
    with pytest.raises(JobError, match="moving averages of replicas that train apart are not merged"):
        PythonJob(job(optimizer=farflung.SGD(lr=0.5, ema=0.9))).load(asked)


def test_a_job_that_cannot_have_what_was_set_is_refused(earlier: Path) -> None:
    asked = ask(Request(RunOptions(), resume=earlier))
    with pytest.raises(JobError, match="batch must be divisible by microbatches"):
        PythonJob(job(batch=9, microbatches=9)).load(asked)


def test_a_program_that_is_not_on_the_path_is_named_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / "bin" / "farflung"
    called.parent.mkdir()
    called.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(called), "train"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert JobFile("job.py").resuming(Path("run"), False) == f"{called} train job.py --resume run"
    monkeypatch.setenv("PATH", str(called.parent))
    assert JobFile("job.py").resuming(Path("run"), False) == "farflung train job.py --resume run"
    monkeypatch.setattr(sys, "argv", ["/x/farflung/__main__.py", "train"])
    assert JobFile("job.py").resuming(Path("run"), False) == "farflung train job.py --resume run"
