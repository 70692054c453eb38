"""Repeated attempts to make a lost link again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import ConnectionFailed
from farflung.transport.net.redial import Pauses, redial
from farflung.transport.timeouts import Timeouts

BRIEF = Timeouts(2.5)


class Hurried(asyncio.SelectorEventLoop):
    """Its clock goes from one timer to the next, so that nothing is late, however busy the machine is."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.now = max(self.now, min(timers))
        super()._run_once()  # type: ignore[misc]


def hurried(scene: Coroutine[None, None, str]) -> str:
    with asyncio.Runner(loop_factory=Hurried) as runner:
        return runner.run(scene)


class Attempts:
    """Does as it is told, one after the other; the last of it goes on."""

    def __init__(self, *plan: Callable[[], Awaitable[None]]) -> None:
        self._plan = plan
        self.began_at: list[float] = []
        self.cancelled_after: list[float] = []
        self.stands = False

    async def __call__(self) -> None:
        number = len(self.began_at)
        self.began_at.append(asyncio.get_running_loop().time())
        try:
            await self._plan[min(number, len(self._plan) - 1)]()
        except asyncio.CancelledError:
            self.cancelled_after.append(asyncio.get_running_loop().time() - self.began_at[-1])
            raise

    async def link(self) -> None:
        self.stands = True


async def refuse() -> None:
    raise ConnectionFailed("it refused the connection")


async def close_at_once() -> None:
    pass


async def hang() -> None:
    await asyncio.Event().wait()


def run(attempts: Attempts, seconds: float) -> str:
    return hurried(redial(attempts, lambda: attempts.stands, BRIEF, seconds))


def test_it_ends_with_the_attempt_that_succeeds() -> None:
    attempts = Attempts(refuse, close_at_once, refuse)
    attempts._plan += (attempts.link,)
    assert run(attempts, 30.0) == ""
    assert len(attempts.began_at) == 4


def test_an_attempt_that_takes_too_long_is_followed_by_one_with_twice_the_time() -> None:
    attempts = Attempts(hang)
    assert run(attempts, 4 * BRIEF.redial_seconds) == "it did not answer in time"
    assert attempts.cancelled_after == pytest.approx([BRIEF.redial_seconds * times for times in (1, 2, 1)])


@pytest.mark.parametrize(
    ("last", "words"), [(refuse, "it refused the connection"), (close_at_once, "it closed the link")]
)
def test_in_the_end_it_tells_why_the_last_attempt_failed(
    last: Callable[[], Awaitable[None]], words: str
) -> None:
    assert run(Attempts(hang, last), 3 * BRIEF.redial_seconds) == words


def test_an_attempt_that_the_end_cuts_short_tells_nothing_new() -> None:
    attempts = Attempts(refuse, hang)
    assert run(attempts, BRIEF.redial_seconds) == "it refused the connection"
    assert len(attempts.cancelled_after) == 1


def test_nothing_is_attempted_when_settled_or_too_late() -> None:
    settled, late = Attempts(hang), Attempts(hang)
    settled.stands = True
    assert run(settled, 30.0) == "" and run(late, -1.0) == "there was no time left"
    assert settled.began_at == late.began_at == []


def test_no_attempt_follows_once_the_link_is_settled() -> None:
    attempts = Attempts(refuse)

    async def scene() -> str:
        asyncio.get_running_loop().call_later(BRIEF.heartbeat_seconds, setattr, attempts, "stands", True)
        return await redial(attempts, lambda: attempts.stands, BRIEF, 30.0)

    assert hurried(scene()) == ""
    assert len(attempts.began_at) <= 3


LIMITS = Timeouts()


def pauses(count: int, job_waits: bool, after: Pauses | None = None) -> list[float]:
    found = after or Pauses()
    return [found.next(LIMITS, job_waits) for _ in range(count)]


def test_a_broker_for_which_a_job_waits_is_dialled_again_soon_and_often() -> None:
    found = pauses(700, job_waits=True)
    assert found[:40] == [0.25] * 40 and found[40:600] == [1.0] * 560
    assert found[640:] == [LIMITS.reconnect_seconds] * 60


def test_without_a_job_pauses_grow_to_a_lease() -> None:
    assert pauses(6, job_waits=False) == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_sessions_that_end_as_soon_as_they_begin_are_made_at_growing_intervals() -> None:
    found, firsts = Pauses(), []
    for _ in range(5):
        found.session_over(0.1, LIMITS)
        firsts.append(found.next(LIMITS, True))
    assert firsts == [2.0, 4.0, 8.0, 10.0, 10.0]
    for _ in range(2000):  # some hours of that
        found.session_over(0.1, LIMITS)
    assert found.next(LIMITS, True) == 10.0
    found.session_over(LIMITS.suspect_seconds, LIMITS)
    assert pauses(1, True, found) == [0.25]


@given(st.lists(st.one_of(st.booleans(), st.floats(0, 100)), max_size=200))
def test_no_pause_is_longer_than_a_lease_or_shorter_than_a_quarter_of_a_heartbeat(
    story: list[bool | float],
) -> None:
    found = Pauses()
    for one in story:
        if isinstance(one, bool):
            pause = found.next(LIMITS, one)
            assert LIMITS.heartbeat_seconds / 4 <= pause <= LIMITS.reconnect_seconds
        else:
            found.session_over(one, LIMITS)
