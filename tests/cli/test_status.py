"""What is said of a broker's workers: who has joined and is away is not counted among those who are there."""

from __future__ import annotations

import pytest

from farflung.protocol.viewer import Status, WorkerStatus


def status_of(*states: str) -> Status:
    """What a broker says whose workers w0, w1, ... are in these states."""
    workers = [
        WorkerStatus(f"w{number}", state, "cpu", "", "127.0.0.1:1", 0.0, "", 0.0)
        for number, state in enumerate(states)
    ]
    idle = [worker.worker for worker in workers if worker.state == "idle"]
    return Status("0", 1.0, workers, [], idle, {}, [], 0.0)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("idle", "running"), "2 workers"),
        (("idle", "lost", "left"), "1 worker, 2 away"),
        (("lost",), "0 workers, 1 away"),
        ((), "0 workers"),
    ],
)
def test_workers_that_are_away_are_counted_apart(states: tuple[str, ...], words: str) -> None:
    assert status_of(*states).workers_counted() == words
