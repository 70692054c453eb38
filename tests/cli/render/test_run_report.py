"""What is printed at the end of a run."""

from __future__ import annotations

import pytest

from farflung.cli.render.run_report import account_words


@pytest.mark.parametrize(
    ("spent", "words"),
    [
        (
            {"training steps": 20.2, "evaluations": 59.8, "loading the workers": 10.0},
            "of 90 s: 59.8 s evaluations, 20.2 s training steps, 10 s loading the workers",
        ),
        (
            {"training steps": 98.8, "ending": 0.8, "loading the workers": 0.4},
            "of 100 s: 98.8 s training steps, 1.2 s other",
        ),
        ({"evaluations": 3.0}, "of 3 s: 3 s evaluations"),
        ({"evaluations": 3.0, "ending": 0.0}, "of 3 s: 3 s evaluations"),
    ],
)
def test_the_longest_share_comes_first_and_tiny_ones_are_added_up(
    spent: dict[str, float], words: str
) -> None:
    assert account_words(spent) == words
