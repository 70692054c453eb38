from __future__ import annotations

import pytest
from benchmarks.zoo import case

from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner.notes import draws, draws_notes

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
