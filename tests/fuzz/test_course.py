"""What a course draws: all that there is, and the same for the same seed. The attack itself shows more."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.fuzz.course import Course, Sample
from tests.support.links import slice_header, value_header

from farflung.protocol.messages import Claim, Welcome, encode
from farflung.transport.wire.frames import Control, Hello, Open, Ping

HELLO = Hello("a", "worker", "data")
SAMPLE = Sample(
    HELLO,
    [encode(Claim("job-1", 1)), encode(Welcome("job-1", 1))],
    [value_header(300, gradient=True), slice_header(70_000)],
)


def drawn(seed: int, count: int) -> list[tuple[str, bytes]]:
    course = Course(SAMPLE, Random(seed))
    return [course.step() for _ in range(count)]


def test_the_same_seed_draws_the_same_and_another_another() -> None:
    assert drawn(1, 200) == drawn(1, 200) != drawn(2, 200)


def test_all_kinds_are_drawn() -> None:
    kinds = Counter(kind for kind, _ in drawn(1, 500))
    assert min(kinds.values()) > 3
    assert kinds.keys() == {
        "ping", "pong", "give_credit", "receipt", "control", "opening", "chunk", "cancel",
    }  # fmt: skip


def test_a_session_that_says_little_gives_no_sample() -> None:
    assert Sample.of([(HELLO, b""), (Ping(1.0), b"")]) is None
    assert Sample.of([(Hello("a", "worker", "probe"), b""), (Control(0, 1), b"x")]) is None
    sample = Sample.of([(HELLO, b""), (Control(0, 1), b"x"), (Open(0, slice_header(1)), b"y")])
    assert sample == Sample(HELLO, [b"x"], [slice_header(1)])
