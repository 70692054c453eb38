import pytest

from farflung.plans import FEEDER, Edge, LinkCodec, Placement, Plan, single_pipelines, unfolded


def placement(segment: int, *workers: str) -> Placement:
    return Placement(segment, list(workers), 1, 1, 1)


def edge(source: int, target: int) -> Edge:
    return Edge(0, source, target, 8, True)


STAGES = [placement(0, "a"), placement(1, "b"), placement(2, "a")]
EDGES = [edge(FEEDER, 0), edge(0, 1), edge(1, 2), edge(0, 2)]


def test_a_plan_lists_workers_segments_and_neighbours() -> None:
    plan = Plan(STAGES, EDGES, 4, 2)
    assert plan.workers() == ["a", "b"]
    assert plan.segments_of("a") == [0, 2] and plan.worker_of(1) == "b"
    assert plan.neighbours("a") == {"b"} and plan.neighbours("b") == {"a"}


def test_a_plan_prints_as_one_line_that_no_worker_s_name_can_break() -> None:
    plan = Plan([placement(0, "a"), placement(1, "b\n\x1b[2J")], [edge(FEEDER, 0), edge(0, 1)], 1, 1)
    assert str(plan).startswith("segment 0 on a (50%), 1 on b") and str(plan).endswith("(50%); 1 microbatch")
    assert str(plan).isprintable()


def test_a_plan_with_replicas_prints_them_apart() -> None:
    folded = Plan([placement(0, "a", "b")], [], 2, 1, shares=[1, 1])
    plan = unfolded(folded, [{5: 4}], {})
    assert str(plan) == "replica 1: segment 0 on a (100%); replica 2: segment 1 on b (100%); 2 microbatches"


@pytest.mark.parametrize("pair", [(0, 3), (0, FEEDER), (3, 0), (-2, 0)])
def test_an_edge_joins_existing_segments(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"goes from segment .* there is no such segment"):
        Plan(STAGES, [edge(*pair)], 4, 2)


@pytest.mark.parametrize("pair", [(1, 0), (2, 0), (1, 1)])
def test_values_go_forward_only(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"back to \d: a plan's segments must be in topological order"):
        Plan(STAGES, [*EDGES, edge(*pair)], 4, 2)


@pytest.mark.parametrize("stages", [[placement(1, "a")], [placement(0, "a"), placement(0, "b")]])
def test_segments_are_numbered_in_order(stages: list[Placement]) -> None:
    with pytest.raises(ValueError, match="numbered from 0 in order"):
        Plan(stages, [], 4, 2)


def test_every_segment_has_a_worker() -> None:
    with pytest.raises(ValueError, match="must have a worker"):
        Plan([placement(0)], [], 4, 2)


def replicated(shares: list[int]) -> Plan:
    return Plan([placement(0, "a", "c"), placement(1, "b", "d")], [edge(0, 1)], 4, 2, shares)


def test_replica_r_of_a_segment_feeds_replica_r_of_the_next() -> None:
    plan = replicated([3, 1])
    assert plan.replicas == 2
    parts = [([p.worker for p in one.placements], one.microbatches) for one in single_pipelines(plan)]
    assert parts == [(["a", "b"], 3), (["c", "d"], 1)] and plan.live_shares == [3, 1]
    assert plan.neighbours("a") == {"b"} and plan.neighbours("d") == {"c"}
    assert plan.workers() == ["a", "c", "b", "d"] and plan.segments_of("d") == [1]


def test_shares_of_replicas_add_up_to_the_microbatches() -> None:
    with pytest.raises(ValueError, match="must add up to its microbatches"):
        replicated([3, 2])
    with pytest.raises(ValueError, match="one worker for each replica"):
        replicated([4])


def test_a_link_has_one_codec() -> None:
    codec = LinkCodec("a", "b", "int8", 4.0)
    with pytest.raises(ValueError, match="one codec for a link"):
        Plan(STAGES, EDGES, 4, 2, codecs=[codec, LinkCodec("a", "b", "topk", 8.0)])
