"""The picture of a topology: a whole document that shows everybody."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.picture.labels import Labels
from farflung.picture.places import Spot, groups
from farflung.picture.rates import CLASSES, NO_WAY, class_of
from farflung.picture.topology import draw_topology
from farflung.plans import Topology, WorkerSpec
from farflung.plans.testbeds.catalogue import TESTBEDS, load_testbed

SVG = "{http://www.w3.org/2000/svg}"


def fleet(count: int, sites: int, mbps: float = 20.0) -> Topology:
    workers = tuple(
        WorkerSpec(
            f"w{n}", f"site-{n % sites}" if sites else "", 1.0, 8.0, up_mbps=8.0, behind_nat=n % 3 == 0
        )
        for n in range(count)
    )
    row = (mbps,) * count
    return Topology(workers, ((15.0,) * count,) * count, (row,) * count)


def words_of(topology: Topology) -> list[str]:
    # What is parsed here was written by this process.
    root = ElementTree.fromstring(draw_topology(topology))  # noqa: S314
    return ["".join(found.itertext()) for kind in ("text", "title") for found in root.iter(f"{SVG}{kind}")]


@pytest.mark.parametrize("name", TESTBEDS)
def test_every_shipped_testbed_can_be_drawn(name: str) -> None:
    topology = load_testbed(name)
    words = " ".join(words_of(topology))
    assert all(worker.id in words for worker in topology.workers)


@settings(max_examples=40)
@given(st.integers(1, 64), st.integers(0, 12), st.sampled_from([0.0, 0.5, 20.0, 9999.0]))
def test_any_fleet_can_be_drawn_and_nobody_stands_on_another(count: int, sites: int, mbps: float) -> None:
    topology = fleet(count, sites, mbps)
    assert sum("8 up" in words for words in words_of(topology)) >= count
    spots = [group.spot for group in groups(topology)]
    for number, one in enumerate(spots):
        for other in spots[number + 1 :]:
            assert (one.x - other.x) ** 2 + (one.y - other.y) ** 2 > (one.radius + other.radius) ** 2


def test_what_an_owner_wrote_stays_text() -> None:
    worker = WorkerSpec("a", "<script>alert('&')</script>", 1.0, 1.0)
    other = WorkerSpec("b", "<script>alert('&')</script>", 1.0, 1.0)
    topology = Topology((worker, other), ((0, 1), (1, 0)), ((0, 8), (8, 0)), title='"]]><b>\x1b[31m')
    drawn = draw_topology(topology)
    assert "<script" not in drawn and "\x1b" not in drawn
    assert "<script>alert('&')</script>" in words_of(topology)


def test_latency_and_both_rates_stand_on_a_line() -> None:
    workers = tuple(WorkerSpec(name, "", 1.0, 1.0) for name in "ab")
    topology = Topology(workers, ((0, 35), (35, 0)), ((0, 8), (50, 0)))
    assert any("35 ms" in words and "8" in words and "50" in words for words in words_of(topology))


def test_no_way_is_told() -> None:
    workers = tuple(WorkerSpec(name, "", 1.0, 1.0) for name in "ab")
    topology = Topology(workers, ((0, 0), (0, 0)), ((0, 0), (0, 0)))
    assert any("no way" in words for words in words_of(topology))


def test_signs_are_explained() -> None:
    assert any("the end on the left sends a" in words for words in words_of(load_testbed("lan")))
    assert not any("dashed" in words for words in words_of(load_testbed("lan")))
    assert any("dashed: behind NAT" in words for words in words_of(load_testbed("nat")))


def test_every_rate_has_a_class() -> None:
    assert class_of(0) is NO_WAY
    assert [class_of(mbps) for mbps in (1, 5, 20, 100, 500)] == list(CLASSES)


def test_labels_do_not_cover_one_another() -> None:
    labels = Labels([])
    one, other = Spot(0, 0, 10), Spot(400, 0, 10)
    placed = [labels.place("20 Mbit/s", 10, one, other) for _ in range(20)]
    there = sorted(spot.x for spot in placed if spot is not None)
    assert 3 <= len(there) < 20
    assert all(b - a >= 2 * 9 * 10 * 0.56 / 2 for a, b in itertools.pairwise(there))
