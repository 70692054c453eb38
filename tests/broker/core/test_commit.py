from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.scenario import plan_over

from farflung.broker.core.training.commit import CommitGroup, add_traffic
from farflung.errors import ProtocolError
from farflung.plans import Pipeline, Placement, Plan, Sum, seated
from farflung.protocol.messages import UnitReady
from farflung.protocol.traffic import LinkBytes, LinkRate, LinkTraffic
from farflung.protocol.worker import Share
from farflung.schedule import Unit

STEP = Unit(4, True, 3, 2)
PASS = Unit(4, False, 3, 2)


def opened(workers: list[str], unit: Unit = STEP) -> CommitGroup:
    plan = plan_over(workers)
    trained = [frozenset({10 + segment}) for segment in range(len(plan.placements))]  # as `share` has them
    return CommitGroup.for_plan(plan, 1, unit, trained)


def ready(*shares: Share, attempt: int = 1, unit: int = 4) -> UnitReady:
    return UnitReady("job-1", attempt, unit, list(shares), 7)


def share(segment: int, square: float = 1.0, finite: bool = True, loss: float = 0.0) -> Share:
    """The share of a segment with one parameter."""
    return Share(segment, finite, loss, {10 + segment: square})


def full(unit: Unit = STEP, **last: object) -> CommitGroup:
    group = opened(["a", "b"], unit).add("a", ready(share(0, 9.0), share(2, 0.0, loss=2.5)))
    return group.add("b", ready(share(1, **{"square": 16.0, **last})))  # type: ignore[arg-type]


def test_the_norm_is_clipped_and_the_loss_summed() -> None:
    verdict = full().verdict(clip=1.0)
    assert verdict.gradient_norm == 5.0
    assert verdict.scale == 1.0 / (5.0 + 1e-6)
    assert (verdict.loss, verdict.bytes_sent, verdict.trouble) == (2.5, 14, "")


@pytest.mark.parametrize("clip", [None, 6.0])
def test_a_step_within_bounds_is_not_scaled(clip: float | None) -> None:
    assert full().verdict(clip).scale == 1.0


def test_an_evaluation_is_never_in_trouble_and_has_no_norm() -> None:
    shares = [Share(segment, False, math.nan) for segment in range(3)]
    group = opened(["a", "b"], PASS).add("a", ready(shares[0], shares[2])).add("b", ready(shares[1]))
    verdict = group.verdict(clip=1.0)
    assert (verdict.scale, verdict.gradient_norm, verdict.trouble) == (1.0, 0.0, "")
    assert math.isnan(verdict.loss)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ({"loss": math.nan, "finite": False}, "loss became NaN"),
        ({"loss": math.inf}, "loss became infinite"),
        ({"finite": False}, "gradient became NaN or infinite"),
        ({"square": math.nan}, "gradient became NaN or infinite"),
        ({"square": math.inf}, "gradient became NaN or infinite"),
    ],
)
def test_a_step_that_is_not_finite_is_in_trouble(last: dict[str, object], words: str) -> None:
    assert words in full(**last).verdict(clip=None).trouble


