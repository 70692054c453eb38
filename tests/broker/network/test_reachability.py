"""Whom the broker asks for help when members of a plan cannot reach each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.broker.scenario import DEVICE, Scenario, plan_over, sent, told, training

from farflung.broker.core import events
from farflung.broker.core.events import Command, OpenCircuit
from farflung.broker.core.state import Outcome, durable
from farflung.broker.network.reachability import QUOTA_SLACK_BYTES, byte_quota
from farflung.broker.network.relays import Circuits
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.errors import ProtocolError
from farflung.plans import Pipeline, Placement, Plan, Sum
from farflung.protocol.messages import Register
from farflung.protocol.reachability import AskCircuit, AskReverse, Circuit, DialBack, HoldCircuit, NotReached
from farflung.transport.relay.relay import Relay


def relaying(*mbps: float) -> Scenario:
    """Workers a, b and c run a job of ana's; r0, r1, ... carry that much for others."""
    story = Scenario("a", "b", "c")
    story.running(3)
    for number, rate in enumerate(mbps):
        where = WorkerAddresses((f"r{number}.example:7000",))
        register = Register(DEVICE, "lab", list(where.addresses), "boot-1", rate)
        story.feed(events.WorkerRegisters(story.now, f"r{number}", register, where, None, 3.0))
    return story


def says(story: Scenario, worker: str, message: AskReverse | AskCircuit | NotReached) -> Outcome:
    return story.feed(events.WorkerMessage(story.now, worker, message))


def circuit(outcome: Outcome) -> OpenCircuit:
    (command,) = outcome.commands
    assert isinstance(command, OpenCircuit)
    return command


def test_a_neighbour_is_asked_to_dial_back_and_its_answer_comes_home() -> None:
    story = relaying()
    outcome = says(story, "a", AskReverse(7, "job-1", 1, "b", 1))
    assert sent(outcome.commands, "b") == [DialBack(7, "job-1", 1, "a", ["a.example:7000"])]
    assert not outcome.facts
    outcome = says(story, "b", NotReached(7, "job-1", 1, "a", "refused"))
    assert sent(outcome.commands, "a") == [NotReached(7, "job-1", 1, "b", "refused")]


def test_the_submitter_is_a_member_too() -> None:
    story = relaying()
    ask = AskReverse(1, "job-1", 1, "c", 4321)
    outcome = story.feed(events.SubmitterMessage(story.now, "ana", ask, "192.0.2.9:50000"))
    assert sent(outcome.commands, "c") == [DialBack(1, "job-1", 1, "ana", ["192.0.2.9:4321"])]
    outcome = says(story, "c", NotReached(1, "job-1", 1, "ana", "no answer"))
    assert told(outcome.commands) == [NotReached(1, "job-1", 1, "c", "no answer")]


@pytest.mark.parametrize(
    ("seen", "dialled"),
    [
        ("192.0.2.9:50000", "192.0.2.9:22"),
        ("[2001:db8::9]:50000", "[2001:db8::9]:22"),
        ("127.0.0.1:50000", "0.0.0.0:22"),  # on the broker's machine, whose name the worker knows
        ("[::1]:50000", "0.0.0.0:22"),
    ],
)
def test_a_submitter_is_dialled_back_where_the_broker_sees_it_and_nowhere_else(
    seen: str, dialled: str
) -> None:
    story = relaying()
    outcome = story.feed(events.SubmitterMessage(story.now, "ana", AskReverse(1, "job-1", 1, "c", 22), seen))
    assert sent(outcome.commands, "c") == [DialBack(1, "job-1", 1, "ana", [dialled])]


def test_a_worker_is_dialled_back_where_it_is_registered_now() -> None:
    story = relaying()
    story.feed(events.WorkerMoves(story.now, "a", WorkerAddresses(("198.51.100.1:9",))))
    outcome = says(story, "a", AskReverse(7, "job-1", 1, "b", 22))
    assert sent(outcome.commands, "b") == [DialBack(7, "job-1", 1, "a", ["198.51.100.1:9"])]


def test_whom_the_plan_does_not_join_nobody_brings_together() -> None:
    story = relaying(10.0)
    before = durable(story.state)
    for ask in (AskReverse(1, "job-1", 1, "r0", 1), AskCircuit(1, "job-1", 1, "r0", []),
                AskCircuit(1, "job-1", 1, "a", [])):  # fmt: skip
        with pytest.raises(ProtocolError, match="the plan of job-1 has no such link"):
            says(story, "a", ask)
    with pytest.raises(ProtocolError, match="but has no part in it"):
        says(story, "r0", AskCircuit(1, "job-1", 1, "a", []))
    assert not says(story, "a", AskCircuit(1, "job-1", 0, "b", [])).commands
    assert durable(story.state) == before


def test_a_job_that_is_over_brings_nobody_together() -> None:
    story = relaying()
    story.cancel(collect=False)
    assert not says(story, "a", AskCircuit(1, "job-1", 1, "b", [])).commands


