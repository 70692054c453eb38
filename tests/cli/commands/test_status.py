"""What is said of a broker's workers: who has joined and is away is not counted among those who are there."""

from __future__ import annotations

import sys

import pytest

from farflung.cli.main import run
from farflung.cli.render.status import status_lines
from farflung.protocol.reachability import LinkReport
from farflung.protocol.viewer import JobStatus, LinkView, Status, WorkerStatus
from farflung.transport.link.stats import LinkStatus
from farflung.transport.security.tokens import Token


def status_of(*states: str) -> Status:
    """What a broker says whose workers w0, w1, ... are in these states."""
    workers = [
        WorkerStatus(
            f"w{number}",
            "left" if state == "lost" else state,
            "cpu",
            "",
            "127.0.0.1:1",
            0.0,
            "",
            0.0,
            connected=state not in ("lost", "left"),
            is_lost=state == "lost",
        )
        for number, state in enumerate(states)
    ]
    idle = [worker.worker for worker in workers if worker.state == "ready"]
    return Status("0", 1.0, workers, [], idle, {}, [], 0.0)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("ready", "training"), "2 workers connected, 1 idle"),
        (("ready", "lost", "left"), "1 worker connected, 1 lost, 1 left, 1 idle"),
        (("lost",), "0 workers connected, 1 lost, 0 idle"),
        ((), "0 workers connected, 0 idle"),
    ],
)
def test_workers_that_are_away_are_counted_apart(states: tuple[str, ...], words: str) -> None:
    assert status_of(*states).workers_counted() == words


def wide_status() -> Status:
    """Two workers on a job with coded links, and one whose name and address are long."""
    names = ("vm-desk-2", "lab-gpu-17", "a-machine-with-a-long-host-name-x7k3")
    workers = [
        WorkerStatus(name, "training", "x86_64", "", "[2001:db8:85a3::8a2e:370:7334]:41470", 1.0, "job-1",
                     0.0, "torch 2.13.0+cpu")
        for name in names
    ]  # fmt: skip
    job = JobStatus("job-1", "gpt", "running", "", 20, 450, 4.25, 30912.3, list(names))
    lost = "worker lab-gpu-17 was lost: " + "no heartbeat " * 12
    over = JobStatus("job-0", "gpt", "failed", lost, 1, 2, None, None, [])
    link = LinkStatus("vm-desk-2", "relay through lab-gpu-17", "1.2.3.4:5", "bbr", 1, 12.34, 1130.0, 0, 0)
    links = [LinkView("lab-gpu-17", "job-1", LinkReport("vm-desk-2", "", 7001, link))]
    return Status("0", 1.0, workers, [over, job], [], {}, links, 100.0)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminals_width_is_kept_to(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = list(status_lines(wide_status()))
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for shown in (
        "torch 2.13.0+cpu",
        "relay through lab-gpu-17",
        "4.2500",
        "30,900",
        "1.13 Gbit/s",
        "20/450",
    ):
        assert shown in text
    assert "site" not in text and "codecs " not in text  # nothing is known of these
    assert " ".join(text.split()).count("no heartbeat") == 12


def test_in_a_pipe_a_row_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    (row,) = [line for line in status_lines(wide_status()) if "a-machine-with-a-long-host-name-x7k3" in line]
    assert "training" in row and "[2001:db8:85a3::8a2e:370:7334]:41470" in row and row.endswith("job-1")


def test_a_workers_token_is_not_used_up_for_a_look(capsys: pytest.CaptureFixture[str]) -> None:
    token = Token("worker", bytes(32), b"0123456789abcdef").text
    assert run(["status", "--broker", "127.0.0.1:1", "--token", token]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "this token lets a worker join" in line and "farflung token create --role viewer" in line
