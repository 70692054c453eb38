"""A run's summary prints as one line."""

from __future__ import annotations

import msgspec

from farflung.client.output.records import Summary

DONE = Summary("done", "", 450, 1.7, 1.7439, 5.4906, 31.0, 1.0, 2, 1, 1, 450, "job-1", None)


def test_a_summary_says_how_a_run_ended_and_what_it_learned() -> None:
    assert str(DONE) == "done after 450 steps in 31 s, validation loss 5.4906 -> 1.7439"


def test_a_reason_follows_and_cannot_break_the_line() -> None:
    failed = msgspec.structs.replace(
        DONE,
        state="failed",
        steps=1,
        reason="lost\nworker",
        initial_validation_loss=None,
        validation_loss=None,
    )
    assert str(failed).startswith("failed after 1 step in 31 s: lost") and str(failed).isprintable()


def test_the_loss_of_the_only_evaluation_is_said_once() -> None:
    once = msgspec.structs.replace(DONE, initial_validation_loss=1.7439)
    assert str(once) == "done after 450 steps in 31 s, validation loss 1.7439"
