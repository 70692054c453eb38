from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.broker.copy_laws import check_copies
from tests.broker.scenario import (
    DEVICE,
    EMULATED_DEVICE,
    Admit,
    Reject,
    Reply,
    RunPlanner,
    Scenario,
    loads,
    plan_over,
    sent,
    told,
    training,
)

from farflung.broker.core import events, facts, log_lines
from farflung.broker.core.events import Send, SendToSubmitter
from farflung.broker.core.state import LEAST_MEASURING_SECONDS, durable, reduce_fact, replay
from farflung.broker.core.training.job_queue import planning_words
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.broker.planning.messages import PlanResult
from farflung.errors import FarflungError, ProtocolError
from farflung.plans.ability import Ability
from farflung.plans.rates import Rates
from farflung.protocol import messages
from farflung.protocol.fields import TEXT_LENGTH, Opset
from farflung.protocol.messages import (
    Accepted,
    Begin,
    Broken,
    Collecting,
    Decide,
    Denied,
    Ended,
    Keep,
    Kept,
    PeerMoved,
    Planned,
    Refused,
    Register,
    Registered,
    Return,
    RolledBack,
    Running,
    SendState,
    Stop,
    Submit,
    UnitDone,
    UnitReady,
)
from farflung.protocol.registration import Measured, Standing
from farflung.protocol.worker import Share


def ended(story: Scenario, job: str = "job-1") -> Ended:
    (end,) = [message for message in told(story.commands, job) if isinstance(message, Ended)]
    return end


@pytest.mark.parametrize("emulated", [False, True])
def test_no_job_runs_on_real_and_emulated_workers(emulated: bool) -> None:
    story = Scenario("lab-1")
    story.join("fake-1", device=EMULATED_DEVICE)
    kind = "emulated worker" if emulated else "worker"
    waits = [Accepted("job-1", f"waiting for 1 more {kind} (have 1, the job needs 2)", missing=1)]
    assert told(story.submit(2, emulated=emulated).commands) == waits
    outcome = story.join("fake-2", device=EMULATED_DEVICE)
    assert bool(told(outcome.commands)) == emulated
    if not emulated:
        outcome = story.join("lab-2")
    chosen = ("fake-1", "fake-2") if emulated else ("lab-1", "lab-2")
    assert [c.workers for c in outcome.commands if isinstance(c, RunPlanner)] == [chosen]


def test_a_job_runs_from_its_submission_to_its_end() -> None:
    story = Scenario("lab-1", "lab-2")
    outcome = story.submit(2)
    assert told(outcome.commands) == [Accepted("job-1", "planning for 2 workers")]
    assert [c.workers for c in outcome.commands if isinstance(c, RunPlanner)] == [("lab-1", "lab-2")]
    outcome = story.planned()
    load = loads(outcome)["lab-1"]
    assert [program.segment for program in load.programs] == [0, 2]
    assert load.addresses == {"lab-2": ["lab-2.example:7000"]}
    assert load.submitter == "ana"
    (planned,) = told(outcome.commands)
    assert isinstance(planned, Planned)
    assert set(planned.addresses) == {"lab-1", "lab-2"}
    assert planned.owned == [["weight-0"], ["weight-1"], ["weight-2"]]
    assert not story.loaded("lab-1").commands
    outcome = story.loaded("lab-2")
    assert sent(outcome.commands, "lab-1") == sent(outcome.commands, "lab-2") == [Begin("job-1", 1)]
    assert told(outcome.commands) == [Running("job-1", 1)]
    for unit in range(3):
        assert not story.ready("lab-2", unit).commands
        outcome = story.ready("lab-1", unit)
        scale = 1.0 / (math.sqrt(12.0) + 1e-6)
        assert sent(outcome.commands, "lab-2")[0] == Decide("job-1", 1, unit, scale)
        done = UnitDone("job-1", 1, unit, 1.5, math.sqrt(12.0), 20, squares={0: 4.0, 1: 4.0, 2: 4.0})
        assert told(outcome.commands)[0] == done
    assert sent(outcome.commands, "lab-1")[1:] == [SendState("job-1", 1)]
    assert told(outcome.commands)[1:] == [Collecting("job-1", 1, 3, "done", "")]
    outcome = story.collected()
    assert sent(outcome.commands, "lab-1") == [Stop("job-1", 1, "done", over=True)]
    assert told(outcome.commands) == [Ended("job-1", "done", "")]
    assert story.state.backup_pool() == ["lab-1", "lab-2"]


def test_a_registered_worker_hears_its_lease() -> None:
    outcome = Scenario().join("lab-1")
    assert isinstance(outcome.commands[0], Admit)
    assert sent(outcome.commands, "lab-1") == [Registered("lab-1")]


def test_a_job_waits_for_workers_and_says_for_how_many() -> None:
    story = Scenario("lab-1")
    outcome = story.submit(2)
    assert told(outcome.commands) == [
        Accepted("job-1", "waiting for 1 more worker (have 1, the job needs 2)", missing=1)
    ]
    assert not told(story.feed(events.Tick(story.now, 900.0)).commands)
    outcome = story.join("lab-2")
    assert [type(message) for message in told(outcome.commands)] == [Accepted]
    assert story.state.jobs["job-1"].state == "planning"


def test_zero_workers_means_every_idle_one_and_at_least_one() -> None:
    story = Scenario()
    assert "waiting for 1 more worker (have 0, the job needs 1)" in str(story.submit(0).commands)
    story.join("lab-1")
    assert story.state.jobs["job-1"].members == ("lab-1",)
    story = Scenario("c", "a", "b")
    story.submit(0)
    assert story.state.jobs["job-1"].members == ("a", "b", "c")


