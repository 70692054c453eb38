"""Who gets no further while an attempt loads, on a line that all workers share."""

from __future__ import annotations

from farflung.client.run.state_sender import MOVED_BYTES, LoadingWatch

ALL = {"a", "b"}


def test_workers_on_a_slow_line_that_they_share_move() -> None:
    """Slices of 4 MB for each of 8 workers over 0.8 Mbit/s: none was whole after five minutes."""
    watch, names = LoadingWatch(), [f"w{n}" for n in range(8)]
    for now in range(0, 3000, 10):
        seconds = watch.look(float(now), dict.fromkeys(names, int(now * 1e5 / 8)), set(names))
        assert max(seconds.values()) <= 10.0


def test_heartbeats_are_no_progress() -> None:
    watch = LoadingWatch()
    for now in range(0, 301, 10):
        seconds = watch.look(float(now), {"a": 1000 + 3 * now, "b": 20_000 * now}, ALL)
    assert seconds == {"a": 300.0, "b": 0.0}


def test_time_in_which_the_submitter_reads_or_a_worker_fetches_does_not_count() -> None:
    watch = LoadingWatch()
    watch.look(0.0, {"a": 0}, ALL)
    assert watch.look(200.0, {"a": 0}, set()) == {}
    assert watch.look(210.0, {"a": 0}, ALL) == {"a": 10.0}
    assert watch.look(220.0, {"a": MOVED_BYTES}, ALL) == {"a": 0.0}
