"""When a worker gives its device up: what a pass may take, and what counts as taking it."""

from __future__ import annotations

import threading

import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured
from tests.worker.loads import limits

from farflung.errors import GraphError
from farflung.planner import plan_graph
from farflung.schedule import TaskKind
from farflung.worker.computing.task_deadlines import (
    LEARNED_AFTER,
    TIMES,
    Doing,
    Passes,
    Stopwatch,
    Watch,
    most_seconds,
    of_state,
)

FORWARD = (3, TaskKind.FORWARD, True)
EVALUATION = (3, TaskKind.FORWARD, False)


def passes(forward_seconds: float, pass_seconds: float = 1.0) -> Passes:
    return Passes(limits(pass_seconds=pass_seconds), {3: forward_seconds}, nodes=10)


def test_a_pass_may_take_twenty_times_what_the_formula_says() -> None:
    doing = passes(2.0).doing(FORWARD, 4)
    assert (doing.expected_seconds, doing.allowed_seconds) == (2.0, TIMES * 2.0)
    assert doing.what == "the forward pass of microbatch 5 through segment 3"
    assert "an evaluation" in passes(2.0).doing(EVALUATION, 0).what
    assert passes(2.0).doing((3, TaskKind.BACKWARD, True), 0).allowed_seconds == 3 * TIMES * 2.0


def test_the_first_passes_of_a_kind_say_what_the_next_may_take_and_the_later_ones_nothing() -> None:
    known = passes(100.0)
    for seconds in (9.0, 1.0, 1.0, 1.0):
        known.record(FORWARD, seconds)
        assert known.doing(FORWARD, 0).expected_seconds == 100.0
    known.record(FORWARD, 1.0)
    for _ in range(3 * LEARNED_AFTER):
        assert known.doing(FORWARD, 0).allowed_seconds == TIMES
        known.record(FORWARD, 19.0)
    assert known.doing(EVALUATION, 0).expected_seconds == 100.0


def test_a_short_pass_may_take_what_any_may() -> None:
    assert passes(1e-6, pass_seconds=60.0).doing(FORWARD, 0).allowed_seconds == 60.0


@pytest.mark.parametrize("task", list(TaskKind))
def test_no_pass_may_take_longer_than_the_owner_lends_at_a_time(task: TaskKind) -> None:
    known = passes(1000.0)
    assert known.doing((3, task, True), 0).allowed_seconds == limits().longest_pass_seconds
    for _ in range(LEARNED_AFTER):
        known.record((3, task, True), 3000.0)
    assert known.doing((3, task, True), 0).allowed_seconds == limits().longest_pass_seconds


def test_compiling_may_take_twenty_times_what_its_nodes_take_within_bounds() -> None:
    few, many, most = (Passes(limits(chore_seconds=30.0), {}, nodes) for nodes in (1, 100, 100_000))
    assert few.compiling().allowed_seconds == 30.0
    assert few.compiling().allowed_seconds < many.compiling().allowed_seconds < 3600
    assert most.compiling().allowed_seconds == limits().longest_pass_seconds


def test_a_job_whose_passes_would_take_too_long_is_refused_with_the_seconds() -> None:
    _, graph = captured(case("chain"), 2)
    segments = {s.number: s for s in plan_graph(graph, 2, 2, ["a"]).segments}
    assert 0 < Passes.of(segments, 2, limits()).forward_seconds[0] < 1
    with pytest.raises(GraphError, match=r"one microbatch would take about .* s in segment 0"):
        Passes.of(segments, 2, limits(longest_pass_seconds=1e-9))


def test_a_job_is_refused_for_its_backward_passes_too() -> None:
    _, graph = captured(case("chain"), 2)
    segments = {s.number: s for s in plan_graph(graph, 2, 2, ["a"]).segments}
    forward = max(Passes.of(segments, 2, limits()).forward_seconds.values())
    with pytest.raises(GraphError, match="one microbatch would take"):
        Passes.of(segments, 2, limits(longest_pass_seconds=2.9 * forward))
    assert Passes.of(segments, 2, limits(longest_pass_seconds=3.1 * forward))


def test_work_for_a_job_that_is_over_may_take_as_long_as_a_chore() -> None:
    watch = Watch().seen(doing := Doing("the pass", 3600.0, 200.0), 0.0).seen(doing, 241.0)
    mine, next_one = ("job-1", 1), ("job-2", 1)
    assert not watch.overrun(most_seconds(mine, mine, 240.0))
    for wanted in (None, ("job-1", 2), next_one):
        words = "the pass has taken over 240 s, for a job that is over, 200 s were expected"
        assert watch.overrun(most_seconds(mine, wanted, 240.0)) == words
    short = Watch().seen(doing := Doing("the pass", 60.0), 0.0).seen(doing, 61.0)
    assert short.overrun(most_seconds(mine, None, 240.0)) == "the pass has taken over 60 s"


def test_parameters_may_take_longer_the_more_they_are() -> None:
    assert of_state("verifying", 0, 240.0).allowed_seconds == 240.0
    assert of_state("verifying", 10**11, 240.0).allowed_seconds == 1240.0


def test_only_time_in_which_the_thread_was_seen_at_one_thing_counts() -> None:
    one, other = Doing("this", 2.0), Doing("that", 2.0)
    watch = Watch().seen(one, 100.0)  # it may just have begun
    assert not watch.overrun()
    for _ in range(2):
        watch = watch.seen(one, 1.0)
    assert not watch.overrun()
    assert watch.seen(one, 0.1).overrun() == "this has taken over 2 s"
    assert not watch.seen(other, 9.0).overrun()
    assert not watch.seen(None, 9.0).seen(None, 9.0).overrun()


def test_the_expected_duration_is_reported() -> None:
    watch = Watch().seen(doing := Doing("this", 60.0, 0.5), 1.0).seen(doing, 61.0)
    assert watch.overrun() == "this has taken over 60 s, 0.5 s were expected"


def test_an_op_that_runs_is_seen_from_another_thread() -> None:
    """A real op: what the event loop looks at while the compute thread is inside PyTorch."""
    stopwatch, known = Stopwatch(), passes(1e-3)
    began, looked, large = threading.Event(), threading.Event(), torch.randn(100, 100)

    def compute() -> None:
        with stopwatch.passing(known, FORWARD, 0):
            began.set()
            torch.linalg.eigvals(large)
            assert looked.wait(60)

    thread = threading.Thread(target=compute)
    thread.start()
    assert began.wait(60)
    seen = stopwatch.doing
    looked.set()
    thread.join(120)
    assert seen is not None and seen.what.startswith("the forward pass of microbatch 1")
    assert stopwatch.doing is None
    assert known._measured[FORWARD][0] > 0