def test_a_job_may_name_its_workers_in_order() -> None:
    story = Scenario("a", "b", "c")
    outcome = story.submit(on=["d", "a"])
    assert told(outcome.commands) == [Accepted("job-1", "waiting for d (have 1, the job needs 2)", missing=1)]
    story.join("d")
    assert story.state.jobs["job-1"].members == ("d", "a")
    crowd = Scenario().submit(on=[f"w-{number}" for number in range(9)])
    assert "w-3, w-4 and 4 more (have 0, the job needs 9)" in str(told(crowd.commands))


@pytest.mark.parametrize(("workers", "on"), [(2, ["a"]), (2, ["a", "a"]), (0, ["a", "a"])])
def test_named_workers_are_counted_and_different(workers: int, on: list[str]) -> None:
    with pytest.raises(ValueError, match="all with different names"):
        Submit("gpt", b"graph", training(), workers, on)


def test_named_workers_that_need_not_all_have_a_part_are_awaited_all_the_same() -> None:
    story = Scenario("a")
    topology_of_three = Submit("gpt", b"graph", training(), 0, ["c", "a", "b"])
    outcome = story.feed(events.SubmitterMessage(story.now, "ana", topology_of_three, "192.0.2.9:1"))
    assert told(outcome.commands) == [
        Accepted("job-1", "waiting for c, b (have 1, the job needs 3)", missing=2)
    ]
    story.join("b")
    (command,) = [c for c in story.join("c").commands if isinstance(c, RunPlanner)]
    assert (command.workers, command.count) == (("c", "a", "b"), 0)


def test_a_job_that_counts_its_workers_gets_the_best_of_the_pool() -> None:
    story = Scenario("a", "b", "c")
    outcome = story.submit(2)
    assert told(outcome.commands) == [Accepted("job-1", "planning for 2 of 3 workers")]
    (command,) = [c for c in outcome.commands if isinstance(c, RunPlanner)]
    assert (command.workers, command.count) == (("a", "b", "c"), 2)
    story.feed(events.PlanMade(story.now, "job-1", 1, PlanResult(plan_over(["c", "a"]), [], [], None)))
    assert story.state.backup_pool() == ["b"]


def test_workers_that_the_plan_leaves_out_go_back_to_the_pool() -> None:
    story = Scenario("a", "b", "c")
    story.submit(0)
    story.feed(events.PlanMade(story.now, "job-1", 1, PlanResult(plan_over(["a", "b"]), [], [], None)))
    assert story.state.backup_pool() == ["c"]
    assert story.state.jobs["job-1"].members == ("a", "b")


def test_jobs_queue_in_order_even_when_a_later_one_would_fit() -> None:
    story = Scenario("a", "b", "c")
    story.running(2)
    assert "waiting for 1 more worker (have 1, the job needs 2; 2 workers are busy with job-1)" in str(
        story.submit(2).commands
    )
    assert "waiting for job-2" in str(story.submit(1, submitter="bo").commands)
    story.cancel(collect=False)
    story.planned("job-2")
    assert story.state.jobs["job-2"].members == ("a", "b")
    assert story.state.jobs["job-3"].members == ("c",)


def test_evaluations_stand_between_steps() -> None:
    story = Scenario("a")
    story.running(1, steps=2, validate_every=1, validation_microbatches=3)
    for unit in range(5):
        story.all_ready(unit)
    decided = [message for message in sent(story.commands, "a") if isinstance(message, Decide)]
    assert [message.scale == 1.0 for message in decided] == [True, False, True, False, True]
    assert story.state.jobs["job-1"].state == "collecting"
    assert story.state.jobs["job-1"].step == 2


def test_a_loss_that_is_not_a_number_ends_the_job_with_the_last_good_weights() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.all_ready(0)
    before = len(story.commands)
    story.all_ready(1, loss=math.nan, finite=False)
    assert not [c for c in story.commands[before:] if isinstance(c, Send) and isinstance(c.message, Decide)]
    assert sent(story.commands[before:], "b") == [SendState("job-1", 1)]
    (collecting,) = told(story.commands[before:])
    assert isinstance(collecting, Collecting)
    assert (collecting.step, collecting.state) == (1, "failed")
    assert "the loss became NaN at step 2" in collecting.reason
    assert "the weights of step 1 (last good) are kept" in collecting.reason
    story.collected()
    assert ended(story) == Ended("job-1", "failed", collecting.reason)


def test_cancelling_collects_the_last_applied_step() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.all_ready(0)
    story.ready("a", 1)
    outcome = story.cancel(collect=True)
    assert sent(outcome.commands, "a") == [SendState("job-1", 1)]
    assert told(outcome.commands) == [Collecting("job-1", 1, 1, "cancelled", "Ctrl-C")]
    late = UnitReady("job-1", 1, 1, [], 0)
    assert not story.feed(events.WorkerMessage(story.now, "b", late)).facts
    story.collected()
    assert ended(story) == Ended("job-1", "cancelled", "Ctrl-C")


@pytest.mark.parametrize("collect", [True, False])
def test_cancelling_before_the_first_unit_ends_at_once(collect: bool) -> None:
    story = Scenario("a")
    story.submit(2)
    story.cancel(collect)
    assert ended(story).state == "cancelled"
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    assert sent(story.cancel(collect).commands, "a") == [Stop("job-1", 1, "Ctrl-C", over=True)]
    assert ended(story).state == "cancelled"


