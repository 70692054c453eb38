"""What `farflung join` says and does while it makes itself ready."""

from __future__ import annotations

import stat
import sys
import tempfile
from pathlib import Path

import pytest

from farflung import heap
from farflung.cli.commands.join import _imported, _own_folder, join
from farflung.errors import JobError
from farflung.localhost import parent_watch
from farflung.runtime import frameworks


def test_a_framework_that_takes_its_time_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def imported(name: str, tflops: float | None = None, device: str = "cpu") -> str:
        said.append(capsys.readouterr().err)
        return f"the backend {name}"

    monkeypatch.setattr(frameworks, "COMPUTING", ("abacus",))
    monkeypatch.setattr(frameworks, "backend_called", imported)
    assert _imported("abacus", None, "auto") == ("the backend abacus", None)
    monkeypatch.setitem(sys.modules, "abacus", sys)
    assert _imported("abacus", None, "auto") == ("the backend abacus", None)
    assert said == ["importing abacus to measure this machine with it takes 3 to 10 s\n", ""]


def test_there_is_one_heap_before_there_is_a_second_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thread that was there before keeps a heap, and then every other thread after it gets that one."""
    done: list[str] = []
    monkeypatch.setattr(heap, "keep_freed_memory", lambda: done.append("one heap"))
    monkeypatch.setattr(parent_watch, "stop_with_parent", lambda folder: done.append("a thread"))
    with pytest.raises(JobError, match="--memory"):
        join("127.0.0.1", memory="-1", exit_with_parent=tmp_path)
    assert done == ["one heap", "a thread"]


def test_a_temporary_folder_goes_with_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _own_folder(None, temporary=True) as made:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700 and made.parent == tmp_path
        (made / "identity.json").touch()
    assert not list(tmp_path.iterdir())
    with pytest.raises(JobError, match="leave out --folder"), _own_folder(tmp_path, temporary=True):
        pass
    with _own_folder(tmp_path, temporary=False) as own:
        assert own == tmp_path