@pytest.mark.parametrize(
    ("worker", "message", "words"),
    [
        ("b", ready(share(1), attempt=2), "attempt 2"),
        ("b", ready(share(1), unit=3), "unit 3"),
        ("b", ready(share(0)), "the plan gives it"),
        ("b", ready(share(9)), "the plan gives it"),
        ("b", ready(), "the plan gives it"),
        ("b", ready(share(1), share(1)), "the plan gives it"),
        ("c", ready(share(1)), "the plan gives it"),
        ("a", ready(share(0)), "the plan gives it"),
        ("b", ready(share(1, -1.0)), "negative"),
        ("a", ready(share(0), Share(2, True, 0.0, {10: 1.0})), "squares of 1 parameter for segment 2"),
        ("b", ready(Share(1, True, 0.0, {})), "squares of 0 parameters for segment 1"),
    ],
)
def test_a_breach_is_refused(worker: str, message: UnitReady, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        opened(["a", "b"]).add(worker, message)


def test_a_share_counts_once() -> None:
    group = opened(["a", "b"]).add("b", ready(share(1)))
    assert group.missing_workers() == ["a"]
    assert group.holds("b", ready(share(1))) and not group.holds("a", ready(share(1)))
    other = ready(share(1, loss=0.5))
    assert not group.holds("b", other)
    with pytest.raises(ProtocolError, match="other shares of unit 4 than before"):
        group.add("b", other)


def test_a_message_with_a_loss_that_is_not_a_number_is_the_same_when_it_comes_again() -> None:
    group = opened(["a", "b"]).add("b", ready(share(1, loss=math.nan)))
    assert group.holds("b", ready(share(1, loss=float("nan"))))


def test_the_squares_of_anothers_parameter_are_refused() -> None:
    with pytest.raises(ProtocolError, match="worker a sent squares of 1 parameter for segment 2"):
        opened(["a", "b"]).add("a", ready(share(0), Share(2, True, 0.0, {11: 1.0})))


def test_an_evaluation_has_no_squares() -> None:
    with pytest.raises(ProtocolError, match="expected those of the 0"):
        opened(["a", "b"], PASS).add("b", ready(share(1)))


@settings(max_examples=50)
@given(st.data(), st.integers(2, 6))
def test_the_norm_does_not_follow_the_cut(data: st.DataObject, count: int) -> None:
    """Squares are added by parameter, to the same bits, whichever segment has which."""
    squares = dict(enumerate(data.draw(st.lists(st.floats(0, 1e30), min_size=1, max_size=20))))
    workers = [f"w{number}" for number in range(count)]
    plan = plan_over(workers)
    owner = {value: data.draw(st.integers(0, len(plan.placements) - 1)) for value in squares}
    trained = [frozenset(v for v in squares if owner[v] == n) for n in range(len(plan.placements))]
    group = CommitGroup.for_plan(plan, 1, STEP, trained)
    for worker in workers:
        shares = []
        for segment in plan.segments_of(worker):
            mine = data.draw(st.permutations([value for value in squares if owner[value] == segment]))
            shares.append(Share(segment, True, 0.0, {value: squares[value] for value in mine}))
        group = group.add(worker, ready(*shares))
    total = 0.0
    for square in squares.values():
        total += square
    assert group.verdict(clip=None).gradient_norm == math.sqrt(total)


@settings(max_examples=50)
@given(st.data(), st.integers(2, 6))
def test_the_order_of_arrival_does_not_matter(data: st.DataObject, count: int) -> None:
    workers = [f"w{number}" for number in range(count)]
    number = st.floats(0, 1e30)
    sums = data.draw(st.lists(st.tuples(number, number), min_size=count + 1, max_size=count + 1))
    shares = [share(segment, square, True, loss) for segment, (square, loss) in enumerate(sums)]
    plan = plan_over(workers)
    verdicts = []
    for order in (workers, data.draw(st.permutations(workers))):
        group = CommitGroup.for_plan(plan, 1, STEP)
        for worker in order:
            assert not group.complete
            group = group.add(worker, ready(*(shares[segment] for segment in plan.segments_of(worker))))
        assert group.complete
        verdicts.append(group.verdict(clip=1.0))
    assert verdicts[0] == verdicts[1]
    assert 0.0 < verdicts[0].scale <= 1.0
    assert verdicts[0].scale * verdicts[0].gradient_norm <= 1.0 + 1e-9


def test_what_links_carried_is_added_up_over_units() -> None:
    told = msgspec.structs.replace(ready(share(0), share(2)), links=[LinkBytes("b", 400, 100, 1)])
    group = opened(["a", "b"]).add("a", told)
    (link,) = group.links
    assert (link.source, link.target, link.ratio) == ("a", "b", 4.0)
    once = add_traffic({}, group, "a")
    assert add_traffic(once, group, "a") == {("a", "b"): LinkTraffic("a", "b", 800, 200, 2)}
    assert add_traffic(once, group, "b") == once


@pytest.mark.parametrize("targets", [["c"], ["a"], ["b", "b"]])
def test_links_that_are_not_the_plans_are_refused(targets: list[str]) -> None:
    links = [LinkBytes(target, 4, 1) for target in targets]
    told = msgspec.structs.replace(ready(share(0), share(2)), links=links)
    with pytest.raises(ProtocolError, match="reports links that are not in the plan"):
        opened(["a", "b"]).add("a", told)


def test_what_a_worker_makes_up_stays_a_number_that_messages_hold() -> None:
    most = 2**53
    told = LinkBytes("b", most, most, most)
    made_up = UnitReady("job-1", 1, 4, [share(0), share(2)], most, [told])
    group = opened(["a", "b"]).add("a", made_up)
    traffic = add_traffic(add_traffic({}, group, "a"), group, "a")
    assert traffic == {("a", "b"): LinkTraffic("a", "b", most, most, most)}
    assert group.add("b", ready(share(1))).bytes_sent == most


def test_each_way_has_one_rate_a_unit() -> None:
    told = UnitReady("job-1", 1, 4, [share(0), share(2)], 7, rates=[LinkRate("b", 1e6)] * 2)
    with pytest.raises(ProtocolError, match="two rates for one link"):
        opened(["a", "b"]).add("a", told)


@pytest.mark.parametrize("source", ["a", "stranger"])
def test_rates_are_of_ways_that_the_plan_gives(source: str) -> None:
    told = UnitReady("job-1", 1, 4, [share(0), share(2)], 7, rates=[LinkRate(source, 1e6)])
    with pytest.raises(ProtocolError, match="reports rates of links that are not in the plan"):
        opened(["a", "b"]).add("a", told)


def test_pipelines_count_once_in_the_norm_and_together_in_the_loss() -> None:
    group = CommitGroup.for_plan(plan_over(["a", "b"]), 1, STEP)
    same = [Share(segment, True, 1.5, {10: 9.0, 11: 16.0}) for segment in range(3)]
    verdict = group.add("a", ready(same[0], same[2])).add("b", ready(same[1])).verdict(clip=None)
    assert (verdict.gradient_norm, verdict.loss, verdict.trouble) == (5.0, 4.5, "")


def test_unlike_sums_of_one_gradient_are_trouble() -> None:
    group = CommitGroup.for_plan(plan_over(["a", "b"]), 1, STEP)
    unlike = math.nextafter(9.0, 10.0)
    shares = [Share(segment, True, 0.0, {10: unlike if segment == 1 else 9.0}) for segment in range(3)]
    verdict = group.add("a", ready(shares[0], shares[2])).add("b", ready(shares[1])).verdict(clip=None)
    assert "segments 0 and 1 have unlike gradients of one parameter (value 10)" in verdict.trouble


def test_metrics_of_pipelines_add_up() -> None:
    group = CommitGroup.for_plan(plan_over(["a", "b"]), 1, PASS)
    shares = [Share(segment, True, 0.0, metrics={7: 0.25}) for segment in range(3)]
    verdict = group.add("a", ready(shares[0], shares[2])).add("b", ready(shares[1])).verdict(clip=None)
    assert verdict.metrics == {7: 0.75}


def two_pipelines() -> Plan:
    """Two pipelines of one segment, which run 3 and 1 microbatches of a step."""
    placements = [Placement(n, [name], 1, 4, 1) for n, name in enumerate("ab")]
    pipelines = [Pipeline(1, 3), Pipeline(1, 1)]
    sums = [Sum(10, 4, [[0], [1]], [0, 1], 0)]
    return Plan(placements, [], microbatches=4, window=1, pipelines=pipelines, sums=sums)


def apart(unit: Unit, *squares: float) -> CommitGroup:
    group = CommitGroup.for_plan(two_pipelines(), 1, unit, [frozenset({10})] * 2, is_apart=True)
    for number, (worker, square) in enumerate(zip("ab", squares, strict=True)):
        group = group.add(worker, ready(Share(number, True, 0.25, {10: square})))
    return group


def test_pipelines_that_train_apart_have_scales_of_their_own() -> None:
    """A pipeline weights its microbatches by all of the step's: its gradient is a part of its own mean."""
    verdict = apart(STEP, 9.0, 16.0).verdict(clip=4.0)
    assert (verdict.gradient_norm, verdict.loss, verdict.trouble) == (16.0, 0.5, "")
    assert verdict.scales == pytest.approx((4 / 3, 4 * 4 / (16 + 1e-6)))
    assert apart(STEP, 9.0, 16.0).verdict(clip=None).scales == pytest.approx((4 / 3, 4.0))


def test_one_that_trains_alone_has_the_whole_gradient() -> None:
    assert apart(STEP._replace(alone=True), 9.0, 0.0).verdict(clip=None).scales == (1.0, 1.0)


def test_a_pipeline_that_was_dropped_keeps_its_number_and_has_no_part_in_the_norm() -> None:
    whole = two_pipelines()
    plan = seated(whole, {1: "b"})
    group = CommitGroup.for_plan(plan, 1, STEP, [frozenset({10})] * 2, is_apart=True)
    verdict = group.add("b", ready(Share(1, True, 0.25, {10: 16.0}))).verdict(clip=2.0)
    assert (verdict.gradient_norm, verdict.scales[1]) == (4.0, pytest.approx(2 / (4 + 1e-6)))
    assert len(verdict.scales) == 2


def test_merges_are_not_clipped_and_must_be_equal() -> None:
    merge = Unit(4, False, 3, 0, merges=True)
    verdict = apart(merge, 9.0, 9.0).verdict(clip=0.5)
    assert (verdict.scale, verdict.scales, verdict.gradient_norm, verdict.trouble) == (1.0, (), 3.0, "")
    assert "unlike gradients" in apart(merge, 9.0, 4.0).verdict(clip=None).trouble


@pytest.mark.parametrize("bits", [{10: 8}, {}])
def test_unlike_bits_of_one_gradient_are_trouble_though_their_squares_are_equal(bits: dict[int, int]) -> None:
    """One that sends none, as a GPU does, counts as unlike too: replicas compute on like devices."""
    group = CommitGroup.for_plan(plan_over(["a", "b"]), 1, STEP)
    shares = [Share(at, True, 0.0, {10: 9.0}, bits=bits if at == 1 else {10: 7}) for at in range(3)]
    verdict = group.add("a", ready(shares[0], shares[2])).add("b", ready(shares[1])).verdict(clip=None)
    assert "segments 0 and 1 have unlike gradients of one parameter (value 10)" in verdict.trouble


def test_bits_are_of_parameters_that_have_squares() -> None:
    group = CommitGroup.for_plan(plan_over(["a", "b"]), 1, STEP)
    with pytest.raises(ProtocolError, match="bit sums of parameters without squares"):
        group.add("b", ready(Share(1, True, 0.0, {10: 9.0}, bits={11: 7})))


def test_a_digest_of_a_share_depends_on_its_bits() -> None:
    plain, other = (Share(1, True, 0.0, {10: 9.0}, bits=bits) for bits in ({}, {10: 7}))
    assert plain.digest != other.digest