def test_a_second_cancel_while_collecting_ends_at_once() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.cancel(collect=True)
    story.cancel(collect=False)
    assert ended(story).state == "cancelled"


def test_where_a_worker_has_moved_to_is_told_to_whom_its_plan_links_it() -> None:
    story = Scenario("lab-1", "lab-2", "lab-3")
    story.submit(2)
    story.planned()
    there = WorkerAddresses(("10.0.0.9:7001",))
    outcome = story.feed(events.WorkerMoves(story.now, "lab-1", there))
    moved = PeerMoved("lab-1", ["10.0.0.9:7001"])
    assert sent(outcome.commands, "lab-2") == [moved] and told(outcome.commands) == [moved]
    assert not sent(outcome.commands, "lab-3")
    assert len(outcome.decisions()) == 1
    assert not story.feed(events.WorkerMoves(story.now, "lab-1", there)).facts
    assert story.state.workers["lab-1"].where == there


def test_rates_that_a_worker_measures_again_are_those_of_its_device() -> None:
    story = Scenario("lab-1", "lab-2")
    before = story.state.workers["lab-1"]
    found = Measured(before.device.tflops + 3.5, Rates(bfloat16_tflops=7.0))
    assert not story.feed(events.WorkerMeasures(story.now, "lab-1", found)).facts  # so soon after joining
    story.now += LEAST_MEASURING_SECONDS
    at = story.now
    outcome = story.feed(events.WorkerMeasures(at, "lab-1", found))
    assert len(outcome.decisions()) == 1
    worker = story.state.workers["lab-1"]
    assert (worker.device.tflops, worker.device.rates) == (found.tflops, found.rates)
    assert worker.measured_at == at and worker.device.kernels == before.device.kernels
    assert not story.feed(events.WorkerMeasures(story.now, "lab-1", found)).facts
    assert story.state.workers["lab-2"].device == before.device


def test_where_a_workers_key_has_answered_is_told_until_it_claims_something_else() -> None:
    story = Scenario("lab-1", "lab-2")
    story.submit(2)
    story.planned()
    there = WorkerAddresses(("192.0.2.1:7",), ("lab.example:7", "192.0.2.66:22"), "192.0.2.1")
    assert told(story.feed(events.WorkerMoves(story.now, "lab-1", there)).commands) == [
        PeerMoved("lab-1", ["192.0.2.1:7"])
    ]
    proof = events.WorkerVerified(story.now, "lab-1", there.claims, ("198.51.100.4:7",))
    outcome = story.feed(proof)
    moved = PeerMoved("lab-1", ["192.0.2.1:7", "198.51.100.4:7"])
    assert sent(outcome.commands, "lab-2") == told(outcome.commands) == [moved]
    assert not outcome.decisions()  # after a restart it is proved anew
    assert not story.feed(proof).facts
    assert not story.feed(events.WorkerMoves(story.now, "lab-1", there)).facts
    story.feed(events.WorkerMoves(story.now, "lab-1", WorkerAddresses(there.addresses, (), there.seen)))
    assert not story.feed(proof).facts
    assert story.state.workers["lab-1"].where.visible_to("") == ["192.0.2.1:7"]


def test_where_a_workers_key_has_answered_is_forgotten_for_its_next_process() -> None:
    story = Scenario("lab-1")
    where = WorkerAddresses(claims=("198.51.100.4:7",), seen="192.0.2.1")

    def joins(boot: str) -> tuple[str, ...]:
        story.leave("lab-1")
        register = Register(DEVICE, "lab", list(where.claims), boot)
        story.feed(events.WorkerRegisters(story.now, "lab-1", register, where, None, 3.0))
        return story.state.workers["lab-1"].where.verified

    joins("boot-1")
    story.feed(events.WorkerVerified(story.now, "lab-1", where.claims, where.claims))
    assert joins("boot-1") == where.claims
    assert joins("boot-2") == ()


def test_a_lost_worker_ends_the_attempt_and_frees_the_survivors() -> None:
    story = Scenario("lab-1", "lab-2")
    story.running(2)
    story.all_ready(0)
    outcome = story.leave("lab-2")
    reason = "worker lab-2 was lost at step 2: connection reset"
    assert sent(outcome.commands, "lab-1") == [Stop("job-1", 1, reason)]
    assert not sent(outcome.commands, "lab-2")
    back, waiting = told(outcome.commands)
    assert back == RolledBack("job-1", 1, 0, 0, reason)
    words = "waiting for 1 more worker (have 1, the job needs 2), at most until 1970-01-02 00:16 UTC"
    assert waiting == Accepted("job-1", words, missing=1) and story.state.jobs["job-1"].words == words
    assert story.state.backup_pool() == ["lab-1"]
    assert story.state.workers["lab-2"].trouble == "connection reset"


@pytest.mark.parametrize("message", [Refused("job-1", 1, "out of memory"), Broken("job-1", 1, "NaN")])
def test_an_error_that_would_come_again_ends_the_job(message: Refused | Broken) -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.planned()
    story.feed(events.WorkerMessage(story.now, "b", message))
    assert message.reason in ended(story).reason
    assert "worker b" in ended(story).reason
    assert story.state.backup_pool() == ["a", "b"]


def test_what_a_worker_writes_is_one_bounded_line_for_the_submitter() -> None:
    story = Scenario("a", "b")
    story.running(2)
    hostile = "\x1b[2J\nfarflung: the job is done\r" + "x" * 1990
    story.feed(events.WorkerMessage(story.now, "b", Broken("job-1", 1, hostile)))
    reason = ended(story).reason
    assert reason.isprintable() and len(reason) <= TEXT_LENGTH
    assert messages.decode(messages.encode(ended(story)), messages.ToSubmitter) == ended(story)


