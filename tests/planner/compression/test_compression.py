from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.plan import FEEDER, Edge, LinkCodec, Placement, Plan, Topology, WorkerSpec
from farflung.planner.compression import policies
from farflung.workload.codecs import CODECS, LADDER, topk

FLOAT_BYTES, MASK_BYTES = 1200, 300


def chain(workers: list[str], masks: bool = False) -> Plan:
    """One float value and one gradient between neighbours; with `masks` something that stays exact too."""
    edges = [Edge(0, FEEDER, 0, 64, False)]
    for number in range(len(workers) - 1):
        edges.append(Edge(10 + number, number, number + 1, FLOAT_BYTES, True))
        if masks:
            edges.append(Edge(20 + number, number, number + 1, MASK_BYTES, False))
    placements = [Placement(n, [worker], 1, 1, 1) for n, worker in enumerate(workers)]
    return Plan(placements, edges, microbatches=4, window=2)


def topology(rates_mbps: dict[tuple[int, int], float], workers: int = 3) -> Topology:
    """No latency; 1000 Mbit/s where nothing else is said."""
    rows = [[rates_mbps.get((a, b), 1000.0) for b in range(workers)] for a in range(workers)]
    specs = tuple(WorkerSpec(chr(97 + n), "here", 1.0, 1.0) for n in range(workers))
    still = tuple((0.0,) * workers for _ in range(workers))
    return Topology(specs, still, tuple(tuple(row) for row in rows))


def ratios(codecs: tuple[LinkCodec, ...]) -> dict[tuple[str, str], float]:
    return {(codec.source, codec.target): codec.ratio for codec in codecs}


def test_adatopk_compresses_the_slowest_link_most_and_a_fast_one_not_at_all() -> None:
    net = topology({(0, 1): 10, (1, 0): 40, (1, 2): 1000, (2, 1): 1000})
    codecs = policies.adatopk(100)(chain(["a", "b", "c"]), net)
    found = ratios(codecs)
    assert found[("a", "b")] == pytest.approx(100)  # keeps 1 of 300, at three times the bytes each
    assert found[("b", "a")] == pytest.approx(25)
    assert policies.adatopk(30)(chain(["a", "b", "c"]), net)[0].ratio == pytest.approx(30)
    assert ratios(policies.adatopk(30)(chain(["a", "b", "c"]), net)).keys() == {("a", "b"), ("b", "a")}
    assert {codec.codec for codec in codecs} == {"topk"}


def test_a_shared_line_makes_a_link_slow() -> None:
    net = topology({})
    home = msgspec.structs.replace(net.workers[0], up_mbps=1.0)
    net = msgspec.structs.replace(net, workers=(home, *net.workers[1:]))
    assert ratios(policies.adatopk(20)(chain(["a", "b", "c"]), net)) == {("a", "b"): pytest.approx(20)}


def test_uniform_topk_pays_twelve_bytes_for_each_element_that_it_keeps() -> None:
    found = ratios(policies.uniform_topk(100)(chain(["a", "b", "c"]), topology({})))
    assert found == dict.fromkeys([("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")], pytest.approx(100 / 3))
    assert policies.uniform_topk(3)(chain(["a", "b"]), topology({})) == ()  # as large as it was


def test_what_is_no_float_is_never_compressed() -> None:
    found = ratios(policies.uniform_topk(30)(chain(["a", "b"], masks=True), topology({})))
    assert found[("a", "b")] == pytest.approx(1500 / (FLOAT_BYTES / 10 + MASK_BYTES))
    assert found[("b", "a")] == pytest.approx(10)


def test_a_rung_writes_activations_and_gradients_each_its_own_way() -> None:
    rung = next(rung for rung in LADDER if rung.name == "int8 / int4-stochastic")
    codecs = policies.uniform(rung)(chain(["a", "b", "c"]), topology({}))
    by_link = {(codec.source, codec.target): codec.codec for codec in codecs}
    assert by_link[("a", "b")] == "int8" and by_link[("b", "a")] == "int4-stochastic"
    both = policies.uniform(rung)(chain(["a", "b", "a"]), topology({}))
    assert {codec.codec for codec in both} == {"int8"}  # the gentler, where a link carries both


def test_dense_and_workers_that_talk_to_themselves_have_no_codecs() -> None:
    assert policies.dense(chain(["a", "b"]), topology({})) == ()
    assert policies.adatopk(100)(chain(["a", "a"]), topology({})) == ()


def test_each_replica_has_links_of_its_own() -> None:
    plan = chain(["a", "b"])
    placements = [Placement(0, ["a", "c"], 1, 1, 1), Placement(1, ["b", "d"], 1, 1, 1)]
    plan = msgspec.structs.replace(plan, placements=placements, shares=[2, 2])
    found = ratios(policies.uniform_topk(30)(plan, topology({}, 4)))
    assert found.keys() == {("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")}
    msgspec.structs.replace(plan, codecs=[LinkCodec(*link, "topk", r) for link, r in found.items()])


@given(selection=st.floats(1, 1e5))
def test_topk_never_makes_a_tensor_larger(selection: float) -> None:
    assert topk(selection).ratio == pytest.approx(max(1.0, selection / 3))


def test_codecs_are_declared_once_each_and_the_ladder_gets_rougher() -> None:
    assert len({codec.name for codec in CODECS}) == len(CODECS)
    sizes = [1 / rung.forward.ratio + 1 / rung.backward.ratio for rung in LADDER]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)
