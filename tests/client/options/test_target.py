"""Where `farflung train` trains, as its options say."""

from __future__ import annotations

import pytest

from farflung.client.options.target import parse_target
from farflung.client.output.run_record import RunOptions
from farflung.errors import FarflungError
from farflung.plans import CodecWishes


@pytest.mark.parametrize(("scheduler", "is_said"), [("auto", False), ("equal-compute", True)])
def test_a_scheduler_that_local_workers_leave_nothing_to_ask_is_told(scheduler: str, is_said: bool) -> None:
    target = parse_target(RunOptions(local=2, scheduler=scheduler), None, CodecWishes())
    assert target.local == 2
    assert any(f"--scheduler {scheduler} is ignored" in line for line in target.notes) == is_said


@pytest.mark.parametrize(("given", "replicas"), [(None, 1), ("2", 2), ("auto", 0)])
def test_replicas_are_a_number_or_left_to_the_planner(given: str | None, replicas: int) -> None:
    target = parse_target(RunOptions(local=4, replicas=given), None, CodecWishes())
    assert target.wishes.replicas == replicas
    assert target.depth == (4 // replicas if replicas else 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            RunOptions(local=3, replicas="2"),
            "3 workers cannot be shared out among 2 replicas: use --local 2 or 4",
        ),
        (
            RunOptions(workers=1, replicas="2"),
            "1 worker cannot be shared out among 2 replicas: use --workers 2",
        ),
        (RunOptions(on="a", workers=2), "--on names 1 worker, --workers asks for 2: name more"),
        (RunOptions(on="a,b,c", replicas="2"), "--on names 3 workers, which cannot be shared out among 2"),
        (RunOptions(local=2, replicas="0"), "--replicas must be auto or a number from 1 to 1000, found '0'"),
        (RunOptions(local=2, replicas="many"), "--replicas must be auto or a number"),
    ],
)
def test_replicas_that_cannot_be_are_refused(options: RunOptions, complaint: str) -> None:
    with pytest.raises(FarflungError, match=complaint):
        parse_target(options, None, CodecWishes())


def test_workers_beside_names_counts_those_that_get_a_part() -> None:
    target = parse_target(RunOptions(on="a,b,c", workers=2, replicas="2"), None, CodecWishes())
    assert (target.pool, target.workers, target.asked_by) == (["a", "b", "c"], 2, "--workers")
    named = parse_target(RunOptions(on="a,b"), None, CodecWishes())
    assert (named.workers, named.asked_by) == (2, "--on")
