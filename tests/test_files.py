from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farflung import files
from farflung.files import make_folder, replace_folder, write_atomically


def test_a_file_is_replaced_whole_with_the_mode_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(b"old and longer")
    path.chmod(0o644)
    write_atomically(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_atomically(path, b"old")
    code = (
        "import pathlib, resource, signal, sys\nfrom farflung.files import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_atomically(pathlib.Path(sys.argv[1]), bytes(5000))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert "File too large" in ended.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "nowhere" / "file", b"")


def test_the_name_of_each_new_folder_is_put_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_folder(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3 and (tmp_path / "a" / "b" / "c").is_dir()


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for text in ("old", "new"):
        with replace_folder(folder) as fresh:
            (fresh / "file").write_text(text)
        assert (folder / "file").read_text() == text
    with pytest.raises(OSError, match="full"), replace_folder(folder) as fresh:
        (fresh / "file").write_text("half")
        raise OSError("full")
    assert (folder / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_a_kill_left_set_aside_comes_back(tmp_path: Path) -> None:
    (tmp_path / ".mine.old").mkdir()
    (tmp_path / ".mine.old/file").write_text("old")
    (tmp_path / ".mine.new").mkdir()
    (tmp_path / ".mine.new/half").write_text("half")
    with pytest.raises(OSError, match="full"), replace_folder(tmp_path / "mine"):
        raise OSError("full")
    assert (tmp_path / "mine/file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
