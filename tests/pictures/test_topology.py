"""The picture of a topology: every worker, every link that matters, and text that can be read."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pictures.drawn import assert_legible, svg_text

from farflung.pictures.topology import (
    CLASSES,
    NO_LINK,
    SiteLink,
    class_of,
    draw_topology,
    links_to_draw,
    ring,
)
from farflung.plans import Topology, WorkerSpec
from farflung.plans.testbeds.catalogue import TESTBEDS, load_testbed


def fleet(count: int, sites: int, mbps: float = 20.0) -> Topology:
    workers = tuple(
        WorkerSpec(
            f"w{n}", f"site-{n % sites}" if sites else "", 1.0, 8.0, up_mbps=8.0, behind_nat=n % 3 == 0
        )
        for n in range(count)
    )
    row = (mbps,) * count
    return Topology(workers, ((15.0,) * count,) * count, (row,) * count)


def pair(**changes: object) -> Topology:
    workers = tuple(WorkerSpec(name, "", 1.0, 1.0) for name in "ab")
    matrices = {"latency_ms": ((0, 35), (35, 0)), "bandwidth_mbps": ((0, 8), (50, 0)), **changes}
    return Topology(workers, **matrices)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TESTBEDS)
def test_every_shipped_testbed_can_be_read(name: str) -> None:
    topology = load_testbed(name)
    figure = draw_topology(topology)
    words = svg_text(figure)
    assert all(worker.id in words for worker in topology.workers)
    assert {worker.site for worker in topology.workers if topology.name != "lan"} - {""} <= {*words}
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [line.get_label() for line in dots] == [*dict.fromkeys(topology.ids)]
    assert_legible(figure)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 64), st.integers(0, 12), st.sampled_from([0.0, 0.5, 20.0, 9999.0]))
def test_any_fleet_can_be_drawn(count: int, sites: int, mbps: float) -> None:
    figure = draw_topology(fleet(count, sites, mbps))
    words = svg_text(figure)
    assert all(f"w{n}" in words for n in range(count))
    assert count > 16 or "access 8 up · any down" in words
    assert_legible(figure)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(20, 300), st.floats(10, 200)), min_size=1, max_size=40))
def test_cards_on_a_ring_do_not_touch(sizes: list[tuple[float, float]]) -> None:
    for (a, (wide, high)), (b, (wide2, high2)) in itertools.combinations(
        zip(ring(sizes), sizes, strict=True), 2
    ):
        assert abs(a.x - b.x) > (wide + wide2) / 2 or abs(a.y - b.y) > (high + high2) / 2


def test_what_an_owner_wrote_stays_text() -> None:
    site = "<script>$x^{2$ alert('&')"
    workers = (WorkerSpec("a", site, 1.0, 1.0), WorkerSpec("b", site, 1.0, 1.0))
    topology = Topology(workers, ((0, 1), (1, 0)), ((0, 8), (8, 0)), title='"]]><b>$\\frac$\x1b[31m')
    words = svg_text(draw_topology(topology))
    assert site in words and '"]]><b>$\\frac$?[31m' in words


def test_latency_and_both_rates_stand_on_a_link() -> None:
    assert "8 | 50 · 35 ms" in svg_text(draw_topology(pair()))
    workers = pair().workers[::-1]
    assert "8 | 50 · 35 ms" in svg_text(draw_topology(Topology(workers, *pair_matrices())))


def pair_matrices() -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    return ((0, 35), (35, 0)), ((0, 8), (50, 0))


def test_a_missing_link_is_said() -> None:
    assert "no link" in svg_text(draw_topology(pair(bandwidth_mbps=((0, 0), (0, 0)))))


def test_signs_are_explained() -> None:
    lan, nat = (" ".join(svg_text(draw_topology(load_testbed(name)))) for name in ("lan", "nat"))
    assert "the left end sends a" in lan and "NAT" not in lan
    assert "behind NAT" in nat


def test_every_rate_has_a_class() -> None:
    assert class_of(0) is NO_LINK
    assert [class_of(mbps) for mbps in (1, 5, 20, 100, 500)] == list(CLASSES)


def test_of_many_links_those_are_drawn_that_join_all() -> None:
    count = 12
    links = [
        SiteLink(a, b, float(10 * a + b), float(10 * a + b), 1.0)
        for a, b in itertools.combinations(range(count), 2)
    ]
    drawn = links_to_draw(sorted(links, key=lambda link: link.least_mbps), count)
    assert {end for link in drawn for end in (link.one, link.other)} == set(range(count))
    assert count - 1 <= len(drawn) <= 2 * count
    assert len(links_to_draw(links[:36], 9)) == 36
