from __future__ import annotations

import pytest
from benchmarks.zoo import case

from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner.notes import check_notes, draws, draws_notes
from farflung.plans import Edge, Placement, Plan
from farflung.simulator import Load, Simulation

FRAMEWORKS = {"a": "torch 2.13.0+cpu", "b": "jax 0.10.2", "c": "jax 0.10.2", "d": "emulated"}


def graph(name: str) -> Graph:
    which = case(name)
    return capture(which.build(), which.batch(2, 1)).graph


@pytest.mark.slow
def test_a_model_with_dropout_draws_and_one_without_does_not() -> None:
    assert draws(graph("gpt-dropout"))
    assert not draws(graph("gpt"))


def test_a_plan_says_where_other_numbers_are_drawn_than_on_torch() -> None:
    (note,) = draws_notes(True, ["a", "b", "c"], FRAMEWORKS)
    assert "different random numbers on jax (b, c) than on torch" in note
    assert (
        draws_notes(True, [f"w{n}" for n in range(9)], {f"w{n}": "jax" for n in range(9)})[0].count("w") < 8
    )


def test_nothing_is_said_where_all_draw_the_same_or_nobody_does() -> None:
    assert draws_notes(True, ["a", "d", "unknown"], FRAMEWORKS) == []
    assert draws_notes(False, ["a", "b"], FRAMEWORKS) == []


TWO = Plan([Placement(0, ["a"], 1, 1, 1), Placement(1, ["b"], 1, 1, 1)], [Edge(0, 0, 1, 4, True)], 4, 2)
BUSY = Simulation(
    2.0,
    (
        Load("device", "a", ("a",), 0.7),
        Load("device", "b", ("b",), 0.8),
        Load("link", "a to b", ("a", "b"), 0.9),
    ),
)


def test_checks_that_take_less_than_a_step_run_beside_it() -> None:
    (note,) = check_notes(TWO, BUSY, 0.1)
    assert note == "verify=0.1: for each step an idle worker computes for 300 ms to check it, beside training"


def test_training_waits_for_checks_that_take_longer_than_a_step() -> None:
    (note,) = check_notes(TWO, BUSY, 1.0)
    assert note.startswith("verify=1: for each step an idle worker computes for 3 s to check it, longer")
    assert "training waits" in note and "beside" not in note


def test_a_plan_of_which_nothing_can_be_checked_says_why() -> None:
    alone = Plan([Placement(0, ["a"], 1, 1, 1), Placement(1, ["a"], 1, 1, 1)], TWO.edges, 4, 2)
    assert "one worker alone" in check_notes(alone, BUSY, 0.1)[0]
    replicated = Plan([Placement(0, ["a", "b"], 1, 1, 1)], [], 4, 2, [2, 2])
    assert "replicas add up" in check_notes(replicated, BUSY, 0.1)[0]
    assert check_notes(TWO, BUSY, 0.0) == []
