"""Who meets whom."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from farflung.broker.survey.plan import MOST_MEETINGS, SITE_MEETINGS, meetings, round_robin


def names(count: int) -> list[str]:
    return [f"w{number:03}" for number in range(count)]


@given(st.integers(0, 40))
def test_everybody_meets_everybody_once_and_nobody_is_in_two_places(count: int) -> None:
    found = round_robin(names(count))
    pairs = [frozenset(meeting) for one in found for meeting in one]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert len(found) == max(0, count - 1 + count % 2)
    for one in found:
        present = [name for meeting in one for name in meeting]
        assert len(present) == len(set(present))


def test_each_comes_first_about_half_the_time() -> None:
    first = Counter(meeting[0] for one in round_robin(names(16)) for meeting in one)
    assert all(5 <= first[name] <= 10 for name in names(16))


def test_a_small_fleet_is_measured_whole_whatever_its_sites() -> None:
    assert len(meetings(dict.fromkeys(names(16), "same"))) == 120


@given(st.integers(25, 120), st.integers(1, 30))
def test_nobody_of_a_large_fleet_has_too_much_to_do(count: int, sites: int) -> None:
    found = meetings({name: f"site {number % sites}" for number, name in enumerate(names(count))})
    assert len({frozenset(meeting) for meeting in found}) == len(found)
    busy = Counter(name for meeting in found for name in meeting)
    assert all(1 <= busy[name] <= MOST_MEETINGS + SITE_MEETINGS for name in names(count) if count > sites)


def test_every_two_sites_of_a_large_fleet_meet() -> None:
    sites = {name: f"site {number % 5}" for number, name in enumerate(names(100))}
    met = {frozenset((sites[a], sites[b])) for a, b in meetings(sites)}
    assert len(met) == 5 * 4 // 2 + 5


def test_without_sites_everybody_meets_as_many_others() -> None:
    busy = Counter(name for meeting in meetings(dict.fromkeys(names(64), "")) for name in meeting)
    assert set(busy.values()) == {MOST_MEETINGS}
