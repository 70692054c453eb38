"""A lost worker's share is taken over, and all others keep their state: they run no decided unit again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.broker.core.test_protection import job_of, spread
from tests.broker.scenario import DEVICE, Scenario, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import Send, SendLoad
from farflung.broker.core.protecting.versions import WEAR
from farflung.broker.core.state import durable, replay
from farflung.plans import LinkCodec
from farflung.protocol.copies import CopyLost, StateVersion
from farflung.protocol.messages import (
    Begin,
    Broken,
    Continue,
    Load,
    Planned,
    Refused,
    RolledBack,
    SendState,
)

KERNELS = msgspec.structs.replace(DEVICE, kernels="these kernels")


def place(units: int = 4, stands_by: bool = True, kind: str = "cpu", **changes: object) -> Scenario:
    """Workers a, b and c run job-1, and d is idle; version 0 is stable, and `units` units are decided.

    If d `stands_by`, version 1 is stable, too, and d has the copies of all of them. The next version is 50 s
    later, because disks wear. All have devices of one `kind`.
    """
    story, device = Scenario(), msgspec.structs.replace(KERNELS, kind=kind)
    story.copy_bytes = round(25 * WEAR)
    for worker in "abc":
        story.join(worker, device=device, disk_bytes=10**9)
    story.logged_from = 0
    story.running(3, **{"steps": 20, **changes})
    if stands_by:
        story.join("d", device=device, disk_bytes=10**9)
    story.all_ready(0)
    spread(story, 0)
    if not stands_by:
        story.join("d", device=device, disk_bytes=10**9)
    for unit in range(1, units):
        story.all_ready(unit)
        if stands_by and unit == 1:
            spread(story, unit)
    return story


def load_all(story: Scenario) -> None:
    for worker in job_of(story).members:
        story.loaded(worker, attempt=job_of(story).attempt)


def loads(story: Scenario) -> list[Load]:
    return [one.load for one in story.commands if isinstance(one, SendLoad) and one.worker == "d"]


def continues(story: Scenario) -> dict[str, Continue]:
    found = [one for one in story.commands if isinstance(one, Send) and isinstance(one.message, Continue)]
    return {one.worker: one.message for one in found}


def rollbacks(story: Scenario) -> list[RolledBack]:
    return [message for message in told(story.commands) if isinstance(message, RolledBack)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_gpus_run_past_units_again_only_if_their_bits_repeat(deterministic: bool) -> None:
    story = place(kind="cuda", deterministic=deterministic)
    story.leave("b")
    assert job_of(story).replayers == (("d",) if deterministic else ())
    if not deterministic:
        assert "a GPU computes other bits" in rollbacks(story)[0].reason


def test_a_replayer_that_cannot_take_the_copy_is_left_out_at_once() -> None:
    story = place(stands_by=False)
    story.leave("b")
    assert job_of(story).replayers == ("d",)
    lost = CopyLost("job-1", 2, StateVersion(1, 0), 1, "copies take 4 GB: raise --disk")
    story.feed(events.WorkerMessage(story.now, "d", lost))
    job = job_of(story)
    assert (job.state, job.step, job.attempt, job.members) == ("planning", 1, 3, ("a", "c"))
    assert "raise --disk" in job.unable["d"]


def test_an_idle_worker_runs_the_units_since_the_stable_version_again_and_the_others_wait() -> None:
    story = place()
    story.ready("a", 4)
    story.leave("b")
    job = job_of(story)
    assert (job.state, job.attempt, job.step, job.replayers) == ("loading", 2, 4, ("d",))
    assert job.plan is not None and job.plan.workers() == ["a", "d", "c"]
    (load,) = loads(story)
    assert (load.unit, load.version, load.donors) == (2, StateVersion(1, 1), {})
    scales = [fact.scale for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    assert [past.scale for past in load.history] == scales[2:]
    assert all(past.digests.keys() == {1} for past in load.history)
    for worker in "ac":
        message = continues(story)[worker]
        assert (message.unit, message.replayers, message.replay_from) == (4, ["d"], 2)
        assert message.plan == job.plan and message.holders == job.holders
    planned = [message for message in told(story.commands) if isinstance(message, Planned)][-1]
    assert (planned.keeps, planned.unit, planned.replayers, planned.replay_from) == (True, 4, ["d"], 2)
    load_all(story)
    begun = [one.worker for one in story.commands if isinstance(one, Send) and isinstance(one.message, Begin)]
    assert begun[-3:] == ["a", "d", "c"] and not rollbacks(story)
    for unit in range(4, 20):
        story.all_ready(unit)
    assert job_of(story).state == "collecting"
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)


def test_a_version_of_the_newest_unit_needs_no_unit_again() -> None:
    story = place(units=2)
    story.logged_from = None
    story.leave("b")
    assert job_of(story).replayers == ("d",) and loads(story)[0].history == []


def test_codecs_are_those_of_each_unit_and_name_the_new_worker() -> None:
    story = place(units=3, codecs=("int8",))
    before = LinkCodec("a", "b", "int8", 4.0)
    story.take(facts.CodecsDecided(story.now, "job-1", 1, 3, [before], []))
    story.all_ready(3)
    story.leave("b")
    after = LinkCodec("a", "d", "int8", 4.0)
    assert [past.codecs for past in loads(story)[0].history] == [(after,), None]
    assert job_of(story).codecs == (after,)


def test_a_worker_that_is_lost_while_the_weights_are_sent_is_replaced_too() -> None:
    story = place(units=4, steps=4)
    assert job_of(story).state == "collecting"
    story.leave("b")
    assert (job_of(story).state, job_of(story).replayers) == ("loading", ("d",))
    assert len(loads(story)[0].history) == 2 and continues(story)["a"].unit == 4
    assert "worker b was lost while the weights of step 4 were collected" in continues(story)["a"].reason
    load_all(story)
    sent = [
        one.worker for one in story.commands if isinstance(one, Send) and isinstance(one.message, SendState)
    ]
    assert sent[-3:] == ["a", "d", "c"] and job_of(story).state == "collecting"


def test_a_job_that_its_user_stops_moves_on_for_the_reason_that_it_has() -> None:
    """What its submitter prints names the lost worker, and not that the user has stopped the run."""
    story = place(units=2)
    story.cancel(collect=True)
    story.leave("b")
    (planned,) = [one for one in told(story.commands) if isinstance(one, Planned) and one.replayers]
    assert planned.reason == continues(story)["a"].reason
    assert planned.reason.startswith("worker b was lost while the weights of step 2 were collected")
    assert job_of(story).reason == "Ctrl-C"


def test_a_worker_that_returns_before_it_heard_that_it_takes_over_hears_it_again() -> None:
    story = place()
    story.leave("b")
    before = len(loads(story))
    story.join("d", silent_seconds=3.0, device=KERNELS, disk_bytes=10**9)
    assert (job_of(story).state, job_of(story).replayers) == ("loading", ("d",))
    assert len(loads(story)) == before + 1 and not rollbacks(story)


def nothing_logged(story: Scenario) -> None:
    story.logged_from = None
    story.all_ready(4)


def logged_too_late(story: Scenario) -> None:
    story.logged_from = 3
    story.all_ready(4)


@pytest.mark.parametrize("why", [nothing_logged, logged_too_late])
def test_else_the_job_goes_back_to_the_stable_version(why: Callable[[Scenario], None]) -> None:
    story = place()
    why(story)
    story.leave("b")
    assert [message.unit for message in rollbacks(story)] == [2]


@pytest.mark.parametrize(
    "trouble",
    [
        Refused("job-1", 2, "unit 2 has other numbers than it had before its worker was lost"),
        CopyLost("job-1", 2, StateVersion(1, 1), 1, "it is damaged"),
    ],
)
def test_what_cannot_be_replayed_leads_back_to_the_stable_version(trouble: Refused | CopyLost) -> None:
    story = place()
    story.leave("b")
    story.feed(events.WorkerMessage(story.now, "d", trouble))
    assert [message.unit for message in rollbacks(story)] == [2] and job_of(story).replayers == ()


def test_workers_that_link_up_again_keep_their_state_when_one_of_them_is_lost() -> None:
    story = place()
    story.feed(events.WorkerMessage(story.now, "a", Broken("job-1", 1, "cut", "b")))
    assert job_of(story).keeps and job_of(story).attempt == 2
    story.leave("b")
    assert (job_of(story).replayers, job_of(story).attempt, len(loads(story)[0].history)) == (("d",), 3, 2)


def test_a_history_ends_where_a_newer_version_is_stable() -> None:
    story = place(units=3, steps=100)
    unit = 3
    while not [fact for fact in story.facts if isinstance(fact, facts.UnitDecided)][-1].copy:
        story.all_ready(unit)
        unit += 1
    version = unit - 1
    story.all_ready(unit)
    assert len(job_of(story).history.units) == unit - 1
    spread(story, version)
    assert (job_of(story).history.first, len(job_of(story).history.units)) == (version + 1, 1)
