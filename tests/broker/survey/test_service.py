"""A real broker surveys members who only pretend to measure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.scenario import training
from tests.broker.survey.test_topology import worker
from tests.support.broker_fleet import DEVICE, WAIT_SECONDS, Member, PretendedWorker, broker, identity

from farflung.broker.service import BrokerService
from farflung.broker.survey.plan import (
    LEAST_PROBE_BYTES,
    MOST_PROBE_BYTES,
    WORKER_BYTES,
    byte_limit,
    survey_plan,
)
from farflung.protocol.messages import Denied, Register, Registered, Submit
from farflung.protocol.probing import (
    SURVEY,
    AskTopology,
    FleetTopology,
    Probe,
    Probed,
    ProbedLink,
)
from farflung.protocol.reachability import AskCircuit, AskReverse, DialBack, NotReached
from farflung.transport.security.tokens import TokenRole

RATES = {("a", "b"): 8.0, ("b", "a"): 9.0}


def story(tmp_path: Path, scene: Callable[[BrokerService, Path], Awaitable[None]]) -> None:
    async def play() -> None:
        async with broker(tmp_path / "broker") as service:
            await scene(service, tmp_path / "broker")

    asyncio.run(play())


async def joined(service: BrokerService, folder: Path, *names: str) -> list[PretendedWorker]:
    workers = [await PretendedWorker.join(service, folder, name) for name in names]
    for one in workers:
        await one.hear(Registered)
    return workers


async def desk(service: BrokerService, folder: Path, role: TokenRole = "submitter") -> Member:
    member: Member = await Member.dial(service, await identity(service, folder, "desk", role))
    return member


async def told(member: Member, survey: bool = False) -> FleetTopology:
    member.say(AskTopology(survey))
    return await member.hear(FleetTopology)


async def told_that(member: Member, holds: Callable[[FleetTopology], object]) -> FleetTopology:
    """What the broker knows once something holds of it: others tell it over lines of their own."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds(found := await told(member)):  # noqa: ASYNC110
            await asyncio.sleep(0.6)  # a broker answers twice a second
    return found


def answered(name: str, probe: Probe) -> Probed:
    (peer,) = probe.peers
    path = "direct" if peer.dials else ""
    return Probed(
        probe.number, [ProbedLink(peer.worker, path, "", RATES[name, peer.worker], 12.0, 100, True)]
    )


