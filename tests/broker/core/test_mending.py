"""A member of a job with replicas is lost: the others keep their state, and give it to those that lack it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.broker.core.test_lost_sets import since
from tests.broker.core.test_protection import job_of
from tests.broker.core.test_replaying import KERNELS, load_all, rollbacks
from tests.broker.scenario import Scenario, told

from farflung.broker.core import events, facts
from farflung.broker.core.records import Job
from farflung.broker.core.recovering import mending
from farflung.broker.core.recovering.mending import Mending
from farflung.broker.core.recovering.recovery import MOST_REPLAYED
from farflung.broker.core.state import durable, replay
from farflung.broker.planning.messages import PlanResult
from farflung.planner.replicas import evenly_replicated
from farflung.plans import Edge, Placement, Plan, side_by_side, unfolded
from farflung.protocol.messages import Broken, Planned, Refused
from farflung.protocol.registration import Standing
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.optimizers.diloco import DiLoCo

STEPS = 20


def plan_of(members: str, replicas: int = 2) -> Plan:
    """Replicas of a pipeline over these workers, whose segments train one parameter each."""
    count = len(members) // replicas
    edges = [Edge(number, number - 1, number, 8, True) for number in range(count)]
    one = Plan([Placement(n, [members[n]], 10, 4, 1) for n in range(count)], edges, 6, 2)
    sizes = [{part.segment: 4} for part in one.placements]
    return unfolded(evenly_replicated(one, [*members], replicas), sizes, {})


def place(
    members: str = "abcd", replicas: int = 2, idle: str = "", disk_bytes: int = 0, **changes: object
) -> Scenario:
    """A job with replicas on these workers, of which each step runs on all; one unit is decided.

    `changes` are fields of its training.
    """
    plan = plan_of(members, replicas)
    count = len(plan.placements) // replicas
    owned = [[f"weight-{part.segment % count}"] for part in plan.placements]
    return place_plan(plan, owned, members, idle, disk_bytes, **changes)


def unlike_place(idle: str = "") -> Scenario:
    """The same where worker a has all of the model, b and c a half each, and d and e the same halves."""
    whole = Plan([Placement(0, ["a"], 20, 8, 2)], [], 2, 2)
    edges = [Edge(1, 0, 1, 8, True)]
    halves = [
        Plan([Placement(n, [w], 10, 4, 1) for n, w in enumerate(two)], edges, 2, 2) for two in ("bc", "de")
    ]
    sizes = [[{0: 4, 1: 4}], *2 * [[{0: 4}, {1: 4}]]]
    plan = side_by_side(whole, [whole, *halves], sizes, {})
    owned = [["weight-0", "weight-1"], *2 * [["weight-0"], ["weight-1"]]]
    return place_plan(plan, owned, "abcde", idle)


def cascading_place(idle: str) -> Scenario:
    """Pipelines of workers ab, cde and f, cut in two, three and one."""
    pipelines = [
        Plan(
            [Placement(n, [w], 10, 4, 1) for n, w in enumerate(names)],
            [Edge(n, n - 1, n, 8, True) for n in range(1, len(names))], 2, 2,
        )
        for names in ("ab", "cde", "f")
    ]  # fmt: skip
    cuts = [[[0], [1, 2]], [[0], [1], [2]], [[0, 1, 2]]]
    sizes = [[dict.fromkeys(own, 4) for own in cut] for cut in cuts]
    owned = [[f"weight-{value}" for value in own] for cut in cuts for own in cut]
    return place_plan(side_by_side(pipelines[0], pipelines, sizes, {}), owned, "abcdef", idle)


def place_plan(
    plan: Plan,
    owned: list[list[str]],
    members: str,
    idle: str = "",
    disk_bytes: int = 0,
    **changes: object,
) -> Scenario:
    """A job with this plan, of which one unit is decided."""
    story = Scenario()
    for worker in members:
        story.join(worker, device=KERNELS, disk_bytes=disk_bytes)
    story.submit(len(members), steps=STEPS, microbatches=6, **changes)
    programs = [SegmentProgram(n, b"program", dict.fromkeys(names, 4)) for n, names in enumerate(owned)]
    result = PlanResult(plan, programs, owned, None)
    story.feed(events.PlanMade(story.now, "job-1", 1, result))
    load_all(story)
    for worker in idle:
        story.join(worker, device=KERNELS, disk_bytes=disk_bytes)
    story.all_ready(0)
    return story


def training_apart(job: Job, warmup: int) -> Job:
    """The job, but its replicas train apart."""
    optimizer = msgspec.structs.replace(job.training.optimizer, diloco=DiLoCo(inner_steps=4, warmup=warmup))
    return replace(job, training=msgspec.structs.replace(job.training, optimizer=optimizer))


def goes_on(story: Scenario, first: int = 1) -> None:
    """The attempt runs to its end, and the log gives the same state."""
    load_all(story)
    assert job_of(story).state == "running" and not rollbacks(story)
    for unit in range(first, STEPS):
        story.all_ready(unit)
        load_all(story)  # if it has grown
    assert job_of(story).state == "collecting"
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)


def test_a_newcomer_gets_the_newest_state_from_the_other_replica_and_no_unit_runs_again() -> None:
    story = place(idle="e")
    story.ready("a", 1)
    first = len(story.commands)
    story.leave("b")
    job = job_of(story)
    assert (job.state, job.attempt, job.step, job.members) == ("loading", 2, 1, ("a", "e", "c", "d"))
    loads, others, stops = since(story, first)
    assert loads.keys() == {"e"} and others.keys() == {"a", "c", "d"} and not stops
    assert loads["e"].unit == 1 and loads["e"].state_donors == {1: 3} and loads["e"].version is None
    assert loads["e"].state_gifts == [("d", "e")] and "d" in loads["e"].addresses
    assert others["d"].unit == 1 and others["d"].state_donors == {1: 3} and "e" in others["d"].addresses
    planned = [message for message in told(story.commands) if isinstance(message, Planned)][-1]
    assert (planned.keeps, planned.unit, planned.newcomers, planned.replayers) == (True, 1, ["e"], [])
    goes_on(story)


def test_without_an_idle_worker_the_other_replica_goes_on_alone_and_the_rest_is_free() -> None:
    story = place()
    first = len(story.commands)
    story.leave("b")
    job = job_of(story)
    assert (job.attempt, job.step, job.members) == (2, 1, ("c", "d"))
    assert job.plan is not None and job.plan.sums == [] and job.plan.live_pipelines() == [1]
    loads, others, stops = since(story, first)
    assert not loads and others.keys() == {"c", "d"} and stops.keys() == {"a"}
    assert story.state.workers["a"].idle
    goes_on(story)


def test_of_three_replicas_two_go_on_and_share_the_microbatches_anew() -> None:
    story = place("abc", replicas=3)
    story.leave("c")
    job = job_of(story)
    assert job.plan is not None and [one.microbatches for one in job.plan.pipelines] == [3, 3, 0]
    assert [one.holders() for one in job.plan.sums] == [[0, 1]]
    goes_on(story)


def test_a_worker_that_joins_makes_a_replica_again_at_the_end_of_a_unit() -> None:
    story = place("abc", replicas=3)
    before = job_of(story).plan
    story.leave("c")
    load_all(story)
    story.join("z", device=KERNELS)
    assert job_of(story).attempt == 2
    first = len(story.commands)
    story.all_ready(1)
    job = job_of(story)
    assert (job.attempt, job.step, job.members) == (3, 2, ("a", "b", "z"))
    assert job.plan is not None and before is not None and job.plan.sums == before.sums
    loads, others, stops = since(story, first)
    assert loads["z"].state_donors == {2: 0} and others.keys() == {"a", "b"} and not stops
    goes_on(story, 2)


def test_free_workers_of_a_dropped_replica_take_places_in_others() -> None:
    """Two of three replicas lose a worker, and what is left of one makes the other whole."""
    story = place("abcdef", replicas=3)
    story.leave("b")
    assert job_of(story).members == ("c", "d", "e", "f") and story.state.workers["a"].idle
    story.leave("c")  # its place fits a as well as b's
    job = job_of(story)
    assert (job.attempt, job.members) == (3, ("a", "d", "e", "f"))
    assert job.state_donors == {2: 4}
    goes_on(story)


def test_a_newcomer_that_is_lost_before_it_has_loaded_is_replaced() -> None:
    story = place(idle="ef")
    story.leave("b")
    assert job_of(story).newcomers == {"e"}
    first = len(story.commands)
    story.leave("e")
    loads, others, _ = since(story, first)
    assert loads.keys() == {"f"} and others.keys() == {"a", "c", "d"}
    goes_on(story)


def test_a_donor_that_is_lost_before_its_state_has_come_costs_the_newest_state_only_if_it_alone_had_it() -> (
    None
):
    story = place("abcdef", replicas=3, idle="x")
    story.leave("b")
    assert job_of(story).state_donors == {1: 3}
    story.leave(
        "d"
    )  # x, which has no state yet, takes its place again, from f; b's pipeline is whole with it
    job = job_of(story)
    assert job.attempt == 3 and not rollbacks(story)
    assert all(job.plan is not None and job.plan.worker_of(at) in "cf" for at in job.state_donors.values())
    story = place(idle="x")
    story.leave("b")
    story.leave("d")  # what it held is nowhere else
    assert len(rollbacks(story)) == 1


def test_a_link_that_is_lost_while_a_newcomer_loads_makes_it_begin_again() -> None:
    story = place(idle="e")
    story.leave("b")
    first = len(story.commands)
    story.feed(events.WorkerMessage(story.now, "e", Broken("job-1", 2, "lost the link to worker d", "d")))
    loads, others, stops = since(story, first)
    assert loads.keys() == {"e"} == stops.keys() and others.keys() == {"a", "c", "d"}
    assert job_of(story).attempt == 3
    goes_on(story)


def test_a_newcomer_that_refuses_is_left_out() -> None:
    story = place(idle="e")
    story.leave("b")
    story.feed(events.WorkerMessage(story.now, "e", Refused("job-1", 2, "it has too little memory")))
    job = job_of(story)
    assert job.members == ("c", "d") and "e" in job.blamed and not rollbacks(story)
    goes_on(story)


def test_of_replicas_with_cuts_of_their_own_one_is_dropped_of_which_no_other_has_a_part() -> None:
    story = unlike_place(idle="x")
    story.leave("a")  # x could run it, but no other member holds just that state
    job = job_of(story)
    assert (job.attempt, job.members) == (2, ("b", "c", "d", "e")) and not rollbacks(story)
    assert job.plan is not None and [one.microbatches for one in job.plan.pipelines] == [0, 3, 3]
    assert [one.holders() for one in job.plan.sums] == [[1, 3], [2, 4]]
    goes_on(story)
    assert job_of(story).members == ("b", "c", "d", "e")  # and it stays dropped


def test_of_such_replicas_a_place_is_taken_whose_state_another_has() -> None:
    story = unlike_place(idle="x")
    story.leave("c")
    job = job_of(story)
    assert job.members == ("a", "b", "x", "d", "e") and job.state_donors == {2: 4}
    goes_on(story)


def test_a_replica_whose_donor_is_dropped_is_dropped_too_and_the_rest_goes_on() -> None:
    story = cascading_place(idle="x")
    story.leave("a")
    assert job_of(story).members == ("x", "b", "c", "d", "e", "f")  # c has what x needs
    story.leave("d")  # no other has its state, so its pipeline is dropped, which x's donor is in
    job = job_of(story)
    assert (job.attempt, job.members) == (3, ("f",)) and not rollbacks(story)
    goes_on(story)


def test_a_worker_with_other_kernels_takes_no_place() -> None:
    story = place()
    story.join("e", device=msgspec.structs.replace(KERNELS, kernels="others"))
    story.leave("b")
    assert job_of(story).members == ("c", "d")


def test_one_that_leaves_in_good_order_hands_over_between_two_units_without_a_copy() -> None:
    story = place(idle="e")
    story.feed(events.LeaveAsked(story.now, "b", 60.0))
    assert job_of(story).attempt == 1
    story.ready("a", 1)
    assert job_of(story).attempt == 1
    for worker in "bcd":
        story.ready(worker, 1)
    job = job_of(story)
    assert (job.attempt, job.step, job.members) == (2, 2, ("a", "e", "c", "d"))
    assert story.state.workers["b"].released
    goes_on(story, 2)


def test_no_replica_is_dropped_for_one_that_leaves_before_its_deadline() -> None:
    story = place()
    story.feed(events.LeaveAsked(story.now, "b", 60.0))
    story.all_ready(1)
    assert job_of(story).members == ("a", "b", "c", "d")


def test_a_member_that_returns_to_a_restarted_broker_hears_of_the_newcomer() -> None:
    story = place(idle="e")
    story.leave("b")
    story.restart()
    for worker in "acd":
        first = len(story.commands)
        story.join(worker, device=KERNELS, standing=Standing("job-1", 1, 1, "running"))
        assert since(story, first)[1][worker].state_donors == {1: 3}
    first = len(story.commands)
    story.join("e", device=KERNELS, standing=Standing("job-1", 2, 1, "loading"))
    assert not since(story, first)[2]


def test_members_give_their_state_up_when_they_have_mended_in_vain_too_often() -> None:
    story = place("abcd", idle="stuvwxyz")
    for attempt in range(MOST_REPLAYED + 1):
        assert not rollbacks(story)
        story.leave(next(name for name in job_of(story).members if name not in "acd"))
        assert job_of(story).attempt <= attempt + 3
    assert len(rollbacks(story)) == 1


def test_pipelines_that_train_apart_do_not_give_each_other_their_state() -> None:
    story = place(idle="e")
    job = job_of(story)
    assert isinstance(mending.mending(story.state, job, {"b"}), Mending)
    assert job.plan is not None
    apart = training_apart(job, warmup=0)
    assert not isinstance(mending.mending(story.state, apart, {"b"}), Mending)


@pytest.mark.parametrize("lost", ["ab", "cd", "ac"])
def test_a_replica_that_loses_all_its_workers_costs_the_others_nothing(lost: str) -> None:
    story = place()
    for worker in lost:
        story.leave(worker)
    gone = lost == "ac"  # both replicas have lost their first segment, and no one else holds it
    assert bool(rollbacks(story)) == gone
    if not gone:
        goes_on(story)


def test_copies_of_a_dropped_replica_count_no_more_and_those_of_the_rest_do() -> None:
    story = place(disk_bytes=10**9)
    job = job_of(story)
    assert job.versions.under_way is not None and job.plan is not None
    for share, owner in enumerate("abcd"):
        for worker in (owner, job.holders[owner]):
            story.copied(worker, 0, share)
    assert job_of(story).versions.stable is not None
    story.leave("b")
    stable = job_of(story).versions.stable
    assert stable is not None and stable.digests.keys() == {2, 3} == stable.holders.keys()
    load_all(story)
    story.leave("d")  # it had no twin: c goes back to the copies, which lie with c
    assert job_of(story).step == 1
