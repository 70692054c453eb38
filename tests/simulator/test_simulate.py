from __future__ import annotations

import math
import random

import msgspec
import pytest
from benchmarks.simulated_plans import MB, chain, on_cores, random_chain, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codec import catalogue
from farflung.errors import PlanError
from farflung.plans import FEEDER, Edge, LinkCodec, Placement, Plan, Topology, unfolded
from farflung.simulator import Conditions, simulate
from farflung.simulator.costs import LinkCosts
from farflung.simulator.simulate import MOST_STEPS

SECONDS_OF_A_MEGABYTE = 1.0  # on 8 Mbit/s


def test_one_device_computes_without_a_pause() -> None:
    found = simulate(chain([0.1], [], 8), topology([1.0]))
    assert found.step_seconds == pytest.approx(8 * 0.3)
    assert found.line() == "the device of w0, busy 100%"


def test_workers_of_one_machine_compute_on_its_cores() -> None:
    """Two segments of 0.1 s forward and 0.2 s back: on one core all of it is one after the other."""
    plan, places = chain([0.1, 0.1], [0], 8), topology([1.0, 1.0], 1e5, 0.0)
    apart, two, one = (simulate(plan, each) for each in (places, on_cores(places, 2), on_cores(places, 1)))
    assert apart.step_seconds == two.step_seconds < one.step_seconds
    assert one.step_seconds == pytest.approx(8 * 2 * 0.3)
    assert one.line() == "the 1 core(s) of w0, w1, busy 100%"


def test_a_pipeline_of_two_takes_fill_transfers_and_drain() -> None:
    """The first microbatch's way there, seven transfers more, the last one's way back."""
    found = simulate(chain([0.01, 0.02], [MB], 8), topology([1.0, 1.0], 8.0, 50.0))
    there = 0.01 + 8 * SECONDS_OF_A_MEGABYTE + 0.05
    back = 0.04 + SECONDS_OF_A_MEGABYTE + 0.05 + 0.02
    assert found.step_seconds == pytest.approx(there + back)
    assert found.bottleneck.name in ("the link w0 -> w1", "the link w1 -> w0")
    assert found.bottleneck.bytes == 8 * MB


def test_both_directions_of_a_link_are_independent() -> None:
    rates = [[0.0, 8.0], [80.0, 0.0]]
    found = simulate(chain([0.0, 0.0], [MB], 4), topology([1.0, 1.0], rates))
    assert found.step_seconds == pytest.approx(4 * SECONDS_OF_A_MEGABYTE + 0.1)


def test_a_small_window_adds_round_trips() -> None:
    plan, places = chain([0.1, 0.1], [MB], 6, window=2), topology([1.0, 1.0], 80.0, 450.0)
    round_trip = 2 * (0.45 + 0.1) + 0.3 + 0.2  # the weights of the second device fill its pauses
    assert simulate(plan, places).step_seconds > 3 * round_trip
    assert simulate(plan, places, Conditions(window=6)).step_seconds < 3 * round_trip


def test_distant_workers_lengthen_the_commit() -> None:
    latency = [[0.0, 10.0], [30.0, 0.0]]
    plan, places = chain([0.1], [], 2, workers=["w1"]), topology([1.0, 1.0], 8.0, latency)
    assert simulate(plan, places).step_seconds == pytest.approx(0.6 + 0.04)
    assert simulate(plan, places, Conditions(commit=False)).step_seconds == pytest.approx(0.6)


def test_messages_share_the_access_line_of_their_sender() -> None:
    """w0 sends to two segments at once over a line of 8 Mbit/s, each path could carry it all."""
    placements = [Placement(n, [f"w{n}"], 0, 0, 1) for n in range(3)]
    edges = [Edge(0, FEEDER, 0, 0, False), Edge(1, 0, 1, MB, False), Edge(2, 0, 2, MB, False)]
    plan = Plan(placements, edges, 2, 2)
    alone = simulate(plan, topology([1.0] * 3, 8.0))
    shared = simulate(plan, topology([1.0] * 3, 8.0, up_mbps=[8.0, None, None]))
    assert alone.step_seconds == pytest.approx(2.0)
    assert shared.step_seconds == pytest.approx(4.0)
    assert shared.line() == "the access line of w0 up, busy 100%"