def test_two_idle_workers_probe_each_other_when_a_submitter_asks(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        a, b = await joined(service, folder, "a", "b")
        asker = await desk(service, folder)
        before = await told(asker, survey=True)
        assert before.assumed and before.survey == "0 of 1 measured"
        for one in (a, b):
            probe = await one.hear(Probe)
            assert probe.task == "pair" and probe.peers[0].addresses == ["127.0.0.1:7001"]
            one.say(answered(one.id, probe))
        after = await told_that(asker, lambda now: not now.survey)
        assert after.topology is not None and (after.surveys, after.survey) == (1, "")
        assert after.assumed == ["devices of unknown speed assumed to sustain 1 TFLOP/s: a, b"]
        assert after.topology.bandwidth_mbps == ((0, 8.0), (9.0, 0)) and after.topology.latency_ms[0][1] == 12
        assert {(link.sender, link.source, link.path) for link in after.measured} == {
            ("a", "probe", "direct"),
            ("b", "probe", "direct"),
        }

    story(tmp_path, scene)


def test_a_job_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*arguments: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("farflung.broker.dispatcher.plan", never)

    async def scene(service: BrokerService, folder: Path) -> None:
        await joined(service, folder, "a", "b", "c")
        asker = await desk(service, folder)
        await told(asker, survey=True)
        assert (await told(asker)).survey == "0 of 9 measured"
        asker.say(Submit("gpt", b"graph", training(steps=1), 0))
        while (after := await told_after(asker)).survey:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert not after.measured

    async def told_after(asker: Member) -> FleetTopology:
        asker.say(AskTopology())
        while True:
            message = await asyncio.wait_for(asker._heard.get(), WAIT_SECONDS)
            if isinstance(message, FleetTopology):
                return message

    story(tmp_path, scene)


def test_two_who_cannot_reach_each_other_are_helped_and_nobody_else(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        a, b, c = await joined(service, folder, "a", "b", "c")
        asker = await desk(service, folder)
        await told(asker, survey=True)
        by_name = {"a": a, "b": b, "c": c}
        async with asyncio.timeout(WAIT_SECONDS):
            while len(asked := [name for name, one in by_name.items() if not one.silent]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        waiting = {name: await by_name[name].hear(Probe) for name in asked}
        (first, probe), (second, _) = waiting.items()
        (idle,) = set(by_name) - set(waiting)
        by_name[first].say(AskReverse(7, SURVEY, probe.number, second, 7001))
        request = await by_name[second].hear(DialBack)
        assert (request.job, request.attempt, request.peer) == (SURVEY, probe.number, first)
        assert request.addresses == ["127.0.0.1:7001"]
        by_name[second].say(NotReached(7, SURVEY, probe.number, first, "nobody there"))
        assert (await by_name[first].hear(NotReached)).reason == "nobody there"
        by_name[first].say(AskCircuit(8, SURVEY, probe.number, second, []))
        assert "no relay is on offer" in (await by_name[first].hear(NotReached)).reason
        for message in (
            AskReverse(9, SURVEY, probe.number, idle, 7001),
            AskReverse(9, SURVEY, probe.number + 50, second, 7001),
            Probed(4711),
        ):
            by_name[first].say(message)
        await asyncio.sleep(0.2)
        assert by_name[idle].silent and not by_name[first].gone.done()

    story(tmp_path, scene)


def test_a_viewer_looks_and_asks_for_no_bytes(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        viewer = await desk(service, folder, "viewer")
        assert (await told(viewer)).topology is None
        viewer.say(AskTopology(survey=True))
        assert "only a submitter may request a survey" in (await viewer.hear(Denied)).reason

    story(tmp_path, scene)


def test_a_survey_of_nobody_is_denied(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        await joined(service, folder, "a")
        asker = await desk(service, folder)
        asker.say(AskTopology(survey=True))
        assert "a survey needs two idle workers" in (await asker.hear(Denied)).reason

    story(tmp_path, scene)


def test_who_joins_from_another_network_is_measured_anew(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        a, b = await joined(service, folder, "a", "b")
        asker = await desk(service, folder)
        await told(asker, survey=True)
        for one in (a, b):
            one.say(answered(one.id, await one.hear(Probe)))
        seen = service._surveys
        await told_that(asker, lambda now: len(now.measured) == 2 and "a" in seen._workers)
        await a.link.close("moving")
        again: PretendedWorker = await PretendedWorker.dial(
            service, await identity(service, folder, "a", "worker")
        )
        again.say(Register(DEVICE, "lab", ["192.0.2.7:7001"], "boot-2"))
        await again.hear(Registered)
        left = await told_that(asker, lambda now: not now.measured)
        assert left.measured == [] and left.topology.ids == ["a", "b"]

    story(tmp_path, scene)


def test_what_owners_declare_is_not_measured() -> None:
    workers = {name: worker(name) for name in "abc"}
    whole = survey_plan(workers, lambda meeting: True, lambda line: True)
    assert (len(whole.meetings), len(whole.lines)) == (3, 6)
    declared = {**workers, "a": worker("a", up_mbps=8.0, down_mbps=50.0)}
    assert {line[0] for line in survey_plan(declared, lambda meeting: True, lambda line: True).lines} == {
        "b",
        "c",
    }
    assert not survey_plan({"a": worker("a")}, lambda meeting: True, lambda line: True)
    assert not survey_plan(workers, lambda meeting: False, lambda line: False)


def test_bytes_are_bounded_however_large_the_fleet() -> None:
    assert WORKER_BYTES / 5 < byte_limit([("a", "b")]) <= MOST_PROBE_BYTES
    crowd = [("a", f"w{number}") for number in range(23)]
    assert LEAST_PROBE_BYTES < byte_limit(crowd) < WORKER_BYTES / 23
