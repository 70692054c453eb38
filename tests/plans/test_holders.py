"""Which member of a plan holds the copies of which other."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from farflung.plans import Edge, Placement, Plan, holders_of


def chain(*workers: str) -> Plan:
    placements = [Placement(at, [worker], 1, 1, 1) for at, worker in enumerate(workers)]
    edges = [Edge(at, at, at + 1, 4, True) for at in range(len(workers) - 1)]
    return Plan(placements, edges, 1, 1)


def test_two_members_hold_the_copies_of_each_other() -> None:
    assert holders_of(chain("a", "b"), {}) == {"a": "b", "b": "a"}


def test_one_member_has_no_holder() -> None:
    assert holders_of(chain("a", "a"), {}) == {}


def test_a_holder_is_neither_a_neighbour_nor_of_the_same_site_where_another_has_room() -> None:
    holders = holders_of(
        chain("a", "b", "c", "d", "e", "f"), dict.fromkeys("abc", "x") | dict.fromkeys("def", "y")
    )
    assert all(abs(ord(one) - ord(other)) > 1 for one, other in holders.items())
    assert all((one in "abc") != (other in "abc") for one, other in holders.items())


def test_workers_without_a_site_share_none() -> None:
    holders = holders_of(chain("a", "b", "c", "d"), {"a": "", "b": ""})
    assert (
        len(
            {frozenset(pair) for pair in holders.items()}
            & {frozenset("ab"), frozenset("bc"), frozenset("cd")}
        )
        <= 2
    )


@given(st.integers(2, 9), st.data())
def test_each_member_holds_the_copies_of_exactly_one_other(count: int, data: st.DataObject) -> None:
    workers = [f"w{at}" for at in range(count)]
    order = data.draw(st.lists(st.sampled_from(workers), min_size=count, max_size=2 * count))
    plan = chain(*[*workers, *order])
    sites = {worker: data.draw(st.sampled_from(["", "north", "south"])) for worker in workers}
    holders = holders_of(plan, sites)
    assert sorted(holders) == sorted(holders.values()) == workers
    assert all(owner != holder for owner, holder in holders.items())
    assert holders == holders_of(plan, dict(reversed(sites.items())))


@given(st.integers(1, 5), st.integers(0, 4))
def test_home_workers_hold_each_others_copies_where_data_stays_with_them(homes: int, others: int) -> None:
    home, far = [f"h{at}" for at in range(homes)], [f"w{at}" for at in range(others)]
    plan = msgspec.structs.replace(chain(home[0], *far, *home[1:], home[0]), home=[0, homes + others])
    holders = holders_of(plan, {}, home)
    assert sorted(holders) == sorted([*(home if homes > 1 else []), *(far if homes + others > 1 else [])])
    assert all(owner != holder for owner, holder in holders.items())
    assert all(holder in home for name, holder in holders.items() if name in home)


def test_a_home_worker_alone_has_no_holder_and_others_hold_each_others_copies() -> None:
    plan = msgspec.structs.replace(chain("a", "b", "c", "a"), home=[0, 3])
    assert holders_of(plan, {}, ["a"]) == {"b": "c", "c": "b"}
    assert holders_of(msgspec.structs.replace(chain("a", "b", "a"), home=[0, 2]), {}, ["a"]) == {"b": "a"}