def test_inputs_use_the_access_line_of_the_submitters_home() -> None:
    """In the steady state inputs of 1 MB pass a line of 8 Mbit/s once a microbatch, whatever runs else."""
    plan = chain([0.01], [], 4, workers=["w1"], fed_bytes=MB)
    places = topology([1.0, 1.0], 80.0, up_mbps=[8.0, None])
    found = simulate(plan, places)
    assert found.step_seconds == pytest.approx(4.0, rel=0.05)
    assert found.bottleneck.name == "the access line of w0 up"
    at_home = simulate(chain([0.01], [], 4, workers=["w0"], fed_bytes=MB), places)
    assert at_home.step_seconds == pytest.approx(0.12)


def test_steps_that_alternate_are_averaged() -> None:
    """Whenever a step is long, the feeder sends part of the next one ahead over the line that both need."""
    chained = chain([0.5, 0.0, 0.0], [2 * MB, 5 * MB], 2)
    fed = [Edge(9, FEEDER, 1, 2 * MB, False), Edge(10, FEEDER, 2, 4 * MB, False)]
    plan = msgspec.structs.replace(chained, edges=[*chained.edges, *fed])
    places = topology([1.0] * 3, 80.0, 400.0, up_mbps=[8.0, None, None])
    found = simulate(plan, places)
    assert found.steps == MOST_STEPS
    assert found.step_seconds == pytest.approx(2 * (2 + 2 + 4))
    assert found.line() == "the access line of w0 up, busy 100%"
    assert found.bottleneck.bytes == pytest.approx(2 * 8 * MB)