def test_a_worker_lost_while_planning_sends_the_job_back_to_the_queue() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    outcome = story.leave("b")
    why, waiting = told(outcome.commands)
    assert isinstance(why, Accepted) and "worker b was lost" in why.state
    assert isinstance(waiting, Accepted) and waiting.state.startswith("waiting for 1 more worker")
    assert story.state.jobs["job-1"].words == waiting.state
    story.join("c")
    job = story.state.jobs["job-1"]
    assert (job.state, job.attempt, job.members) == ("planning", 2, ("a", "c"))
    assert not story.planned(attempt=1).facts
    assert story.planned(attempt=2).facts


def test_a_job_that_is_planned_anew_without_a_lost_worker_says_why() -> None:
    story = Scenario("a", "b")
    story.submit(0)
    why, planning = told(story.leave("b").commands)
    assert isinstance(why, Accepted) and "worker b was lost" in why.state
    assert planning == Accepted("job-1", "planning for 1 worker")


def test_words_of_a_search_go_on_after_those_of_planning() -> None:
    story = Scenario("a", "b")
    story.submit(0)
    job = story.state.jobs["job-1"]
    before, later = (planning_words(job, 2, so_far) for so_far in ("", "1,234 plans looked at"))
    assert later == f"{before}: 1,234 plans looked at" and len(later) <= TEXT_LENGTH


LACKS = "its backend has no aten.relu.default: join it with another --backend"


def test_a_job_waits_for_workers_with_its_ops_as_for_any_other() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    outcome = story.feed(events.PlanLacks(story.now, "job-1", 1, {"b": LACKS}))
    words = f"waiting for 1 more worker with the model's ops (have 1, the job needs 2; b: {LACKS})"
    assert told(outcome.commands) == [Accepted("job-1", words, lacking=True, missing=1)]
    assert "b cannot run it: its backend has no" in log_lines.log_line(outcome.facts[0])
    assert story.state.backup_pool() == ["a", "b"]
    assert not story.feed(events.Tick(story.now, 900.0)).commands
    story.join("c")
    assert story.state.jobs["job-1"].members == ("a", "c")


def test_a_worker_that_comes_anew_with_what_it_lacked_is_taken() -> None:
    story = Scenario("a", "b")
    story.submit(on=["b", "a"])
    outcome = story.feed(events.PlanLacks(story.now, "job-1", 1, {"b": LACKS}))
    words = f"waiting for b (have 1, the job needs 2; b: {LACKS})"
    assert told(outcome.commands) == [Accepted("job-1", words, lacking=True, missing=1)]
    outcome = story.leave("b")
    assert told(outcome.commands) == [Accepted("job-1", "waiting for b (have 1, the job needs 2)", missing=1)]
    story.join("b", boot="boot-2")
    job = story.state.jobs["job-1"]
    assert (job.state, job.members, dict(job.unable)) == ("planning", ("b", "a"), {})


def test_a_job_whose_ops_no_worker_has_lets_the_jobs_behind_it_go() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.submit(1, submitter="bo")
    story.feed(events.PlanLacks(story.now, "job-1", 1, {"b": LACKS}))
    assert (story.state.jobs["job-1"].state, story.state.jobs["job-2"].state) == ("queued", "planning")
    words = f"(have 0, the job needs 2; 1 worker is busy with job-2; b: {LACKS})"
    assert story.state.jobs["job-1"].words == f"waiting for 2 more workers with the model's ops {words}"
    assert not story.feed(events.Tick(story.now, 900.0)).facts
    story.join("c")
    assert story.state.jobs["job-1"].state == "queued"
    assert "waiting for job-1" in str(story.submit(1, submitter="eve").commands)


def test_a_job_that_lacks_more_than_ops_is_next_once_enough_are_there() -> None:
    """Until then others need not wait for it; after that they do, so it is not kept waiting for ever."""
    story = Scenario("a", "b", "c")
    story.submit(3)
    story.feed(events.PlanLacks(story.now, "job-1", 1, {"b": LACKS}))
    story.leave("c")
    story.submit(1, submitter="bo")
    story.planned("job-2")
    assert story.state.jobs["job-2"].members == ("a",)
    story.join("c")
    story.join("d")  # with a, which is busy, these are enough
    assert "waiting for job-1" in str(story.submit(1, submitter="bo").commands)


def test_a_job_with_enough_able_workers_keeps_its_place_while_they_are_busy() -> None:
    story = Scenario("a", "b")
    story.running(1)
    assert story.state.jobs["job-1"].members == ("a",)
    story.submit(1)
    story.feed(events.PlanLacks(story.now, "job-2", 1, {"b": LACKS}))
    assert "waiting for job-2" in str(story.submit(1, submitter="bo").commands)


def test_of_many_that_lack_ops_few_are_named() -> None:
    crowd = [f"w-{number}" for number in range(9)]
    story = Scenario(*crowd)
    story.submit(0)
    outcome = story.feed(events.PlanLacks(story.now, "job-1", 1, dict.fromkeys(crowd, LACKS)))
    (accepted,) = told(outcome.commands)
    words = str(accepted)
    assert "w-4: its backend" in words and "w-5" not in words and "; and 4 more)" in words


