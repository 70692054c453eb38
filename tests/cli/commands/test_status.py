"""What is said of a broker's workers: who has joined and is away is not counted among those who are there."""

from __future__ import annotations

import sys

import msgspec
import pytest

from farflung.cli.main import run
from farflung.cli.render.status import job_lines, status_lines
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


def test_a_worker_is_shown_without_fields_that_are_not_set() -> None:
    (worker,) = status_of("ready").workers
    shown = "worker='w0', state='ready', device='cpu', site='', address='127.0.0.1:1', last_seen_seconds=0.0"
    assert repr(worker) == f"WorkerStatus({shown}, job='', relay_mbps=0.0)"


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("ready", "training"), "2 workers: 1 training, 1 ready"),
        (("ready", "lost", "left"), "1 worker: 1 ready; 2 left"),
        (
            ("suspect", "draining", "joining", "standby"),
            "4 workers: 1 standby, 1 joining, 1 draining, 1 suspect",
        ),
        (("lost",), "0 workers; 1 left"),
        ((), "0 workers"),
    ],
)
def test_workers_are_counted_by_state_and_those_that_left_apart(states: tuple[str, ...], words: str) -> None:
    assert status_of(*states).workers_counted() == words


def test_workers_that_left_and_jobs_that_are_over_are_folded() -> None:
    found = status_of("ready", *["lost"] * 5)
    gone = [
        msgspec.structs.replace(one, gone_seconds=60.0 * number, reason="it was lost" if number == 5 else "")
        for number, one in enumerate(found.workers)
    ]
    states = ["done", "failed", "done", "done", "running", "done"]
    jobs = [job(f"job-{number}", state) for number, state in enumerate(states, 1)]
    found = msgspec.structs.replace(found, workers=gone, jobs=jobs)
    text = "\n".join(status_lines(found))
    assert "w1: left 1:00 ago" in text and "w3: left" in text and "w4" not in text and "w5" not in text
    assert "  and 2 workers before (--all lists them)" in text
    assert "  and 2 older jobs: 1 done, 1 failed (--all lists them)" in text
    assert "job-1 " not in text and "job-2 " not in text and "job-5 " in text and "job-6 " in text
    everything = "\n".join(status_lines(found, everything=True))
    assert (
        "w5: left 5:00 ago: it was lost" in everything
        and "job-1 " in everything
        and "--all" not in everything
    )


def job(name: str, state: str, **changes: object) -> JobStatus:
    return JobStatus(name, "gpt", state, "", 1, 2, None, None, [], **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "changes", "shown"),
    [
        ("running", {}, "running"),
        ("running", {"held": True}, "held"),
        ("loading", {"waits_for": ["a", "b"]}, "waiting for a, b"),
        ("failed", {"held": True}, "failed"),
    ],
)
def test_a_job_that_is_held_or_waits_says_so_as_its_state(
    state: str, changes: dict[str, object], shown: str
) -> None:
    found = msgspec.structs.replace(status_of(), jobs=[job("job-1", state, **changes)])
    (row,) = [line for line in status_lines(found) if "job-1" in line]
    assert f"  {shown}  " in row


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


def test_the_list_of_jobs_names_the_members_of_each() -> None:
    jobs = wide_status().jobs
    assert "  job-1: on vm-desk-2, lab-gpu-17, a-machine-with-a-long-host-name-x7k3" in job_lines(
        jobs, members=True
    )
    assert not any(": on " in line for line in job_lines(jobs))


@pytest.mark.parametrize(
    ("remote", "path", "rate"),
    [
        ("127.0.0.1:5", "direct", "within one machine"),
        ("[::1]:5", "reverse", "within one machine"),
        ("127.0.0.1:5", "relay through a", "1.13 Gbit/s"),
        ("1.2.3.4:5", "direct", "1.13 Gbit/s"),  # both ends may be behind the router of that address
    ],
)
def test_a_link_within_a_machine_shows_no_rate(remote: str, path: str, rate: str) -> None:
    link = LinkStatus("b", path, remote, "cubic", 1, 0.3, 1130.0, 0, 0)
    links = [LinkView("a", "job-1", LinkReport("b", "", 7001, link))]
    found = msgspec.structs.replace(wide_status(), links=links)
    (row,) = [line for line in status_lines(found) if "a -> b" in line]
    assert rate in row and ("1.13" in row) == ("1.13" in rate)


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
