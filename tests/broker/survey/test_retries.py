"""When what could not be measured is asked for again: by replay."""

from __future__ import annotations

from farflung.broker.survey.service import Retries, Subject
from farflung.transport.timeouts import Timeouts

TIMEOUTS = Timeouts(10.0)
PAIR: Subject = frozenset("ab")


def pauses(retries: Retries, subject: Subject, count: int) -> list[float]:
    """How long each of `count` pauses is if whatever is due is asked for and fails."""
    now, found = 0.0, []
    for _ in range(count):
        retries.begin(subject, now)
        began = now
        while not retries.is_due(subject, now):
            now += 1.0
        found.append(now - began)
    return found


def test_two_workers_are_asked_again_soon_and_then_ever_later() -> None:
    assert pauses(Retries(TIMEOUTS), PAIR, 8) == [30, 60, 120, 240, 480, 600, 600, 600]


def test_a_line_waits_the_longest_pause_at_once() -> None:
    assert pauses(Retries(TIMEOUTS), ("a", "up"), 3) == [600, 600, 600]


def test_what_was_known_before_is_asked_again_soon() -> None:
    retries = Retries(TIMEOUTS)
    pauses(retries, PAIR, 5)
    retries.begin(PAIR, 1e4, was_known=True)
    assert not retries.is_due(PAIR, 1e4 + 29) and retries.is_due(PAIR, 1e4 + 30)


def test_who_is_another_than_before_is_asked_at_once() -> None:
    retries = Retries(TIMEOUTS)
    for subject in (PAIR, frozenset("bc"), ("a", "up")):
        retries.begin(subject, 0.0)
    retries.forget("a")
    assert retries.is_due(PAIR, 0.0) and retries.is_due(("a", "up"), 0.0)
    assert not retries.is_due(frozenset("bc"), 0.0)