def test_a_plan_that_cannot_be_made_ends_the_job() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.feed(events.PlanFailed(story.now, "job-1", 1, "the model can be cut for at most 1 worker"))
    assert ended(story) == Ended("job-1", "failed", "the model can be cut for at most 1 worker")
    assert not sent(story.commands[-3:], "a")


def test_a_worker_lost_while_weights_are_collected_costs_the_attempt() -> None:
    story = Scenario("a")
    story.running(1, steps=1)
    story.all_ready(0)
    (back, _) = told(story.leave("a").commands)
    assert isinstance(back, RolledBack)
    assert "while the weights of step 1 were collected" in back.reason


def test_the_reason_of_a_cancelled_job_survives_a_loss_while_collecting() -> None:
    story = Scenario("a")
    story.running(1)
    story.cancel(collect=True)
    story.leave("a")
    assert ended(story).state == "cancelled"
    assert "its weights are not complete" in ended(story).reason


def test_a_second_process_with_a_live_workers_id_is_refused() -> None:
    story = Scenario("a")
    outcome = story.join("a", boot="boot-2", silent_seconds=0.4)
    (reject,) = outcome.commands
    assert isinstance(reject, Reject)
    assert "connected already" in reject.reason and reject.for_now
    assert not outcome.facts


def test_a_worker_with_another_table_of_the_same_version_is_refused_with_both_hashes() -> None:
    story = Scenario("a")
    own = Opset.own()
    other = replace(DEVICE, opset=Opset(own.version, "0" * 16))
    outcome = story.join("b", device=other)
    (reject,) = outcome.commands
    assert isinstance(reject, Reject) and not reject.for_now
    assert isinstance(reject, Reject) and not outcome.facts
    assert "0" * 16 in reject.reason and own.schema in reject.reason
    story.join("c", device=replace(DEVICE, opset=Opset(own.version + 1, "0" * 16)))
    assert story.state.backup_pool() == ["a", "c"]


def test_a_job_captured_with_another_table_of_the_same_version_is_denied() -> None:
    story = Scenario("a")
    own = Opset.own()
    for opset, denied in ((own, False), (Opset(own.version, "0" * 16), True)):
        message = Submit("gpt", b"graph", training(), 1, opset=opset)
        outcome = story.feed(events.SubmitterMessage(story.now, "ana", message, "192.0.2.9:50000"))
        words = [
            c.message.reason
            for c in outcome.commands
            if isinstance(c, Reply) and isinstance(c.message, Denied)
        ]
        assert bool(words) == denied and all(own.schema in word for word in words)
    assert list(story.state.jobs) == ["job-1"]


def test_the_planner_hears_what_each_worker_can_run() -> None:
    story = Scenario("a")
    story.join("b", device=replace(DEVICE, lacks=("aten.relu.default",)))
    (command,) = [c for c in story.submit(2).commands if isinstance(c, RunPlanner)]
    assert command.abilities["a"].lacks == ()
    assert command.abilities["b"] == Ability(
        Opset.own().version, ("aten.relu.default",), DEVICE.framework, DEVICE.kind
    )


def test_the_submitter_and_the_log_hear_who_was_left_out_for_its_ops() -> None:
    story = Scenario("a", "b")
    story.submit(1)
    unable = {"b": "its backend has no aten.relu.default"}
    outcome = story.feed(
        events.PlanMade(story.now, "job-1", 1, PlanResult(plan_over(["a"]), [], [[], []], None, unable))
    )
    (planned,) = [message for message in told(outcome.commands) if isinstance(message, Planned)]
    assert planned.unable == unable
    assert "b is left out: its backend has no" in log_lines.log_line(outcome.facts[-1])


@pytest.mark.parametrize(("boot", "heard"), [("boot-2", 5.0), ("boot-1", 0.1)])
def test_a_silent_link_or_the_same_process_gives_way(boot: str, heard: float) -> None:
    story = Scenario("a", "b")
    story.running(2)
    outcome = story.join("a", boot, heard)
    assert any(isinstance(command, Admit) for command in outcome.commands)
    (back, _) = told(outcome.commands)
    assert isinstance(back, RolledBack) and "worker a was lost at step 1: it c" in back.reason
    assert story.state.jobs["job-1"].members == ("a", "b")  # it is planned anew


@pytest.mark.parametrize("job", ["job-1", "job-9"])
def test_a_job_is_its_submitters_alone(job: str) -> None:
    story = Scenario("a")
    story.running(1)
    outcome = story.cancel(collect=False, job=job, submitter="eve")
    (reply,) = outcome.commands
    assert isinstance(reply, Reply) and isinstance(reply.message, Denied)
    assert story.state.jobs["job-1"].state == "running"


def test_messages_of_an_attempt_that_is_over_are_ignored() -> None:
    story = Scenario("a", "b")
    story.submit(2)
    story.leave("b")
    story.join("c")
    story.planned()
    for worker, message in [("a", messages.Loaded("job-1", 1)), ("c", Broken("job-1", 1, "old"))]:
        assert not story.feed(events.WorkerMessage(story.now, worker, message)).facts


@pytest.mark.parametrize(
    "message",
    [
        messages.Loaded("job-1", 2),
        messages.Loaded("job-7", 0),
        UnitReady("job-1", 1, 1, [], 0),
        UnitReady("job-1", 1, 0, [], 0),
    ],
)
def test_a_breach_raises_and_changes_nothing(message: messages.Loaded | UnitReady) -> None:
    story = Scenario("a", "b", "c")
    story.running(2)
    for worker in ("a", "c"):
        with pytest.raises(ProtocolError):
            story.feed(events.WorkerMessage(story.now, worker, message))
    with pytest.raises(ProtocolError):
        story.collected()