def test_workers_that_relay_come_before_the_broker_and_none_is_tried_twice() -> None:
    story = relaying(10.0, 20.0)
    without: list[str] = []
    for _ in range(3):
        without.append(circuit(says(story, "a", AskCircuit(1, "job-1", 1, "b", list(without)))).relay)
    assert sorted(without[:2]) == ["r0", "r1"] and without[2] == "broker"
    outcome = says(story, "a", AskCircuit(1, "job-1", 1, "b", without))
    (answer,) = sent(outcome.commands, "a")
    assert isinstance(answer, NotReached) and answer.reason == "no other relay is available"


def test_a_relay_is_none_of_the_two_and_connected() -> None:
    story = relaying(10.0)
    story.leave("r0")
    assert circuit(says(story, "a", AskCircuit(1, "job-1", 1, "b", []))).relay == "broker"


def test_circuits_spread_over_relays_by_their_rates() -> None:
    story, found = relaying(10.0, 30.0), Counter[str]()
    for number in range(400):
        twin, job = Scenario(), f"job-{number + 1}"
        twin.state = story.state.with_job(replace(story.state.jobs["job-1"], job=job))
        ask = AskCircuit(1, job, 1, "b", [])
        found[circuit(says(twin, "a", ask)).relay] += 1
    assert found["r0"] + found["r1"] == 400 and 0.6 < found["r1"] / 400 < 0.9


def test_a_quota_covers_what_the_plan_sends_between_the_two() -> None:
    plan, given = plan_over(["a", "b"]), training(steps=10, validation_microbatches=3)
    microbatches = 10 * given.microbatches + 3 * 3  # at least as many evaluations as there will be
    # Value 1 goes from a to b and value 2 back; both have gradients.
    assert byte_quota(plan, given, "a", "b", "ana") == 2 * (4 * 64 * microbatches) + QUOTA_SLACK_BYTES
    # Two segments of 4000 bytes there and back, and 64 bytes fed a microbatch.
    fed = 64 * microbatches + 2 * 8000
    assert byte_quota(plan, given, "ana", "a", "ana") == byte_quota(plan, given, "a", "ana", "ana")
    assert byte_quota(plan, given, "a", "ana", "ana") == 2 * fed + QUOTA_SLACK_BYTES


def test_a_quota_covers_the_sums_of_two_replicas() -> None:
    parts = [Placement(n, [name], 1, 1, 1) for n, name in enumerate("ab")]
    one = Sum(7, 1000, [[0], [1]], [0, 1], 0)
    pipelines = [Pipeline(1, 1), Pipeline(1, 1)]
    plan = Plan(parts, [], microbatches=2, window=2, pipelines=pipelines, sums=[one])
    given = training(steps=10)
    assert byte_quota(plan, given, "a", "b", "ana") == 2 * (2 * 1000 * 10) + QUOTA_SLACK_BYTES


def ends(commands: list[Command]) -> tuple[Circuit, Circuit]:
    (to_a,), (to_b,) = sent(commands, "a"), sent(commands, "b")
    assert isinstance(to_a, Circuit) and isinstance(to_b, Circuit)
    return to_a, to_b


def test_the_relay_and_both_ends_are_told_and_tokens_are_never_the_same() -> None:
    story = relaying(10.0)
    command = circuit(says(story, "a", AskCircuit(5, "job-1", 1, "b", [])))
    circuits = Circuits(None)
    first, second = circuits.open(command), circuits.open(command)
    seen = set()
    for commands in (first, second):
        to_a, to_b = ends(commands)
        (held,) = sent(commands, "r0")
        assert isinstance(held, HoldCircuit)
        assert (to_a.peer, to_a.dials, to_b.peer, to_b.dials) == ("b", True, "a", False)
        assert to_a.number == to_b.number == 5 and to_a.addresses == ["r0.example:7000"]
        assert set(held.tokens) == {to_a.token, to_b.token} and held.byte_quota == command.byte_quota
        seen |= {to_a.token, to_b.token}
    assert len(seen) == 4


def test_the_broker_relays_itself_unless_its_owner_said_no() -> None:
    story = relaying()
    command = circuit(says(story, "a", AskCircuit(5, "job-1", 1, "b", [])))
    (refused,) = sent(Circuits(None).open(command), "a")
    assert isinstance(refused, NotReached) and "started with --relay 0" in refused.reason
    granted: list[tuple[str, tuple[bytes, bytes], int]] = []

    class Books(Relay):
        def __init__(self) -> None:
            pass

        def grant(self, label: str, tokens: tuple[bytes, bytes], byte_quota: int) -> None:
            granted.append((label, tokens, byte_quota))

    to_a, to_b = ends(Circuits(Books()).open(command))
    assert granted == [("job-1: a - b", (to_a.token, to_b.token), command.byte_quota)]
    assert to_a.addresses == to_b.addresses == []
