"""A topology from measurements, and what is assumed where there are none."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.scenario import DEVICE

from farflung.broker.core.records import Worker
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.broker.survey.measurements import (
    AccessLineMeasurement,
    Measurement,
    Measurements,
    PairMeasurement,
)
from farflung.broker.survey.topology import topology_of
from farflung.plans import Rates
from farflung.protocol.registration import HomeLine


def worker(name: str, site: str = "", tflops: float = 2.0, **line: float) -> Worker:
    device = msgspec.structs.replace(DEVICE, tflops=tflops, memory_bytes=8 * 10**9)
    return Worker(name, device, site, WorkerAddresses(), "boot", connected=True, line=HomeLine(**line))  # type: ignore[arg-type]


def link(sender: str, receiver: str, mbps: float, ms: float = 10.0, **more: object) -> PairMeasurement:
    return PairMeasurement(sender, receiver, mbps, ms, 0.0, **more)  # type: ignore[arg-type]


def known(*found: Measurement) -> Measurements:
    return Measurements().updated(found)


def test_what_was_measured_is_the_topology_in_the_order_of_ids() -> None:
    found = known(link("b", "a", 8, 30), link("a", "b", 50, 20))
    measured = topology_of([worker("b", tflops=4), worker("a", "home")], found)
    topology = measured.topology
    assert [(spec.id, spec.site, spec.tflops, spec.memory_gb) for spec in topology.workers] == [
        ("a", "home", 2.0, 8.0),
        ("b", "", 4.0, 8.0),
    ]
    assert (topology.link(0, 1).bandwidth_mbps, topology.link(0, 1).latency_ms) == (50, 20)
    assert (topology.link(1, 0).bandwidth_mbps, topology.link(1, 0).latency_ms) == (8, 30)
    assert measured.assumed == () and topology.note == ""


def test_the_rates_that_workers_offer_are_in_the_topology() -> None:
    rates = Rates(tf32_tflops=8.0, bfloat16_tflops=16.0)
    fast = worker("a")
    fast = replace(fast, device=msgspec.structs.replace(fast.device, rates=rates))
    topology = topology_of([fast, worker("b")], Measurements()).topology
    assert [spec.rates for spec in topology.workers] == [rates, DEVICE.rates]


def test_a_fleet_nobody_measured_is_assumed_to_be_even_and_says_so() -> None:
    measured = topology_of([worker("a"), worker("b"), worker("c", up_mbps=20.0)], Measurements())
    assert measured.topology.bandwidth_mbps[0][1:] == (100, 100)
    assert measured.topology.bandwidth_mbps[2][:2] == (20, 20)
    assert measured.assumed == (
        "6 of 6 links not measured: assumed 100 Mbit/s and 25 ms, because nothing is known about either end",
    )


def test_a_link_that_was_not_measured_is_taken_as_others_between_the_same_sites() -> None:
    members = [worker("a1", "a"), worker("a2", "a"), worker("b1", "b"), worker("b2", "b")]
    measured = topology_of(
        members, known(link("a1", "b1", 40, 15), link("a1", "b2", 50, 17), link("a1", "a2", 900))
    )
    a2_to_b1 = measured.topology.link(1, 2)
    assert (a2_to_b1.bandwidth_mbps, a2_to_b1.latency_ms) == (45, 16)
    assert any("between the same two sites" in words for words in measured.assumed)


def test_without_sites_the_slower_end_counts() -> None:
    found = known(link("a", "b", 80, 5), link("c", "d", 20, 40))
    measured = topology_of([worker(name) for name in "abcd"], found)
    assert measured.topology.link(0, 3).bandwidth_mbps == 20
    assert measured.topology.link(0, 3).latency_ms == 40


def test_no_way_is_a_bandwidth_of_zero_and_never_averaged() -> None:
    none = link("a", "b", 0, 0, problem="no way leads there", failures=2)
    found = known(none, link("a", "c", 30), link("b", "c", 40))
    measured = topology_of([worker("a"), worker("b"), worker("c")], found)
    assert measured.topology.link(0, 1).bandwidth_mbps == 0
    assert measured.topology.link(1, 0).bandwidth_mbps == 35  # as the others, without the zero


def test_a_way_whose_probe_failed_once_is_assumed_like_one_nobody_probed() -> None:
    failed = link("a", "b", 0, 0, problem="it did not answer within 12 s")
    measured = topology_of(
        [worker(name) for name in "abc"], known(failed, link("a", "c", 30), link("c", "b", 40))
    )
    assert measured.topology.link(0, 1).bandwidth_mbps == 30
    (words,) = [words for words in measured.assumed if "probe failed" in words]
    assert words.startswith("1 of 6 links not measured yet, because a probe failed: assumed ")


def test_a_line_is_shared_where_all_links_together_carry_less_than_each_alone() -> None:
    found = known(
        link("a", "b", 20), link("a", "c", 19),
        AccessLineMeasurement("a", "up", 20.5, 39, 0.0), AccessLineMeasurement("a", "down", 38, 39, 0.0),
        AccessLineMeasurement("b", "up", 7, 39, 0.0),
    )  # fmt: skip
    a, b, _ = topology_of([worker("a"), worker("b", up_mbps=10.0), worker("c")], found).topology.workers
    assert (a.up_mbps, a.down_mbps) == (20.5, None)
    assert b.up_mbps == 10.0  # its owner knows


def test_whom_nobody_could_dial_is_behind_nat() -> None:
    found = known(
        link("a", "b", 20, dialled="a", closed=("b",)),
        link("a", "c", 20, closed=("c",)),
        link("b", "c", 5, dialled="c"),
    )
    topology = topology_of([worker("a"), worker("b"), worker("c")], found).topology
    assert [spec.behind_nat for spec in topology.workers] == [False, True, False]


def test_a_device_of_unknown_speed_is_taken_as_the_median() -> None:
    measured = topology_of([worker("a", tflops=0), worker("b", tflops=3)], Measurements())
    assert measured.topology.workers[0].tflops == 3
    assert measured.assumed[0] == "devices of unknown speed assumed to sustain 3 TFLOP/s: a"


def test_who_moved_is_forgotten() -> None:
    found = known(link("a", "b", 20), link("b", "c", 5), AccessLineMeasurement("a", "up", 1, 2, 0.0))
    kept = found.without("a")
    assert list(kept.pairs) == [("b", "c")] and not kept.lines


def test_nobody_is_no_topology() -> None:
    with pytest.raises(ValueError, match="found 0"):
        topology_of([], Measurements())


IDS = ["a", "b", "c", "d"]


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(IDS), st.sampled_from(IDS)),
        st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)),
    ),
    st.lists(st.sampled_from(["", "x", "y"]), min_size=4, max_size=4),
)
def test_whatever_was_measured_gives_a_topology_and_every_link_is_measured_or_told(
    rates: dict[tuple[str, str], tuple[float, float]], sites: list[str]
) -> None:
    found = known(*(link(a, b, mbps, ms) for (a, b), (mbps, ms) in rates.items()))
    measured = topology_of(map(worker, IDS, sites), found)
    missing = sum(1 for a in IDS for b in IDS if a != b and not rates.get((a, b), (0.0, 0.0))[0])
    assert sum(int(words.split(" of ")[0]) for words in measured.assumed) == missing


def test_a_worker_that_claims_more_memory_than_there_is_harms_nobody() -> None:
    modest = worker("a")
    boast = replace(modest, device=msgspec.structs.replace(modest.device, memory_bytes=2**53))
    assert [spec.memory_gb for spec in topology_of([boast, worker("b")], known()).topology.workers] == [
        1e6,
        8,
    ]


def test_workers_that_name_one_machine_share_its_cores_by_the_threads_of_a_task() -> None:
    def on(name: str, machine: str, cores: int, threads: int) -> Worker:
        one = worker(name)
        shared = msgspec.structs.replace(one.device, machine=machine, cores=cores, threads=threads)
        return replace(one, device=shared)

    members = [on("a", "box", 8, 2), on("b", "box", 8, 4), on("c", "other", 8, 1), on("d", "", 8, 1)]
    found = topology_of(members, known()).topology
    assert [(one.machine, one.cores) for one in found.workers] == [
        ("box", 2),  # two tasks of b keep all cores busy
        ("box", 2),
        (None, None),  # alone on its machine
        (None, None),
    ]
    greedy = topology_of([on("a", "box", 2, 16), on("b", "box", 2, 16)], known()).topology
    assert {one.cores for one in greedy.workers} == {1}