def test_shares_that_come_again_change_nothing() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.ready("a", 0)
    outcome = story.ready("a", 0)
    assert not outcome.facts and not outcome.commands
    with pytest.raises(ProtocolError, match="other shares of unit 0 than before"):
        story.ready("a", 0, loss=0.25)
    story.ready("b", 0)
    assert [fact.unit for fact in story.facts if isinstance(fact, facts.UnitDecided)] == [0]


@pytest.mark.parametrize("steps", [1, 3])
def test_who_is_ready_again_for_the_last_decided_unit_gets_its_decision_again(steps: int) -> None:
    story = Scenario("a", "b")
    story.running(2, steps=steps)
    story.all_ready(0)
    (decide,) = [m for m in sent(story.commands, "a") if isinstance(m, Decide)]
    outcome = story.ready("a", 0)
    assert outcome.commands == (Send("a", decide),) and not outcome.facts


def test_shares_of_units_decided_long_ago_are_ignored() -> None:
    story = Scenario("a", "b")
    story.running(2)
    late = story.shares("a", 0)
    for unit in range(2):
        story.all_ready(unit)
    outcome = story.feed(events.WorkerMessage(story.now, "a", late))
    assert not outcome.facts and not outcome.commands


def test_the_decision_of_an_earlier_attempt_answers_no_later_one() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.all_ready(0)
    second_attempt(story)
    assert not story.ready("a", 0).commands


def test_a_wait_without_end_is_given_up_and_says_from_whom() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.all_ready(0)
    story.ready("a", 1)
    story.now += 100.0
    assert not story.feed(events.Tick(story.now, 900.0)).facts
    story.now += 10_000.0
    (back, _) = told(story.feed(events.Tick(story.now, 900.0)).commands)
    assert isinstance(back, RolledBack)
    assert "step 2 is not complete on b after 10" in back.reason


def test_a_planner_without_an_answer_is_given_up() -> None:
    story = Scenario("a")
    story.submit(1)
    story.now += 1000.0
    story.feed(events.Tick(story.now, 900.0))
    assert "the planner gave no answer" in ended(story).reason


def test_no_job_gets_the_name_of_one_that_the_log_has_forgotten() -> None:
    story = Scenario()
    for _ in range(3):
        story.submit(1)
    log = [fact for fact in story.facts if isinstance(fact, facts.JobSubmitted)]
    after = Scenario()
    after.state = replay(log[1:])
    after.submit(1)
    assert list(after.state.jobs) == ["job-2", "job-3", "job-4"]
    after.state = dataclasses.replace(after.state, jobs={})
    after.submit(1)
    assert list(after.state.jobs) == ["job-5"]


def test_an_old_log_without_numbers_of_jobs_continues_right() -> None:
    story = Scenario()
    for _ in range(3):
        story.submit(1)
    log = [replace(fact, number=0) for fact in story.facts if isinstance(fact, facts.JobSubmitted)]
    after = Scenario()
    after.state = replay(log)
    assert after.state == durable(story.state)
    after.submit(1)
    assert list(after.state.jobs)[-1] == "job-4"


def test_a_damaged_log_is_named() -> None:
    with pytest.raises(FarflungError, match="cannot read"):
        facts.decode(b"\x81\xa4type\xa5Other")


def test_a_replay_knows_the_decision_that_some_member_may_not_have_applied() -> None:
    story = Scenario("a", "b")
    story.running(2)
    for unit in range(2):
        story.all_ready(unit)
        (decide,) = [m for m in sent(story.commands[-3:], "a") if isinstance(m, Decide)]
        again = replay(fact for fact in story.facts if isinstance(fact, facts.Decision))
        assert again.jobs["job-1"].decisions == (decide,) and decide.unit == unit and decide.scale < 1.0
    story.cancel(collect=False)
    assert story.state.jobs["job-1"].decisions == ()


def second_attempt(story: Scenario, job: str = "job-1") -> None:
    """Give the job's workers a new attempt, as it will be once a lost worker no longer ends a job."""
    held = story.state.jobs[job]
    assert held.plan is not None
    story.take(
        facts.JobRequeued(story.now, job, "worker d was lost"),
        facts.JobPlanning(story.now, job, held.attempt + 1, list(held.members)),
        facts.JobLoading(story.now, job, held.plan, []),
        facts.JobRunning(story.now, job),
    )


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=8), st.integers(0, 2))
def test_attempts_run_every_unit_once_and_in_order(interrupted: list[bool], validation: int) -> None:
    story = Scenario("a", "b")
    story.running(2, steps=len(interrupted) + 1, validate_every=2, validation_microbatches=validation)
    units = list(story.state.jobs["job-1"].training.units())
    for unit, again in zip(units, [*interrupted, *[False] * len(units)], strict=False):
        if again:
            story.ready("a", unit.number)
            second_attempt(story)
        assert story.state.jobs["job-1"].unit == unit
        story.all_ready(unit.number)
    assert story.state.jobs["job-1"].state == "collecting"
    assert [fact.unit for fact in story.facts if isinstance(fact, facts.UnitDecided)] == [*range(len(units))]
    log = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(log) == durable(story.state)


def test_a_new_attempt_tells_its_workers_the_first_unit_that_is_not_decided() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.all_ready(0)
    story.ready("a", 1)
    second_attempt(story)
    story.take(
        facts.JobRequeued(story.now, "job-1", "worker d was lost"),
        facts.JobPlanning(story.now, "job-1", 3, ["a", "b"]),
    )
    load = loads(story.planned())["a"]
    assert (load.attempt, load.unit) == (3, 1)