def test_a_gradient_overtakes_activations() -> None:
    """w0 holds segments 0 and 2: to w1 go activations of 0 and gradients of 2, over one link."""
    plan = chain([0.0, 0.1, 0.0], [MB, MB // 100], 4, workers=["w0", "w1", "w0"])
    found = simulate(plan, topology([1.0, 1.0], 8.0), timeline=True)
    kinds = [span.kind for span in found.timeline if span.row == "w0 -> w1"]
    assert kinds.index("gradient") < len(kinds) - 1 - kinds[::-1].index("activation")


def test_recomputing_costs_a_forward_pass_more() -> None:
    plan = chain([0.1], [], 4)
    again = Plan([Placement(0, ["w0"], 10**11, 0, 1, recompute=True)], plan.edges, 4, 4)
    assert simulate(again, topology([1.0])).step_seconds == pytest.approx(4 * 0.4)


def test_gradients_of_values_are_sent_before_weight_gradients_are_computed() -> None:
    """The last segment's weights are done while the first one, which sends nothing, does all of its own."""
    plan, places = chain([0.1, 0.1], [0], 1), topology([1.0, 1.0], 8.0, 0.0)
    whole, split = simulate(plan, places, Conditions(split_backward=False)), simulate(plan, places)
    assert whole.step_seconds == pytest.approx(0.6)
    assert split.step_seconds == pytest.approx(0.5)


def test_weight_gradients_wait_until_nothing_else_is_ready() -> None:
    found = simulate(chain([0.1, 0.1], [0], 3), topology([1.0, 1.0], 8.0, 0.0), timeline=True)
    tasks = [(span.kind, span.microbatch) for span in found.timeline if span.row == "w1"]
    assert tasks[-1] == ("accumulate", 2)
    assert [m for kind, m in tasks if kind == "accumulate"] == [0, 1, 2]
    backwards = [at for at, (kind, _) in enumerate(tasks) if kind == "backward"]
    assert backwards[0] < tasks.index(("accumulate", 0))


@pytest.mark.parametrize("stages", [2, 4, 7])
def test_equal_stages_idle_no_longer_than_until_the_first_microbatch_reaches_the_last(stages: int) -> None:
    """As in the schedule ZB-H1 (Qi et al. 2023, arXiv 2401.10241), with twice as many in flight as stages."""
    plan = chain([0.1] * stages, [0] * (stages - 1), 32, window=2 * stages)
    found = simulate(plan, topology([1.0] * stages, 1e5))
    assert found.step_seconds == pytest.approx(32 * 0.3 + (stages - 1) * 0.1)


def test_a_codec_shrinks_messages_and_takes_time() -> None:
    plan, places = chain([0.0, 0.0], [MB], 1), topology([1.0, 1.0], 8.0)
    codecs = [LinkCodec("w0", "w1", "int8", 4.0)]
    coded = Plan(plan.placements, plan.edges, 1, 1, [], codecs)
    assert simulate(coded, places, Conditions(codec_speed=math.inf)).step_seconds == pytest.approx(1.25)
    took = catalogue.declared("int8")
    slow = Conditions(codec_speed=MB / 1e9)
    both = 1 / took.encode_gbps + 1 / took.decode_gbps
    assert simulate(coded, places, slow).step_seconds == pytest.approx(1.25 + both)


def replicated(shares: list[int], parameter_bytes: int) -> Plan:
    workers = [f"w{n}" for n in range(len(shares))]
    edges = [Edge(0, FEEDER, 0, 0, False)]
    return Plan([Placement(0, workers, 10**11, parameter_bytes, 1)], edges, sum(shares), sum(shares), shares)


def test_replicas_share_the_microbatches_and_add_up_gradients() -> None:
    plan, places = replicated([3, 3], 2 * MB), topology([1.0, 1.0], 8.0, 100.0)
    sync = 2 * (0.1 + 1.0)
    assert simulate(plan, places).step_seconds == pytest.approx(0.1 + 3 * 0.3 + sync + 0.1, abs=0.21)
    quick = simulate(plan, places, Conditions(commit=False))
    assert quick.step_seconds == pytest.approx(3 * 0.3 + sync)


def at_sites(places: Topology, sites: str) -> Topology:
    """The topology with each worker at the site of its letter, and fast links within sites."""
    workers = tuple(
        msgspec.structs.replace(worker, site=site) for worker, site in zip(places.workers, sites, strict=True)
    )
    rates = tuple(
        tuple(1e5 if a == b else mbps for b, mbps in zip(sites, row, strict=True))
        for a, row in zip(sites, places.bandwidth_mbps, strict=True)
    )
    return msgspec.structs.replace(places, workers=workers, bandwidth_mbps=rates)


def test_gradients_are_added_within_sites_before_they_cross() -> None:
    """Each of two workers of a site heads half of what crosses: half the gradients a worker, not all."""
    plan, places = replicated([1, 1, 1, 1], 4 * MB), topology([1.0] * 4, 8.0)
    spread = simulate(plan, at_sites(places, "abcd"), Conditions(commit=False))
    paired = simulate(plan, at_sites(places, "aabb"), Conditions(commit=False))
    assert spread.step_seconds == pytest.approx(0.3 + 2 * 3 * 1.0)
    assert paired.step_seconds == pytest.approx(0.3 + 2.0, rel=1e-3)
    near = simulate(plan, at_sites(places, "aaaa"), Conditions(commit=False))
    assert near.step_seconds == pytest.approx(0.3, rel=1e-2)


@pytest.mark.parametrize("sites", ["ab", "aabb", "aaab", "abcab", "aabbb"])
@pytest.mark.parametrize("codec", ["dense", "int8"])
def test_replicas_send_in_the_simulator_what_the_sums_of_an_unfolded_plan_send(
    sites: str, codec: str
) -> None:
    values, size = 120, 1000
    places = at_sites(topology([1.0] * len(sites), 8.0), sites)
    plan = msgspec.structs.replace(replicated([1] * len(sites), values * size), sum_codec=codec)
    sums = unfolded(
        plan, [dict.fromkeys(range(values), size)], dict(zip(places.ids, sites, strict=True))
    ).sums
    within = sum(2 * one.bytes * (len(one.holders()) - len(one.heads)) for one in sums)
    between = sum(2 * one.bytes * (len(one.heads) - 1) for one in sums)
    costs = LinkCosts(plan, places, Conditions())
    found = {True: 0.0, False: 0.0}
    for at, parts in enumerate(costs.sum_messages(range(len(sites)), values * size)):
        for part in parts:
            found[sites[part.target] == sites[at]] += part.bytes
    ratio = 1.0 if codec == "dense" else catalogue.declared(codec).ratio
    assert found == pytest.approx({True: within, False: between / ratio})


def test_a_replica_without_microbatches_still_takes_part() -> None:
    found = simulate(replicated([2, 0], MB), topology([1.0, 1.0], 8.0), Conditions(commit=False))
    assert found.step_seconds == pytest.approx(2 * 0.3 + 2 * 0.5)


def test_an_update_takes_time_in_proportion_to_its_bytes() -> None:
    found = simulate(replicated([1], MB), topology([1.0]), Conditions(update_bytes_per_second=MB / 2))
    assert found.step_seconds == pytest.approx(2.3)


def test_plans_that_cannot_run_are_refused() -> None:
    with pytest.raises(PlanError, match="uses worker 'w1'"):
        simulate(chain([0.1, 0.1], [1], 1), topology([1.0]))
    twice = Plan([Placement(0, ["w0", "w0"], 1, 1, 1)], [], 2, 2, [1, 1])
    with pytest.raises(PlanError, match="two replicas"):
        simulate(twice, topology([1.0]))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_equal_inputs_give_equal_answers(seed: int) -> None:
    plan, places = random_chain(random.Random(seed), shares_lines=True)
    assert simulate(plan, places, timeline=True) == simulate(plan, places, timeline=True)


def test_a_plan_over_a_missing_link_is_refused() -> None:
    plan = chain([0.1, 0.1], [MB], 2, fed_bytes=1)
    one_way = topology([1.0, 1.0], [[0.0, 8.0], [0.0, 0.0]])
    with pytest.raises(PlanError, match=r"needs the link w1 -> w0, but the topology has none \(0 Mbit/s\)"):
        simulate(plan, one_way)
    away = msgspec.structs.replace(one_way, submitter="w1")
    with pytest.raises(PlanError, match="needs the link w1 -> w0"):
        simulate(chain([0.1], [], 2, fed_bytes=1), away)


def test_a_plan_that_takes_no_time_still_has_a_bottleneck() -> None:
    found = simulate(chain([0.0], [], 2), topology([1.0]))
    assert found.step_seconds == 0
    assert found.line() == "latency and waiting; the busiest is the device of w0, busy 0%"


def test_a_mean_step_of_replicas_that_train_apart_has_its_part_of_a_merge() -> None:
    plan, places = replicated([3, 3], 2 * MB), topology([1.0, 1.0], 8.0, 100.0)
    each, never = simulate(plan, places), simulate(msgspec.structs.replace(plan, inner_steps=10**9), places)
    apart = simulate(msgspec.structs.replace(plan, inner_steps=10), places)
    assert never.step_seconds < each.step_seconds / 2
    assert apart.step_seconds == pytest.approx(0.9 * never.step_seconds + 0.1 * each.step_seconds, rel=1e-6)
    whole, part = (sum(load.bytes for load in one.loads) for one in (each, apart))
    fed = sum(load.bytes for load in never.loads)
    assert part - fed == pytest.approx((whole - fed) / 10)
