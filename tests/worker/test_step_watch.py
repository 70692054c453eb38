"""What a worker notes of the one unit that is watched, and of no other."""

from __future__ import annotations

from farflung.protocol.timeline import MOST_SPANS, ShowStep, StepShown, StepSpan
from farflung.transport.wire.headers import ValueHeader
from farflung.worker.step_watch import StepWatch

ATTEMPT = ("job-1", 2)
ASKED = ShowStep("job-1", 2, 5)


def value(microbatch: int, gradient: bool = False, size: int = 64) -> ValueHeader:
    return ValueHeader("job-1", 2, 5, microbatch, 0, 1, 7, gradient, 0, size)


class Watched:
    """A watch with a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = StepWatch(lambda: self.now)

    def at(self, seconds: float) -> StepWatch:
        self.now = 100.0 + seconds
        return self.watch


def test_the_unit_that_was_asked_for_is_told_from_one_decision_to_the_next() -> None:
    seen = Watched()
    seen.watch.ask(ASKED)
    assert seen.at(0).decided(ATTEMPT, 3) is None
    seen.watch.complete("ana", value(0))  # of a unit before: it is not watched yet
    assert seen.at(1).decided(ATTEMPT, 4) is None
    seen.at(1.5).opening("ana", value(1))
    seen.at(2).complete("ana", value(1))
    seen.at(2.5).complete("lab", value(0, gradient=True))  # began before the unit did
    seen.watch.complete("lab", value(1, gradient=True, size=0))  # no bytes: nothing arrived
    tasks = [StepSpan("update", -1, 100.9, 101.25), StepSpan("forward", 0, 102.0, 103.0)]
    seen.watch.ran(4, tasks)
    seen.watch.ran(5, tasks)
    shown = seen.at(5).decided(ATTEMPT, 5)
    assert shown == StepShown(
        "job-1", 2, 5, 4.0,
        [
            StepSpan("update", -1, 0.0, 0.25),  # from the decision on
            StepSpan("forward", 0, 1.0, 2.0),
            StepSpan("activation", 1, 0.5, 1.0, "ana"),
            StepSpan("gradient", 0, 0.0, 1.5, "lab"),
        ],
    )  # fmt: skip
    assert seen.at(6).decided(ATTEMPT, 5) is None  # once


def test_a_unit_that_began_before_the_question_and_another_attempt_show_nothing() -> None:
    late, other = Watched(), Watched()
    late.watch.ask(ASKED)
    assert late.watch.decided(ATTEMPT, 5) is None
    other.watch.ask(ASKED)
    other.watch.decided(ATTEMPT, 4)
    assert other.watch.decided(("job-1", 3), 4) is None
    assert other.watch.decided(ATTEMPT, 5) is None


def test_what_is_kept_is_bounded_and_tasks_come_before_arrivals() -> None:
    seen = Watched()
    seen.watch.ask(ASKED)
    seen.watch.decided(ATTEMPT, 4)
    for number in range(MOST_SPANS + 5):
        seen.watch.complete("ana", value(number))
    seen.watch.ran(5, [StepSpan("forward", 0, 101, 102)] * 7)
    shown = seen.watch.decided(ATTEMPT, 5)
    assert shown is not None and len(shown.spans) == MOST_SPANS
    assert [span.kind for span in shown.spans[:8]] == ["forward"] * 7 + ["activation"]
    assert shown.cut == 7  # of what was kept