WORKERS = ("a", "b", "c", "d")


class Chaos:
    """Plays a random history with the messages that honest and confused peers could send."""

    def __init__(self, data: st.DataObject) -> None:
        self.story = Scenario(*WORKERS)
        self.data = data
        self.taken: list[tuple[str, UnitReady]] = []

    def play(self, count: int) -> None:
        destructive = (self.leave, self.cancel, self.quit, self.break_off, self.break_off)
        moves = (self.join, self.submit, self.stray, self.tick, self.collect)
        moves += (self.plan,) * 4 + (self.load,) * 4 + (self.ready,) * 12 + (self.repeat,) * 3
        moves += (self.ask_for_copy, self.store_copy, self.store_copy)
        for _ in range(count):
            try:
                # One blow in twenty moves, so that histories get far enough to have something to lose.
                struck = self.data.draw(st.integers(0, 19)) == 7
                self.data.draw(st.sampled_from(destructive if struck else moves))()
            except ProtocolError:
                pass

    def _worker(self) -> str:
        return self.data.draw(st.sampled_from(WORKERS))

    def _job(self) -> str | None:
        jobs = [job.job for job in self.story.state.jobs.values() if not job.over][:2]
        jobs = jobs or list(self.story.state.jobs)
        return self.data.draw(st.sampled_from(jobs)) if jobs else None

    def join(self) -> None:
        boot = self.data.draw(st.sampled_from(["boot-1", "boot-2"]))
        silent = self.data.draw(st.sampled_from([None, 0.1, 9.0]))
        self.story.join(self._worker(), boot, silent, standing=self._standing())

    def _standing(self) -> Standing | None:
        if (job := self._job()) is None or self.data.draw(st.booleans()):
            return None
        held = self.story.state.jobs[job]
        near = st.integers(-1, 1)
        attempt = max(0, held.attempt + self.data.draw(near))
        unit = max(0, held.next_unit + self.data.draw(near))
        phases = ["loading", "loaded", "running", "collecting", "broken"]
        return Standing(job, attempt, unit, self.data.draw(st.sampled_from(phases)))

    def leave(self) -> None:
        worker = self._worker()
        if worker in self.story.state.workers:
            self.story.leave(worker)

    def submit(self) -> None:
        """Submit a job, which may be a resumed one or name a unit that it does not have."""
        self.story.submit(
            self.data.draw(st.integers(0, 3)),
            validation_microbatches=self.data.draw(st.integers(0, 1)),
            unit=self.data.draw(st.sampled_from([0, 0, 0, 0, 1, 2, 5])),
            attempts=self.data.draw(st.integers(0, 2)),
            checkpoint_every=self.data.draw(st.integers(0, 2)),
        )

    def plan(self) -> None:
        if (job := self._job()) is None:
            return
        attempt = self.story.state.jobs[job].attempt
        choice = self.data.draw(st.integers(0, 10))
        if choice < 9:
            self.story.planned(job, max(0, attempt - (choice == 8)))
        elif choice == 9:
            lacking = {self._worker(): LACKS}
            self.story.feed(events.PlanLacks(self.story.now, job, attempt, lacking))
        else:
            self.story.feed(events.PlanFailed(self.story.now, job, attempt, "no plan"))

    def load(self) -> None:
        if (job := self._job()) is not None:
            held = self.story.state.jobs[job]
            for worker in held.members:
                self.story.loaded(worker, job, held.attempt)

    def ready(self) -> None:
        if (job := self._job()) is None:
            return
        held = self.story.state.jobs[job]
        if held.unit is None or not held.members:
            return
        finite = self.data.draw(st.integers(0, 9)) > 0
        worker = self.data.draw(st.sampled_from(held.members))
        message = self.story.shares(worker, held.unit.number, job, finite=finite)
        if self.story.feed(events.WorkerMessage(self.story.now, worker, message)).facts:
            self.taken.append((worker, message))

    def repeat(self) -> None:
        """Say again what was taken; that never ends a session and never changes anything."""
        if not self.taken:
            return
        worker, message = self.data.draw(st.sampled_from(self.taken[-6:]))
        before = self.story.state
        try:
            outcome = self.story.feed(events.WorkerMessage(self.story.now, worker, message))
        except ProtocolError as error:
            raise AssertionError(message) from error
        assert (outcome.state, outcome.facts) == (before, ())
        for command in outcome.commands:
            assert isinstance(command, Send) and isinstance(command.message, Decide)
            assert (command.message.attempt, command.message.unit) == (message.attempt, message.unit)

    def ask_for_copy(self) -> None:
        if (job := self._job()) is not None:
            attempt = self.story.state.jobs[job].attempt
            self.story.say(Keep(job, max(0, attempt + self.data.draw(st.integers(-1, 1)))))

    def store_copy(self) -> None:
        """Confirm the copy that is under way, or any other."""
        if (job := self._job()) is not None:
            held = self.story.state.jobs[job]
            unit = held.copies.under_way
            stray = unit is None or self.data.draw(st.integers(0, 4)) == 0
            unit = self.data.draw(st.integers(0, 3)) if stray else unit
            self.story.say(Kept(job, held.attempt, unit, self.data.draw(st.booleans())))

    def break_off(self) -> None:
        """A worker lost its link to another one, or its segment failed."""
        if (job := self._job()) is not None:
            peer = self.data.draw(st.sampled_from([None, *WORKERS, *WORKERS]))
            broken = Broken(job, self.story.state.jobs[job].attempt, "it broke", peer)
            self.story.feed(events.WorkerMessage(self.story.now, self._worker(), broken))

    def collect(self) -> None:
        if (job := self._job()) is not None:
            self.story.collected(job, self.story.state.jobs[job].attempt)

    def cancel(self) -> None:
        if (job := self._job()) is not None:
            self.story.cancel(self.data.draw(st.booleans()), job)

    def quit(self) -> None:
        if (job := self._job()) is not None:
            self.story.feed(events.SubmitterLeaves(self.story.now, job, "gone"))

    def take_place(self) -> None:
        if (job := self._job()) is not None:
            held = self.story.state.jobs[job]
            attempt = self.data.draw(st.sampled_from([0, max(0, held.attempt - 1), held.attempt]))
            silent = self.data.draw(st.sampled_from([{}, {job: 0.1}, {job: 9.0}]))
            unit = max(0, held.next_unit + self.data.draw(st.integers(-2, 1)))
            self.story.say(Return(job, attempt, unit), elsewhere=silent)

    def restart(self) -> None:
        self.story.restart()

    def stray(self) -> None:
        if (job := self._job()) is not None:
            message = UnitReady(
                job, self.data.draw(st.integers(0, 3)), self.data.draw(st.integers(0, 3)), [], 0
            )
            self.story.feed(events.WorkerMessage(self.story.now, self._worker(), message))

    def tick(self) -> None:
        self.story.feed(events.Tick(self.story.now, 900.0, 40.0, 600.0))


