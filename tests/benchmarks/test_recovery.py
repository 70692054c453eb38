"""What a kill cost is read right from rows and events, and a fleet that is killed gives such figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.kills import run_rows
from benchmarks.kills.figures import Kill, Round, figures
from benchmarks.kills.run_rows import COURSE, Happened, StepDone, Strike, judge, members
from benchmarks.kills.torchft_side import missing

from benchmarks import recovery


def kill(side: str, seconds: float) -> Kill:
    return Kill(side, "w1", 7, seconds, seconds, 4.0, "went on", 1, 0, 24, 12)


def test_the_promise_is_two_seconds_and_two_steps() -> None:
    steps = [0.25, 0.5, 0.75]
    kept = Round("farflung", [kill("farflung", s) for s in (1.0, 3.0, 6.0)], steps)
    slow = Round("torchft-2", [kill("torchft-2", s) for s in (5.0, 6.1)], steps)
    ours, theirs = figures([kept, slow], "farflung")
    assert (ours.median, ours.median_limit, ours.worst, ours.worst_limit) == (3.0, 3.0, 6.0, 6.0)
    assert ours.within and not theirs.within
    assert ours.ratio is None and theirs.ratio == pytest.approx(5.55 / 3.0)
    assert ours.interval == (1.0, 6.0) and theirs.samples_left_out == 12


def test_a_side_that_was_not_killed_has_no_figures() -> None:
    assert figures([Round("farflung", [], [])], "farflung") == []


def rows(*of: tuple[float, int, int]) -> list[tuple[float, StepDone]]:
    return [(at, StepDone(step, attempt, 0.5)) for at, step, attempt in of]


def test_a_step_that_was_decided_before_the_kill_is_not_the_next() -> None:
    steps = rows((9.9, 4, 1), (10.01, 5, 1), (12.0, 3, 2), (12.5, 5, 2), (13.0, 6, 2))
    events = [Happened("planned", ["a", "b"]), Happened("rolled back", step=2, done=5)]
    (found,) = judge([Strike("a", 10.0, 1, 4, 1)], steps, events)
    assert (found.seconds, found.ahead_seconds) == (2.0, 3.0)
    assert (found.steps_again, found.samples_again) == (4, 4 * COURSE.batch)
    assert found.way == run_rows.FROM_WORKERS


def test_each_kill_ends_where_the_next_begins() -> None:
    steps = rows((9.0, 9, 1), (11.0, 1, 2), (21.0, 1, 3), (30.0, 10, 3))
    events = [Happened("rolled back", step=0, done=9), Happened("rolled back", step=0, done=1)]
    first, second = judge([Strike("a", 10.0, 1, 9, 0), Strike("b", 20.0, 2, 1, 1)], steps, events)
    assert (first.seconds, first.ahead_seconds, first.steps_again) == (1.0, None, 10)
    assert (second.seconds, second.ahead_seconds, second.steps_again) == (1.0, 10.0, 2)
    assert first.way == run_rows.FROM_SUBMITTER


def test_a_replay_is_counted_apart() -> None:
    events = [Happened("planned", ["a", "b"]), Happened("regrouping", unit=9, replayers=["c"], replay_from=4)]
    strike = Strike("a", 10.0, 1, 9, 1)
    (found,) = judge([strike], rows((11.0, 10, 2)), events)
    assert (found.way, found.steps_again, found.steps_replayed) == (run_rows.REPLAYED, 1, 5)
    assert members(events, [strike]) == ["c", "b"]
    assert run_rows.way([Happened("regrouping", unit=9)]) == run_rows.REGROUPED


def test_without_torchft_a_line_says_how_to_get_it(tmp_path: Path) -> None:
    assert "pip install --target DIR torchft" in missing(tmp_path)


def test_an_unknown_side_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert recovery.main(["--sides", "farflung,horovod"]) == 2
    assert "'horovod'" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.full
@pytest.mark.faults
def test_a_killed_worker_of_a_fleet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--sides", "farflung", "--kills", "1", "--rounds", "1", "--gap", "0.5", "--json"]
    assert recovery.main([*options, "--folder", str(tmp_path)]) in (0, 1)
    document = json.loads(capfd.readouterr().out)
    (side,), (done,) = document["figures"], document["rounds"]
    assert side["kills"] == 1 and side["median"] == side["worst"] == done["kills"][0]["seconds"] > 0
    assert done["kills"][0]["steps_again"] >= 1
