"""Where a run's time went adds up to the whole of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pages.report.runs import BEGAN, Writer, run_with_a_fault, step_row

from farflung.client.output.records import StepRow
from farflung.pages.report.account import account
from farflung.pages.report.recorded import Event, RecordedRun, read_run

NAMES = (
    "submitted", "waiting", "planned", "running", "validated", "merged", "rolled back", "regrouping",
    "resumed", "broker lost", "returned", "checkpoint", "codecs", "collecting", "ended", "left", "later",
)  # fmt: skip


def test_each_second_of_a_run_with_a_fault_is_in_its_place(tmp_path: Path) -> None:
    shares = dict(account(read_run(run_with_a_fault(tmp_path / "run"))))
    assert shares == {
        "training steps": pytest.approx(2 + 4),
        "evaluations": pytest.approx(1 + 4),
        "waiting for workers and a plan": pytest.approx(3),
        "loading the workers": pytest.approx(2),
        "collecting the weights": pytest.approx(5),
        "recovering from faults": pytest.approx(3 + 2 + 2),
        "steps that were done again": pytest.approx(1),
        "ending": pytest.approx(1),
    }


def test_the_time_between_two_parts_of_a_run_is_no_part_of_either(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name="gpt", broker="127.0.0.1:7700")
    run.step(1, 2.0)
    run.event(3, "ended", state="failed", reason="")
    run.event(100, "submitted", name="gpt", broker="127.0.0.1:7700")
    run.event(101, "resumed", step=1, place="there")
    run.step(2, 105.0, attempt=2)
    run.ended(106)
    assert dict(account(read_run(run.path))) == {
        "training steps": 6.0,
        "ending": 2.0,
        "this process was away": 98.0,
    }


def test_time_that_no_row_tells_of_is_called_so(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name="gpt", broker="127.0.0.1:7700")
    run.step(1, 100.0)
    run.event(101, "left", reason="you detached")
    run.step(2, None)
    run.event(4000, "returned", job="job-1", kept=1, step=2)
    run.step(3, 4001.0)
    run.ended(4002)
    shares = dict(account(read_run(run.path)))
    assert shares == {
        "training steps": 101.0,
        "this process was away": 3899.0,
        "steps whose times are not known": 2.0,
    }


def test_a_move_in_order_is_no_fault(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.step(1, 1.0)
    run.event(2, "rolled back", attempt=1, unit=1, step=1, done=1, reason="a better plan", in_order=True)
    run.event(5, "running", loading_seconds=1.0)
    run.step(2, 6.0, attempt=2)
    run.ended(6)
    assert dict(account(read_run(run.path))) == {"training steps": 1.0, "moving to another plan": 4.0}


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.sampled_from(NAMES)), max_size=12),
    st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), max_size=12),
)
def test_the_shares_add_up_to_the_time_from_the_first_mark_to_the_last(
    events: list[tuple[float, str]], steps: list[tuple[float, bool]]
) -> None:
    rows: list[StepRow] = [step_row(number, at) for number, (at, _) in enumerate(steps)]
    counting = [row for row, (_, counts) in zip(rows, steps, strict=True) if counts]
    found = [Event(BEGAN + at, name) for at, name in events]
    run = RecordedRun(Path("run"), None, None, found, counting, rows, "done", "", [])
    marks = [BEGAN + at for at, name in events if name not in ("checkpoint", "codecs", "later")]
    marks += [row.at for row in rows if row.at is not None]
    whole = max(marks) - min(marks) if marks else 0.0
    assert math.fsum(seconds for _, seconds in account(run)) == pytest.approx(whole, abs=1e-3)
