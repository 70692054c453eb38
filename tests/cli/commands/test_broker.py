"""`farflung broker backup` and `restore`: what they say, and where --folder may stand."""

from __future__ import annotations

import json
import os
import pty
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.processes import machines

from farflung.broker.security.authority import create_token
from farflung.cli.main import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_token(tmp_path / "broker", "worker")
    return tmp_path / "broker"


def test_a_broker_is_backed_up_and_restored(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, new = str(tmp_path / "fleet.backup"), str(tmp_path / "new")
    assert run(["broker", "backup", file, "--folder", str(folder)]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"backed up the broker of {folder} to {file} (0 workers, 0 jobs, 1 token, ")
    assert f"keep {file} secret" in second
    assert run(["broker", "restore", file, "--folder", new]) == 0
    assert f"restored the broker of {file} to {new}" in capsys.readouterr().err
    assert (tmp_path / "new" / "authority-key.pem").read_bytes() == (
        folder / "authority-key.pem"
    ).read_bytes()


def test_the_folder_may_stand_before_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "fleet.backup")
    assert run(["broker", "--folder", str(folder), "backup", file, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] == str(folder) and document["holds"]["tokens"] == 1
    assert document["holds"]["bytes"] == (tmp_path / "fleet.backup").stat().st_size


def test_the_default_folder_is_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    create_token(tmp_path / "broker", "worker")
    assert run(["broker", "backup", str(tmp_path / "fleet.backup")]) == 0
    (tmp_path / "broker").rename(tmp_path / "old")
    assert run(["broker", "restore", str(tmp_path / "fleet.backup")]) == 0
    assert (tmp_path / "broker" / "broker.sqlite").exists()


def test_a_mistake_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter").write_text("dear")
    assert run(["broker", "restore", str(tmp_path / "letter"), "--folder", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["broker", "backup", str(tmp_path / "letter"), "--folder", str(folder)]) == 2
    assert "choose another file" in capsys.readouterr().err
    assert run(["broker", "backup"]) == 2
    assert "farflung broker backup --help" in capsys.readouterr().err


def test_a_passphrase_is_set_from_a_file_and_a_wrong_one_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, given = tmp_path / "words", ["broker", "--folder", str(folder)]
    words.write_text("correct horse\n")
    assert run([*given, "passphrase", "--new-passphrase-file", str(words)]) == 0
    assert "is encrypted; the broker needs the passphrase to start" in capsys.readouterr().err
    monkeypatch.setenv("FARFLUNG_PASSPHRASE", "wrong horse")
    assert run([*given, "--listen", "127.0.0.1:0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the passphrase does not open" in line and "wrong horse" not in line
    assert "FARFLUNG_PASSPHRASE" not in os.environ  # so that processes which it starts do not have it
    assert run([*given, "passphrase", "--remove"]) == 2
    assert "give its passphrase by --passphrase-file, or in FARFLUNG_PASSPHRASE" in capsys.readouterr().err
    assert run([*given, "passphrase", "--passphrase-file", str(words), "--remove", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["encrypted"] is False
    monkeypatch.setenv("FARFLUNG_PASSPHRASE", "correct horse")
    assert run([*given, "passphrase", "--passphrase-file", str(words), "--remove"]) == 2
    assert "not both" in capsys.readouterr().err
    assert run([*given, "passphrase", "--passphrase-file", str(tmp_path / "none"), "--remove"]) == 2
    assert "none cannot be read" in capsys.readouterr().err


def test_the_key_is_replaced_and_until_when_the_old_one_counts_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["broker", "--folder", str(folder), "rotate"]
    assert run([*given, "--overlap-days", "2", "--json"]) == 0
    ends_at = json.loads(capsys.readouterr().out)["ends_at"]
    assert ends_at == pytest.approx(time.time() + 2 * 86_400, abs=600)
    assert run(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was replaced before, and members have until" in line
    assert run([*given, "--overlap-days", "0"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert (
        first.endswith("has a new key; all members must join again") and "back the broker up again" in second
    )
    assert run(["broker", "--folder", str(folder / "none"), "rotate"]) == 2
    assert "cannot be read" in capsys.readouterr().err and not (folder / "none").exists()


@pytest.mark.full
@pytest.mark.processes
def test_a_broker_starts_with_the_passphrase_and_with_a_key_that_is_kept_apart(tmp_path: Path) -> None:
    words, stick = tmp_path / "words", tmp_path / "stick.pem"
    words.write_text("correct horse\n")
    with machines(tmp_path) as on:
        key = ["--ca", str(stick), "--passphrase-file", str(words), "--certificate-hours", "2"]
        broker = on.start("hub", "broker", "--listen", on.address, "--no-survey", *key)
        broker.says("listens on", on.address)
        assert not (on.folder / "hub" / "broker" / "authority-key.pem").exists()
        assert b"ENCRYPTED" in stick.read_bytes()
        worker = on.worker("a", on.token("worker"))
        worker.says("idle in the backup pool")
        members = {one["member"]: one for one in on.document("hub", "member", "list")["members"]}
        ends = members["a"]["valid_until"]
        assert ends == pytest.approx(time.time() + 2 * 3600, abs=600)
        assert on.document("hub", "status")["backup_pool"] == ["a"]  # by a token that the folder's user makes
        for command in (worker, broker):
            command.stop()
        assert "is missing: put a copy of it back, or name with --ca" in on.fails("hub", "broker")
        assert "is encrypted: give its passphrase" in on.fails("hub", "broker", "--ca", str(stick))
        words.write_text("wrong horse\n")
        given = ("--ca", str(stick), "--passphrase-file", str(words))
        assert "does not open" in on.fails("hub", "broker", *given)


def typed(command: list[str], *lines: str) -> tuple[int, str]:
    """Run a command at a terminal of its own, and type a line at each prompt: its code and what it shows."""
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, [sys.executable, "-m", "farflung", *command])
    shown, left = b"", list(lines)
    with suppress(OSError):  # which says on Linux that the other end is closed
        while data := os.read(terminal, 1000):
            shown += data
            if left and shown.endswith(b": "):
                os.write(terminal, f"{left.pop(0)}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(terminal)
    return code, shown.decode()


@pytest.mark.processes
def test_a_passphrase_is_typed_at_the_terminal_and_not_shown(folder: Path) -> None:
    change = ["broker", "--folder", str(folder), "passphrase"]
    code, shown = typed(change, "correct horse", "correct house")
    assert code == 2 and "the two passphrases differ, so nothing was changed" in shown
    assert b"ENCRYPTED" not in (folder / "authority-key.pem").read_bytes()
    code, shown = typed(change, "correct horse", "correct horse")
    assert code == 0 and "horse" not in shown
    code, shown = typed([*change, "--remove"], "wrong horse")
    assert code == 2 and "the passphrase does not open" in shown
    assert typed([*change, "--remove"], "correct horse")[0] == 0
    assert b"ENCRYPTED" not in (folder / "authority-key.pem").read_bytes()


def test_jobs_of_a_page_that_there_is_not_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "--folder", str(folder), "--web-jobs", "gpt"]) == 2
    assert "--web-jobs limits what the page of --web shows: add --web" in capsys.readouterr().err


def test_help_says_that_a_backup_is_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "backup", "--help"]) == 0
    assert "The file is secret" in capsys.readouterr().out
