"""Data that stays at home: no stranger runs a segment that reads it, holds a copy of it, or replays it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.core.test_mending import plan_of
from tests.broker.core.test_protection import job_of, spread, words
from tests.broker.core.test_replaying import KERNELS, load_all
from tests.broker.scenario import DEVICE, Scenario, plan_over, sent, told

from farflung.broker.core import events
from farflung.broker.core.events import Reply, RunPlanner, SendLoad
from farflung.broker.core.protecting import home
from farflung.broker.core.protecting.protection import shares_of
from farflung.broker.core.records import FAILED, LOADING, PLANNING, QUEUED, RUNNING, State
from farflung.broker.core.state import durable, replay
from farflung.broker.core.trusting.events import RemovalAsked
from farflung.broker.planning.messages import PlanResult
from farflung.plans import Prediction, Wishes
from farflung.plans.codec_pair import codebook_of
from farflung.plans.wishes import KeepHome
from farflung.protocol.members import MemberChanged
from farflung.protocol.messages import (
    Accepted,
    CheckSaid,
    Considered,
    Denied,
    RolledBack,
    StandBy,
    Standbys,
)
from farflung.protocol.registration import Device
from farflung.protocol.worker import SegmentProgram


def at(*workers: str) -> Wishes:
    """Inputs and targets stay with these workers."""
    return Wishes(home=KeepHome(("inputs", "targets"), workers))


def join(story: Scenario, *workers: str, of: Sequence[str] = (), device: Device = DEVICE) -> None:
    """Workers of whom their owners say that they are home workers of the submitters `of`."""
    for worker in workers:
        story.join(worker, disk_bytes=10**9, home_of=of, device=device)


def place(*strangers: str, device: Device = DEVICE) -> Scenario:
    """Workers a, b and c run job-1, version 0 is stable, and two steps are done since.

    a and b are at home, and a has both ends of the model; so is e, which is not there. Strangers have joined
    since.
    """
    story = Scenario()
    join(story, "a", "b", "e", of=["ana"], device=device)
    story.leave("e")
    join(story, "c", device=device)
    if device is KERNELS:
        story.logged_from = 0
    story.running(3, steps=2000, wishes=at("a", "b", "e"))
    story.all_ready(0)
    spread(story, 0)
    for unit in (1, 2):
        story.all_ready(unit)
    join(story, *strangers, device=device)
    return story


def check(state: State, job: str = "job-1") -> None:
    """No stranger has, holds or reads what tells of data at home."""
    held = state.jobs[job]
    if held.plan is None:
        return
    bound = held.plan.at_home()
    homely = set(home.home_workers(state, held, state.workers.keys()))
    assert bound <= homely
    for owner, holder in (*held.holders.items(), *held.standbys.items()):
        assert owner not in bound or holder in homely
    shares = {min(held.plan.segments_of(name)): name for name in bound}
    for worker in state.workers.values():
        copies = {copy.share for copy in worker.held if copy.version.attempt == held.attempt}
        assert worker.worker in homely or copies.isdisjoint(shares)


def denial(story: Scenario, wishes: Wishes, **changes: object) -> str:
    (reply,) = [one for one in story.submit(1, wishes=wishes, **changes).commands if isinstance(one, Reply)]
    assert isinstance(reply.message, Denied) and "\n" not in reply.message.reason
    return reply.message.reason


def test_a_stranger_cannot_call_another_owners_worker_its_home() -> None:
    story = Scenario()
    join(story, "a", of=["bob"])
    join(story, "c")
    for worker in "ac":
        assert f"no owner says that {worker} is at home for ana" in denial(story, at(worker))
    assert "no worker z has joined this broker: start your home worker first" in denial(story, at("a", "z"))
    assert not story.state.jobs


def test_a_job_that_may_use_no_home_worker_is_denied() -> None:
    story = Scenario()
    join(story, "a", of=["ana"])
    join(story, "c")
    assert "no home worker is among those that the job may use" in denial(story, at("a"), on=["c"])


def test_a_job_of_which_all_is_checked_needs_a_second_home_worker() -> None:
    story = Scenario()
    join(story, "a", "b", of=["ana"])
    join(story, "c")
    cure = "only a home worker may check a part that reads data kept at home; name another one (--home)"
    assert cure in denial(story, at("a"), verify=1.0)
    assert "home_noise cannot be checked" in denial(story, at("a", "b"), verify=0.1, home_noise=0.1)
    story.submit(1, wishes=at("a", "b"), verify=1.0)
    story.submit(1, wishes=at("a"), verify=0.5)
    assert len(story.state.jobs) == 2


def checked(verify: float) -> Scenario:
    """As `place`, with checks; no home worker is idle, but a stranger is: d."""
    story = Scenario()
    join(story, "a", "b", of=["ana"], device=KERNELS)
    join(story, "c", "d", device=KERNELS)
    story.logged_from = 0
    story.running(3, steps=2000, wishes=at("a", "b"), verify=verify)
    story.all_ready(0)
    spread(story, 0)
    return story


def test_a_stranger_does_not_check_a_home_worker_and_a_line_says_who_could() -> None:
    owner, *_ = checked_said(story := checked(1.0))
    assert "the kernels of a, and none is there yet; for a it must be a home worker" in owner.words
    waits = job_of(story).words
    assert "a's part of step 1: no idle home worker of the same kernels is there: only a home" in waits
    some = checked_said(checked(0.999999))
    assert "is not checked, because no idle home worker of the same kernels is there" in some[0].words
    assert job_of(story).checks.running is None


def checked_said(story: Scenario) -> list[CheckSaid]:
    return [one for one in told(story.commands) if isinstance(one, CheckSaid)]


def test_a_job_waits_for_a_home_worker_and_holds_no_other_up() -> None:
    story = Scenario()
    join(story, "a", of=["ana", "bob"])
    join(story, "c")
    story.leave("a")
    outcome = story.submit(1, wishes=at("a"))
    assert job_of(story).state == QUEUED
    (said,) = [one for one in told(outcome.commands) if isinstance(one, Accepted)]
    assert said.state.startswith("waiting for a at home")
    story.submit(1, submitter="bob")
    assert story.state.jobs["job-2"].state == PLANNING
    join(story, "a", of=["ana", "bob"])
    assert job_of(story).state == PLANNING and job_of(story).members == ("a",)


def test_a_job_says_that_its_home_worker_came_back_without_its_submitter() -> None:
    story = Scenario()
    join(story, "a", of=["ana"])
    story.leave("a")
    story.submit(1, wishes=at("a"))
    join(story, "a")
    assert "a is there, but was started without --home-of ana: start it again" in job_of(story).words
    story.feed(RemovalAsked(story.now, "a", "worker", "olga", "a test"))
    assert "a was removed: farflung member allow a" in job_of(story).words


def test_each_home_worker_that_is_removed_or_not_at_home_is_named() -> None:
    story = Scenario()
    join(story, "a", "b", "c", "d", of=["ana"])
    for worker in "abcd":
        story.leave(worker)
    story.submit(1, wishes=at("a", "b", "c", "d"))
    for worker in "ab":
        story.feed(RemovalAsked(story.now, worker, "worker", "olga", "a test"))
    removed = "a, b were removed: farflung member allow a, farflung member allow b"
    assert job_of(story).words.endswith(f"at home: {removed}")
    join(story, "c", "d")
    words = "c, d are there, but were started without --home-of ana: start one of them again with it"
    assert job_of(story).words.endswith(f"at home: {removed}; {words}")


def removal(story: Scenario, worker: str) -> str:
    """What an operator hears who removes a worker."""
    outcome = story.feed(RemovalAsked(story.now, worker, "worker", "olga", "a test"))
    (found,) = [one.message for one in outcome.commands if isinstance(one, Reply)]
    assert isinstance(found, MemberChanged)
    return found.words


def test_an_operator_hears_who_may_take_the_share_of_a_removed_home_worker() -> None:
    lost = ", and what only its disk had is lost"
    assert removal(place(), "a") == f"only another home worker of job-1 may take its share of it{lost}"
    assert removal(place(), "c") == "job-1 goes on with others as soon as there are enough"
    story = Scenario()
    join(story, "a", of=["ana"])
    story.submit(1, wishes=at("a"))
    assert job_of(story).state == PLANNING
    assert removal(story, "a") == "job-1, which was being planned, has to do without it"


def test_the_planner_hears_only_of_home_workers_whose_owners_agree() -> None:
    story = Scenario()
    join(story, "a", "b", of=["ana"])
    story.submit(2, wishes=at("a", "b"))
    story.cancel(collect=False)
    join(story, "b")  # its owner has started it anew, without a word of ana
    story.state = replay([], story.state)
    story.leave("b")
    story.join("b", boot="boot-2", disk_bytes=10**9)
    assert denial(story, at("a", "b"))
    story.submit(2, wishes=at("a"))
    asked = [one for one in story.commands if isinstance(one, RunPlanner)][-1]
    assert asked.wishes.home.workers == ("a",)


def test_home_workers_hold_each_others_copies_and_strangers_none_of_theirs() -> None:
    story = place()
    assert job_of(story).holders == {"a": "b", "b": "a", "c": job_of(story).holders["c"]}
    assert words(story).startswith("protected up to step 1")
    check(story.state)


def alone(*strangers: str) -> Scenario:
    """As `place`, but a is the only home worker."""
    story = Scenario()
    join(story, "a", of=["ana"], device=KERNELS)
    join(story, "b", "c", device=KERNELS)
    story.logged_from = 0
    story.running(3, steps=2000, wishes=at("a"))
    story.all_ready(0)
    assert job_of(story).holders == {"b": "c", "c": "b"}
    for share, owner in enumerate("abc"):
        story.copied(owner, 0, share)
    assert job_of(story).versions.stable is None  # b and c lack the copies of each other
    story.copied("c", 0, 1)
    story.copied("b", 0, 2)
    assert job_of(story).versions.stable is not None
    story.all_ready(1)
    join(story, *strangers, device=KERNELS)
    return story


def test_one_home_worker_alone_keeps_its_copy_to_itself_and_others_are_protected() -> None:
    story = alone("d")
    assert "not protected: a alone has its part of step 1; it is home to what its part tells" in words(story)
    assert set(job_of(story).standbys) <= {"b", "c"} and job_of(story).standbys
    check(story.state)
    story.leave("c")
    assert job_of(story).keeps and job_of(story).members == ("a", "b", "d")  # no step is lost
    check(story.state)


def test_a_lost_home_worker_that_is_alone_is_waited_for_and_goes_on_from_its_disk() -> None:
    story = alone("d")
    held = list(story.state.workers["a"].held)
    story.leave("a")
    story.tick(120)
    assert job_of(story).state not in (RUNNING, FAILED)
    story.join("a", device=KERNELS, disk_bytes=10**9, home_of=["ana"], boot="boot-2", held=held)
    story.tick(1)
    assert job_of(story).state == LOADING and job_of(story).restores | job_of(story).keeps
    assert job_of(story).members[0] == "a"
    check(story.state)


def test_a_stranger_stands_by_for_strangers_only() -> None:
    story = place("d")
    assert job_of(story).standbys == {"b": "d", "c": "d"}  # b is at home, and reads nothing that stays there
    join(story, "e", of=["ana"])
    story.now += 1000.0  # until another version is due
    for unit in range(3, 9):
        story.all_ready(unit)
        if job_of(story).versions.under_way is not None:
            spread(story, unit)
    assert job_of(story).standbys["a"] == "e" and job_of(story).standbys.get("c") == "d"
    asked = [one.standbys for one in sent(story.commands, "d") if isinstance(one, StandBy | Standbys)]
    assert asked and not any("a" in owners for owners in asked)
    check(story.state)


@pytest.mark.parametrize("device", [DEVICE, KERNELS])
def test_no_stranger_takes_the_place_of_a_lost_home_worker(device: Device) -> None:
    story = place("d", device=device)
    story.leave("a")
    job = job_of(story)
    assert "d" not in job.members and job.state != RUNNING
    check(story.state)
    join(story, "e", of=["ana"], device=device)
    story.tick(1)
    check(story.state)
    assert job_of(story).state == LOADING and "e" in job_of(story).members


def noisy(codec: str = "") -> Scenario:
    """As in `place`, with noise on what leaves home; e and d have joined since."""
    story = Scenario()
    join(story, "a", "b", "e", of=["ana"], device=KERNELS)
    story.leave("e")
    join(story, "c", device=KERNELS)
    story.logged_from = 0
    codecs = {"codecs": codebook_of([codec])} if codec else {}
    story.running(3, steps=2000, wishes=at("a", "b", "e"), home_noise=0.5, **codecs)
    story.all_ready(0)
    spread(story, 0)
    for unit in (1, 2):
        story.all_ready(unit)
    join(story, "e", of=["ana"], device=KERNELS)
    join(story, "d", device=KERNELS)
    return story


def rollback_of(story: Scenario) -> str:
    """Why a job has rolled back; empty if it has not."""
    check(story.state)
    return next((one.reason for one in told(story.commands) if isinstance(one, RolledBack)), "")


def test_another_home_worker_runs_units_again_though_it_draws_other_noise() -> None:
    story = noisy()
    story.leave("a")
    assert not rollback_of(story) and job_of(story).replayers == ("e",)


@pytest.mark.parametrize(("codec", "also_lost"), [("int8/int8", ""), ("", "c")])
def test_no_units_run_again_whose_noise_others_or_codecs_depend_on(codec: str, also_lost: str) -> None:
    story = noisy(codec)
    for name in filter(None, ("a", also_lost)):
        story.leave(name)
    assert "no other worker draws the noise on what left home again" in rollback_of(story)
    assert not job_of(story).replayers


def test_a_stranger_does_not_run_units_again_for_which_a_home_worker_has_other_noise_than_before() -> None:
    """A home worker that has taken over gives nothing from before, so it would have to run again, too."""
    story = noisy()
    story.leave("a")
    load_all(story)
    story.logged_from = 3
    story.ready("e", 3)
    story.leave("c")
    assert "no other worker draws the noise on what left home again" in rollback_of(story)


@pytest.mark.parametrize("device", [DEVICE, KERNELS])
def test_a_stranger_replaces_a_stranger(device: Device) -> None:
    story = place("d", device=device)
    story.leave("c")
    assert job_of(story).state == LOADING and job_of(story).members == ("a", "b", "d")
    check(story.state)


def result(*workers: str) -> PlanResult:
    """A plan over these workers, the first of which has both ends."""
    plan = plan_over(list(workers))
    plan = msgspec.structs.replace(plan, home=[0, len(plan.placements) - 1])
    names = [f"weight-{part.segment}" for part in plan.placements]
    programs = [SegmentProgram(number, b"program", {name: 4}) for number, name in enumerate(names)]
    return PlanResult(plan, programs, [[name] for name in names], Prediction("auto", 0.5, "the device of a"))


def test_a_plan_that_shows_a_stranger_data_is_refused_whoever_made_it() -> None:
    story = Scenario()
    join(story, "a", of=["ana"])
    join(story, "c")
    story.submit(2, wishes=at("a"))
    outcome = story.feed(events.PlanMade(story.now, "job-1", 1, result("c", "a")))
    assert not [one for one in outcome.commands if isinstance(one, SendLoad)]
    assert job_of(story).state == FAILED
    assert "c would read data that stays at home" in job_of(story).reason


@pytest.mark.parametrize(("workers", "moves"), [(("c", "a", "b"), False), (("b", "a", "d"), True)])
def test_a_job_moves_only_to_plans_that_keep_data_at_home(workers: tuple[str, ...], moves: bool) -> None:
    story = place("d")
    for unit in range(3, 8):
        story.all_ready(unit)
        if job_of(story).versions.under_way is not None:
            spread(story, unit)
    story.tick(1)
    assert job_of(story).replanning.is_busy
    outcome = story.feed(events.PlanConsidered(story.now, "job-1", 1, result(*workers), 1.0))
    (said,) = [one for one in told(outcome.commands) if isinstance(one, Considered)]
    assert said.moves is moves


def test_no_stranger_reads_a_share_that_only_home_workers_have() -> None:
    story = place("d")
    story.leave("c")
    story.leave("d")
    story.tick(60)
    assert job_of(story).state == PLANNING
    plan = result("a", "b")
    given = msgspec.structs.replace(plan, owned=[["weight-0"], ["weight-1", "weight-2"], ["weight-3"]])
    story.feed(events.PlanMade(story.now, "job-1", job_of(story).attempt, given))
    assert job_of(story).state == LOADING
    story = place()
    story.leave("b")
    story.tick(60)
    assert job_of(story).state == PLANNING and job_of(story).members == ("a", "c")
    moved = msgspec.structs.replace(result("a", "c"), owned=[[], ["weight-0", "weight-1"], ["weight-2"]])
    outcome = story.feed(events.PlanMade(story.now, "job-1", job_of(story).attempt, moved))
    assert not [one for one in outcome.commands if isinstance(one, SendLoad)]
    assert job_of(story).state != LOADING


def test_a_replay_of_the_log_knows_who_is_at_home() -> None:
    story = place()
    assert durable(replay(fact for fact in story.facts if hasattr(fact, "at"))).workers["a"].home_of
    story.restart()
    assert story.state.workers["a"].home_of == ("ana",) and not story.state.workers["c"].home_of


def replicated() -> Scenario:
    """Workers a and b, and c and d run job-1 in two pipelines, whose first segments are bound to home."""
    story = Scenario()
    join(story, "a", "c", "e", of=["ana"], device=KERNELS)
    story.leave("e")
    join(story, "b", "d", device=KERNELS)
    story.submit(4, steps=20, microbatches=6, wishes=at("a", "c", "e"))
    plan = msgspec.structs.replace(plan_of("abcd"), home=[0, 2])
    owned = [[f"weight-{part.segment % 2}"] for part in plan.placements]
    programs = [SegmentProgram(n, b"program", {names[0]: 4}) for n, names in enumerate(owned)]
    story.feed(events.PlanMade(story.now, "job-1", 1, PlanResult(plan, programs, owned, None)))
    load_all(story)
    story.all_ready(0)
    return story


def test_no_stranger_gets_the_place_of_a_home_worker_in_a_pipeline() -> None:
    story = replicated()
    join(story, "f", device=KERNELS)
    story.leave("a")
    check(story.state)
    assert set(job_of(story).members) == {"c", "d"}  # the other pipeline goes on alone
    load_all(story)
    story.all_ready(1)
    assert "f" not in job_of(story).members
    join(story, "e", of=["ana"], device=KERNELS)
    for unit in range(2, 12):  # it grows after a unit without a version under way
        if (version := job_of(story).versions.under_way) is not None:
            copied(story, version.name.unit)
        if "e" not in job_of(story).members:
            story.all_ready(unit)
        check(story.state)
    assert "e" in job_of(story).members and job_of(story).plan.at_home() == {"c", "e"}  # type: ignore[union-attr]


def copied(story: Scenario, unit: int) -> None:
    """Every member and its holder, if it may have one, have its copy."""
    plan = job_of(story).plan
    assert plan is not None
    for share, owner in shares_of(plan).items():
        for worker in (owner, job_of(story).holder_of(owner)):
            if worker:
                story.copied(worker, unit, share)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_whatever_happens_no_stranger_gets_what_stays_at_home(seed: int) -> None:
    draw = random.Random(seed)
    device = draw.choice([DEVICE, KERNELS])
    story = place(device=device) if draw.random() < 0.7 else alone()
    names = {"a": ["ana"], "b": ["ana"], "e": ["ana"], "c": [], "d": [], "f": []}
    unit = 3
    for _ in range(40):
        job = job_of(story)
        connected = [
            name for name in names if name in story.state.workers and story.state.workers[name].connected
        ]
        what = draw.choice(["step", "step", "lose", "join", "tick", "plan", "load"])
        if what == "lose" and connected:
            story.leave(draw.choice(connected))
        elif what == "join" and (gone := sorted(names.keys() - set(connected))):
            name = draw.choice(gone)
            join(story, name, of=names[name], device=device)
        elif what == "tick":
            story.tick(draw.choice([1.0, 60.0]))
        elif what == "plan" and job.state == PLANNING:
            members = sorted(job.members, key=lambda name: draw.random())
            plan = result(*members[:3])
            story.feed(events.PlanMade(story.now, "job-1", job.attempt, plan))
        elif what == "load" and job.state == LOADING:
            for name in job.members:
                story.loaded(name, attempt=job.attempt)
        elif what == "step" and job.state == RUNNING and job.unit is not None:
            unit = job.unit.number
            story.all_ready(unit)
            if job_of(story).versions.under_way is not None and draw.random() < 0.7:
                copied(story, unit)
        check(story.state)
