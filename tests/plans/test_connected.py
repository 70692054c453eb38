"""Which workers are left out if not all can reach each other."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from farflung.plans import Topology, WorkerSpec, connected_part, why_left_out


def fleet(tflops: list[float], parted: set[tuple[int, int]], submitter: str | None = None) -> Topology:
    count = len(tflops)
    rates = tuple(
        tuple(0.0 if (a, b) in parted else 10.0 * a + b + 1 for b in range(count)) for a in range(count)
    )
    workers = tuple(WorkerSpec(f"w{n}", "", speed, 1) for n, speed in enumerate(tflops))
    return Topology(workers, rates, rates, loss=tuple((0.0,) * count for _ in tflops), submitter=submitter)


def test_a_fully_connected_topology_is_unchanged() -> None:
    topology = fleet([1, 1, 1], set())
    assert connected_part(topology) == (topology, ())


def test_the_stronger_of_two_halves_stays() -> None:
    parted = {(a, b) for a in range(2) for b in range(2, 5)}
    part, left_out = connected_part(fleet([100, 100, 1, 1, 1], parted))
    assert part.ids == ["w0", "w1"] and left_out == ("w2", "w3", "w4")
    part, left_out = connected_part(fleet([1, 1, 1, 1, 1], parted))
    assert part.ids == ["w2", "w3", "w4"] and left_out == ("w0", "w1")
    assert part.home.id == "w2"
    assert part.bandwidth_mbps == ((23, 24, 25), (33, 34, 35), (43, 44, 45))
    assert part.loss == ((0, 0, 0),) * 3


def test_workers_that_the_submitter_cannot_reach_are_left_out_however_strong() -> None:
    parted = {(a, b) for a in range(2) for b in range(2, 5)}
    part, left_out = connected_part(fleet([1, 1, 9, 9, 9], parted, "w1"))
    assert part.ids == ["w0", "w1"] and left_out == ("w2", "w3", "w4") and part.home.id == "w1"
    part, left_out = connected_part(fleet([1, 9, 1, 1], {(0, 1), (2, 3)}, "w0"))
    assert part.ids == ["w0", "w2"] and left_out == ("w1", "w3") and part.home.id == "w0"


def test_messages_name_the_missing_link() -> None:
    assert why_left_out(fleet([1, 1, 1], set())) == ()
    assert why_left_out(fleet([9, 1, 1], {(0, 2)})) == ("there is no link from w0 to w2: w2 is left out",)
    (message,) = why_left_out(fleet([1, 5, 5], {(0, 2), (1, 0)}))
    assert message == "there is no link from w1 to w0 (and 1 more of its links are missing): w0 is left out"
    alone = {(a, b) for a in range(3) for b in range(3) if 2 in (a, b)}
    assert why_left_out(fleet([5, 5, 1], alone)) == ("there is no link between the others and w2: left out",)


def test_workers_of_one_declared_site_without_a_link_are_named_with_it() -> None:
    topology = fleet([5, 1, 1], {(0, 1), (1, 0), (1, 2), (2, 1)})
    sites = [msgspec.structs.replace(worker, site="lab") for worker in topology.workers]
    sites[2] = msgspec.structs.replace(sites[2], site="attic")
    left_out, why = why_left_out(msgspec.structs.replace(topology, workers=tuple(sites)))
    assert left_out == "there is no link between the others and w1: left out"
    assert why.startswith("w0 and w1 are declared at one site, lab, and cannot reach each other: give them")


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(
    st.lists(st.floats(0.1, 100), min_size=n, max_size=n),
    st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))),
    st.sampled_from([None, *(f"w{number}" for number in range(n))]),
)))  # fmt: skip
def test_the_connected_part_is_fully_connected_and_cannot_be_enlarged(
    drawn: tuple[list[float], set[tuple[int, int]], str | None],
) -> None:
    topology = fleet(*drawn)
    part, left_out = connected_part(topology)
    assert sorted([*part.ids, *left_out]) == topology.ids
    assert part.workers and part.submitter == topology.submitter
    for id in left_out:
        a = topology.ids.index(id)
        inside = [topology.ids.index(other) for other in part.ids]
        assert any(not topology.bandwidth_mbps[a][b] or not topology.bandwidth_mbps[b][a] for b in inside)
    assert all(part.bandwidth_mbps[a][b] for a, b in part.pairs())
    if not any(a != b for a, b in drawn[1]):
        assert not left_out
