"""A running job, planned again with changes: what is asked, what is refused, and that the planner answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
from tests.broker.planning.test_client import fleet, tower
from tests.broker.scenario import Scenario, training

from farflung.broker.core.blobs import digest_of
from farflung.broker.planning import what_if, what_if_process
from farflung.broker.planning.messages import Question
from farflung.broker.planning.process import answer
from farflung.broker.planning.what_if import WhatIfs
from farflung.broker.planning.what_if_messages import Foreseen, WhatIf, WhatIfQuestion, WorkerChange
from farflung.broker.survey.topology import MeasuredTopology
from farflung.errors import PlanError
from farflung.plans import Plan, Topology
from farflung.plans.topology_file import encode_topology

JOB = training(microbatch_size=4, microbatches=4)
FLEET = fleet("a", "b", "c", tflops=1e-7)


def running_plan(*workers: str) -> Plan:
    made = answer(Question(tower(), JOB, list(workers), len(workers), topology=FLEET))
    assert not isinstance(made, (str, bytes)) and hasattr(made, "plan")
    return made.plan


PLAN = running_plan("a", "b")
QUESTION = Question(tower(), JOB, ["a", "b", "c"], 0, topology=FLEET, current=PLAN)


def foreseen(workers: dict[str, WorkerChange] | None = None, **changes: object) -> Foreseen:
    asked = WhatIf("job-1", workers or {}, **changes)  # type: ignore[arg-type]
    return what_if_process.foreseen(WhatIfQuestion(QUESTION, asked, ["a", "b"]))


def test_without_a_change_the_plan_that_runs_is_never_beaten_by_a_worse_one() -> None:
    found = foreseen()
    assert found.now is not None and found.then is not None
    assert found.then.step_seconds <= found.now.step_seconds
    assert [(one.worker, one.used) for one in found.workers] == [("a", True), ("b", True), ("c", False)]
    assert {span.row for span in found.now.spans} >= {"a", "b", "a -> b"}
    assert max(span.end for span in found.now.spans) <= found.now.step_seconds * 1.001
    assert sum(one.share for one in found.now.segments) == pytest.approx(1)


def test_a_slower_line_a_faster_device_and_more_workers_change_the_step_as_they_should() -> None:
    now = foreseen().then
    slow = foreseen({"a": WorkerChange(up_mbps=0.01, down_mbps=0.01)}).then
    fast = foreseen({"a": WorkerChange(speed=10.0), "b": WorkerChange(speed=10.0)}).then
    assert now is not None and slow is not None and fast is not None
    assert fast.step_seconds < now.step_seconds < slow.step_seconds
    alone = foreseen({"b": WorkerChange(used=False)}).then
    assert alone is not None and [one.workers for one in alone.segments] == [["a"]]
    more = foreseen({"a": WorkerChange(speed=0.01), "b": WorkerChange(speed=0.01, twins=2)}).then
    assert more is not None
    assert {name for one in more.segments for name in one.workers} <= {"a", "b", "b-new", "b-new1"}


def test_microbatches_keep_the_samples_of_a_step_and_a_codec_is_for_all_links() -> None:
    found = foreseen(microbatches=8, codec="int8").then
    assert found is not None and found.microbatches == 8
    assert all(words.endswith(": int8") for words in found.codecs)
    assert "evenly" in foreseen(microbatches=5).refusal
    assert foreseen(codec="zip").refusal


def test_a_topology_file_stands_for_the_fleet_and_one_that_is_none_is_refused() -> None:
    other = encode_topology(fleet("x", "y", tflops=1e-4)).decode()
    found = foreseen(topology=other).then
    assert found is not None
    assert {name for one in found.segments for name in one.workers} <= {"x", "y"}
    assert "not JSON" in foreseen(topology="{").refusal


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ({"z": WorkerChange()}, "no worker z: there are a, b, c"),
        ({"a": WorkerChange(used=False), "b": WorkerChange(used=False)}, "leave one in"),
    ],
)
def test_changes_that_cannot_be_are_one_line(workers: dict[str, WorkerChange], words: str) -> None:
    found = foreseen(workers)
    assert found.then is None and found.now is not None
    assert words in found.refusal and "\n" not in found.refusal


class FakeStore:
    def __init__(self, blobs: dict[bytes, bytes]) -> None:
        self._blobs = blobs

    def blobs(self, digests: list[bytes]) -> dict[bytes, bytes]:
        return {one: self._blobs[one] for one in digests}


def what_ifs(known: Scenario, topology: Topology = FLEET) -> WhatIfs:
    store = FakeStore({digest_of(tower()): tower()})
    return WhatIfs(lambda: known.state, lambda _: MeasuredTopology(topology, ()), store)  # type: ignore[arg-type]


def trains() -> Scenario:
    """A job on a and b that trains the tower; c is idle."""
    known = Scenario("a", "b", "c")
    known.running()
    job = known.state.jobs["job-1"]
    blobs = replace(job.blobs, graph=digest_of(tower()))
    known.state = known.state.with_job(replace(job, training=JOB, plan=PLAN, blobs=blobs))
    return known


@pytest.mark.processes
def test_a_process_of_its_own_answers_about_the_job_as_it_is() -> None:
    found = asyncio.run(what_ifs(trains()).answer(WhatIf("job-1", {"a": WorkerChange(up_mbps=0.01)})))
    assert found.refusal == ""
    assert found.now is not None and found.then is not None
    assert [(one.worker, one.used) for one in found.workers] == [("a", True), ("b", True), ("c", False)]


def test_jobs_that_do_not_run_and_too_many_questions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        known = Scenario("a", "b")
        known.submit(3)
        for job, words in (("job-9", "no job job-9"), ("job-1", "is queued")):
            with pytest.raises(PlanError, match=words):
                await what_ifs(known).answer(WhatIf(job))
        never = asyncio.Event()

        async def ask(*_: object) -> Foreseen:
            await never.wait()
            return Foreseen([], None, None)

        monkeypatch.setattr(what_if, "ask_process", ask)
        asked = what_ifs(trains())
        waiting = [asyncio.create_task(asked.answer(WhatIf("job-1"))) for _ in range(what_if.MOST_WAITING)]
        await asyncio.sleep(0.05)
        with pytest.raises(PlanError, match="try again in a moment"):
            await asked.answer(WhatIf("job-1"))
        never.set()
        await asyncio.gather(*waiting)

    asyncio.run(work())


@pytest.mark.parametrize(
    "body",
    [
        b'{"job": "job-1", "workers": {"a": {"twins": 9}}}',
        b'{"job": "job-1", "workers": {"a": {"up_mbps": -1}}}',
        b'{"job": "job-1", "microbatches": 0}',
        b'{"job": "job-1", "run": "rm"}',
        b'{"workers": {}}',
    ],
)
def test_what_a_browser_may_ask_is_bounded(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=WhatIf)