@settings(max_examples=60)
@given(st.data())
def test_laws_of_every_history(data: st.DataObject) -> None:
    chaos = Chaos(data)
    chaos.play(60)
    story = chaos.story
    _decides_once_and_only_when_ready(story.facts)
    _attempts_rise(story.facts)
    check_copies(story.facts)
    _each_decision_is_one_message(story)
    state = Scenario().state
    for number, fact in enumerate(story.facts):
        state = durable(state) if number in story.restarts else state
        state = reduce_fact(state, fact)
    assert (durable(state) if len(story.facts) in story.restarts else state) == story.state
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)
    assert set(story.blobs) == story.state.blobs()
    _no_worker_serves_two(story)
    _everything_ends(story)
    assert not story.blobs


def _decides_once_and_only_when_ready(history: list[facts.Fact]) -> None:
    """Also: what is decided again is only what followed the newest state that the submitter has."""
    decided: dict[str, int] = {}
    stable: dict[str, int] = {}
    shares: dict[tuple[str, int, int], list[Share]] = {}
    plans = {}
    for fact in history:
        if isinstance(fact, facts.JobSubmitted):
            decided[fact.job] = stable[fact.job] = fact.unit
        elif isinstance(fact, facts.CopyStored) and fact.stored:
            stable[fact.job] = fact.unit + 1
        elif isinstance(fact, facts.JobRolledBack):
            assert fact.unit == stable[fact.job] <= decided[fact.job]
            decided[fact.job] = fact.unit
        elif isinstance(fact, facts.JobLoading):
            plans[fact.job] = fact.plan
        elif isinstance(fact, facts.WorkerReady):
            key = (fact.job, fact.ready.attempt, fact.ready.unit)
            shares.setdefault(key, []).extend(fact.ready.shares)
        elif isinstance(fact, facts.UnitDecided):
            key = (fact.job, fact.attempt, fact.unit)
            assert fact.unit == decided[fact.job]
            decided[fact.job] = fact.unit + 1
            segments = sorted(share.segment for share in shares[key])
            assert segments == [part.segment for part in plans[fact.job].placements]
            if fact.gradient_norm:
                assert all(share.finite for share in shares[key])


def _each_decision_is_one_message(story: Scenario) -> None:
    """To whomever and however often a decision is sent, it is the same, and the submitter hears the same."""
    kept = {(f.job, f.attempt, f.unit): f.keep for f in story.facts if isinstance(f, facts.UnitDecided)}
    found: dict[tuple[str, int, int], Decide] = {}
    for command in story.commands:
        if isinstance(command, Send | SendToSubmitter) and isinstance(command.message, Decide | UnitDone):
            message = command.message
            place = (message.job, message.attempt, message.unit)
            assert message.keep == kept[place]
            if isinstance(message, Decide):
                assert found.setdefault(place, message) == message


def _attempts_rise(history: list[facts.Fact]) -> None:
    attempts: dict[str, int] = {}
    for fact in history:
        if isinstance(fact, facts.JobSubmitted):
            attempts[fact.job] = fact.attempts
        elif isinstance(fact, facts.JobPlanning | facts.JobRegrouped):
            assert fact.attempt == attempts[fact.job] + 1
            attempts[fact.job] = fact.attempt


def _no_worker_serves_two(story: Scenario) -> None:
    held = [name for job in story.state.jobs.values() if not job.over for name in job.members]
    assert len(held) == len(set(held))
    for worker in story.state.workers.values():
        assert (worker.job is not None) == (worker.worker in held)


def _everything_ends(story: Scenario) -> None:
    for worker in list(story.state.workers):
        story.leave(worker)
    story.tick(50.0)
    for job in list(story.state.jobs.values()):
        assert job.over or job.state == "queued"
        story.feed(events.SubmitterLeaves(story.now, job.job, "gone"))
    story.tick(100_000.0)
    for job in story.state.jobs.values():
        ends = [message for message in told(story.commands, job.job) if isinstance(message, Ended)]
        assert len(ends) == 1
    assert all(job.over for job in story.state.jobs.values())
