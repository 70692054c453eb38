from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch
from tests.broker.scenario import training
from tests.broker.survey.test_topology import known, worker
from torch import nn

from farflung.broker.core.blobs import digest_of
from farflung.broker.core.events import ConsiderPlan, PlanFailed, PlanLacks, PlanMade, RunPlanner
from farflung.broker.planning import process
from farflung.broker.planning.client import consider, plan
from farflung.broker.planning.messages import Broken, Question, Searched
from farflung.broker.survey.topology import MeasuredTopology, topology_of
from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.opdag.graph import Precision
from farflung.plans import NO_WISHES, Rates, Topology, Wishes, WorkerSpec
from farflung.plans.ability import Ability
from farflung.runtime.training import Training
from farflung.transport.timeouts import Timeouts

pytestmark = pytest.mark.processes


def answered(
    graph: bytes,
    training: Training,
    *workers: str,
    count: int | None = None,
    wishes: Wishes = NO_WISHES,
    measured: MeasuredTopology | None = None,
    abilities: Mapping[str, Ability] | None = None,
) -> object:
    """What comes of planning a graph; on workers of whom nothing is known, unless `measured` says more."""
    count = len(workers) if count is None else count
    command = RunPlanner("job-1", 3, digest_of(graph), training, workers, count, wishes, abilities or {})
    return asyncio.run(plan(command, graph, measured, Timeouts(), lambda: 7.0))


def test_a_hostile_graph_is_a_reason_and_no_traceback() -> None:
    answer = answered(b"\xc1 no graph", training(), "a", "b")
    assert isinstance(answer, PlanFailed)
    assert (answer.now, answer.job, answer.attempt) == (7.0, "job-1", 3)
    assert answer.reason and "\n" not in answer.reason
    assert "broke" not in answer.reason


def test_a_defect_of_the_planner_keeps_its_traceback_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("node 7")

    monkeypatch.setattr("farflung.broker.planning.process._answer", broken)
    found = process.answer(Question(b"", training(), ["a"], 1))
    assert isinstance(found, Broken)
    assert found.error == "KeyError: 'node 7'" and __file__ in found.traceback


def test_a_planner_that_dies_ends_only_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("farflung.broker.planning.client.PROGRAM", "farflung.there_is_none")
    with caplog.at_level(logging.ERROR, "farflung.broker"):
        answer = answered(b"", training(), "a")
    assert isinstance(answer, PlanFailed) and "exited with code 1" in answer.reason
    assert "there_is_none" in caplog.text


def test_a_planner_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeouts, "planning_seconds", 0.05)
    answer = answered(b"", training(), "a")
    assert isinstance(answer, PlanFailed) and "no plan within" in answer.reason


def fleet(*ids: str, mbps: float = 100.0, tflops: float = 1e-6) -> Topology:
    """Workers with equal devices and links; so slow by default that more of them make a step shorter."""
    count = len(ids)
    return Topology(
        tuple(WorkerSpec(id, id, tflops, 1.0) for id in ids),
        tuple(tuple(5.0 * (a != b) for b in range(count)) for a in range(count)),
        tuple(tuple(mbps * (a != b) for b in range(count)) for a in range(count)),
    )


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def test_a_captured_model_is_planned_with_the_sizes_that_its_segments_own() -> None:
    torch.manual_seed(0)
    graph = wire.dump(capture(Tower(), {"x": torch.randn(4, 8)}).graph)
    job = training(microbatch_size=4)
    answer = answered(graph, job, "a", "b")
    assert isinstance(answer, PlanMade)
    assert answer.result.plan.workers() == ["a", "b"]
    sizes = {name: size for program in answer.result.programs for name, size in program.owned.items()}
    assert sizes == {name: 4 * tensor.numel() for name, tensor in Tower().state_dict().items()}
    assert [list(program.owned) for program in answer.result.programs] == answer.result.owned


def test_of_an_emulated_job_nothing_moves() -> None:
    graph = wire.dump(capture(Tower(), {"x": torch.randn(4, 8)}).graph)
    job = training(microbatch_size=4, emulated=True)
    answer = answered(graph, job, "a", "b")
    assert isinstance(answer, PlanMade)
    assert answer.result.owned == [[], []]
    assert not any(program.owned for program in answer.result.programs)


def test_of_workers_of_whom_nothing_is_known_the_first_are_taken() -> None:
    graph = wire.dump(capture(Tower(), {"x": torch.randn(4, 8)}).graph)
    job = training(microbatch_size=4)
    for count, chosen in ((1, ["a"]), (0, ["a", "b"])):
        answer = answered(graph, job, "a", "b", "c", count=count)
        assert isinstance(answer, PlanMade) and answer.result.plan.workers() == chosen
        assert answer.result.prediction is None


def tower() -> bytes:
    return wire.dump(capture(Tower(), {"x": torch.randn(4, 8)}).graph)


def test_what_the_fleet_measured_is_planned_on_and_what_it_assumed_is_told() -> None:
    known = MeasuredTopology(fleet("a", "b"), ("links of b: assumed",))
    answer = answered(tower(), training(microbatch_size=4), "a", "b", measured=known)
    assert isinstance(answer, PlanMade) and answer.result.prediction is not None
    assert set(answer.result.plan.workers()) == {"a", "b"}
    assert answer.result.prediction.measured and "links of b: assumed" in answer.result.prediction.notes
    assert answer.result.prediction.step_seconds > 0 and "busy" in answer.result.prediction.bottleneck


@pytest.mark.full
def test_a_search_says_how_many_plans_it_has_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a planner that says so at each of them; the broker passes a word on now and then."""
    monkeypatch.setattr("farflung.broker.planning.client.PROGRAM", "tests.broker.chatty_planner")
    wishes = Wishes(topology=fleet("a", "b", "c"))
    graph, workers = tower(), ("a", "b", "c")
    command = RunPlanner("job-1", 3, digest_of(graph), training(microbatch_size=4), workers, 0, wishes)

    def heard(pause_seconds: float) -> list[Searched]:
        monkeypatch.setattr("farflung.broker.planning.client.PROGRESS_SECONDS", pause_seconds)
        found: list[Searched] = []
        answer = asyncio.run(plan(command, graph, None, Timeouts(), lambda: 7.0, found.append))
        assert isinstance(answer, PlanMade) and answer.result.prediction is not None
        return found

    every = heard(0.0)
    plans = [said.plans for said in every]
    assert len(plans) > 2 and plans == sorted(plans)
    assert every[-1].step_seconds is not None
    assert len(heard(600.0)) == 1


def test_the_best_of_a_search_is_not_reported_where_no_step_time_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[Searched] = []
    monkeypatch.setattr(process, "write_message", said.append)
    monkeypatch.setattr(process, "PROGRESS_SECONDS", 0.0)
    tell = process._Progress(microbatches=8)
    tell(10.0, 0.009)
    tell(10.0, 0.007)
    assert said == [Searched(10.0, 0.009), Searched(20.0, None)]


def test_a_planner_that_ends_without_an_answer_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.broker.planning.client.PROGRAM", "this")
    answer = answered(b"", training(), "a")
    assert isinstance(answer, PlanFailed) and "the planner's process exited with code 0" in answer.reason


@pytest.mark.parametrize(("tflops", "brief"), [(1.0, True), (1e-9, False)])
def test_a_step_of_nearly_nothing_is_not_promised_without_a_word(tflops: float, brief: bool) -> None:
    slow = fleet("a", "b")
    workers = tuple(msgspec.structs.replace(worker, tflops=tflops) for worker in slow.workers)
    known = MeasuredTopology(msgspec.structs.replace(slow, workers=workers), ())
    answer = answered(tower(), training(microbatch_size=4), "a", "b", measured=known)
    assert isinstance(answer, PlanMade) and answer.result.prediction is not None
    assert (
        any(
            "every device needs less than 1 ms for a microbatch" in note
            for note in answer.result.prediction.notes
        )
        is brief
    )
    assert answer.result.prediction.brief is brief


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("precision", "deterministic", "tflops"),
    [("float32", True, 1e-6), ("float32", False, 4e-6), ("bfloat16", False, 16e-6)],
)
@pytest.mark.parametrize("is_own", [False, True])
def test_a_job_is_planned_at_the_rates_of_its_precision_and_mode(
    precision: Precision, deterministic: bool, tflops: float, is_own: bool
) -> None:
    def planned(topology: Topology) -> float:
        job = msgspec.structs.replace(
            training(microbatch_size=4), precision=precision, deterministic=deterministic
        )
        wishes = Wishes("equal-compute", topology if is_own else None)
        measured = None if is_own else MeasuredTopology(topology, ())
        answer = answered(tower(), job, "a", "b", wishes=wishes, measured=measured)
        assert isinstance(answer, PlanMade) and answer.result.prediction is not None
        return answer.result.prediction.step_seconds

    def at(tflops: float, rates: Rates | None) -> Topology:
        net = fleet("a", "b")
        workers = [msgspec.structs.replace(one, tflops=tflops, rates=rates) for one in net.workers]
        return msgspec.structs.replace(net, workers=tuple(workers))

    rates = Rates(tf32_tflops=4e-6, bfloat16_tflops=16e-6)
    assert planned(at(1e-6, rates)) == planned(at(tflops, None))


@pytest.mark.full
def test_a_worker_without_bfloat16_is_left_out_of_a_job_that_needs_it() -> None:
    graph = wire.dump(capture(Tower(), {"x": torch.randn(4, 8)}, precision="bfloat16").graph)
    abilities = {"b": Ability(10_000, ("bfloat16",), "torch")}
    answer = answered(graph, training(microbatch_size=4), "a", "b", "c", count=0, abilities=abilities)
    assert isinstance(answer, PlanMade) and "b" not in answer.result.plan.workers()
    assert answer.result.unable == {"b": "its device has no bfloat16: train in float32, or without it"}


@pytest.mark.full
def test_a_topology_of_the_jobs_own_counts_more_than_what_was_measured() -> None:
    slow, wishes = fleet("a", "b", mbps=0.01), Wishes("equal-compute", fleet("c", "b", "a"))
    job = training(microbatch_size=4)
    own = answered(tower(), job, "a", "b", wishes=wishes, measured=MeasuredTopology(slow, ()))
    assert isinstance(own, PlanMade) and own.result.prediction is not None
    assert own.result.plan.workers() == ["a", "b"]  # in the order in which the job has them
    assert not own.result.prediction.measured and own.result.prediction.scheduler == "equal-compute"
    measured = answered(tower(), job, "a", "b", measured=MeasuredTopology(slow, ()))
    assert isinstance(measured, PlanMade) and measured.result.prediction is not None
    assert measured.result.prediction.step_seconds > own.result.prediction.step_seconds


def test_a_prediction_beyond_all_bounds_ends_only_the_job() -> None:
    still = msgspec.structs.replace(fleet("a", "b").workers[0], tflops=1e-290)
    topology = Topology((still,), ((0.0,),), ((0.0,),))
    answer = answered(tower(), training(microbatch_size=4), "a", measured=MeasuredTopology(topology, ()))
    assert isinstance(answer, PlanFailed) and "the plan cannot be sent" in answer.reason


@pytest.mark.full
@pytest.mark.parametrize("measured", [None, MeasuredTopology(fleet("a", "b"), ())])
def test_all_segments_recompute_if_that_is_wished_for(measured: MeasuredTopology | None) -> None:
    job = training(microbatch_size=4)
    for when, recomputing in (("always", {0, 1}), ("auto", set()), ("never", set())):
        wishes = Wishes(recompute=when)  # type: ignore[arg-type]
        answer = answered(tower(), job, "a", "b", wishes=wishes, measured=measured)
        assert isinstance(answer, PlanMade) and answer.result.plan.recomputing() == recomputing
        if measured is not None and recomputing:
            assert answer.result.prediction is not None and "recompute" in answer.result.prediction.notes[0]


def test_two_without_a_link_are_not_both_in_a_plan_and_it_is_told_why_there_is_none() -> None:
    apart = known().with_failed_link("a", "b", "no route", 1.0).with_failed_link("a", "b", "no route", 2.0)
    measured = topology_of([worker("a"), worker("b"), worker("c")], apart)
    for count in (2, 0):
        answer = answered(tower(), training(), "a", "b", "c", count=count, measured=measured)
        assert isinstance(answer, PlanMade) and not {"a", "b"} <= set(answer.result.plan.workers())
    answer = answered(tower(), training(), "a", "b", "c", count=3, measured=measured)
    assert isinstance(answer, PlanFailed) and "there is no link" in answer.reason


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (Wishes("fastest"), "no scheduler 'fastest'"),
        (Wishes(topology=fleet("a", "c")), "does not have worker b"),
        (Wishes(topology=fleet("a", "b", mbps=0.0)), "can all reach each other"),
    ],
)
def test_why_there_is_no_plan_is_told(wishes: Wishes, words: str) -> None:
    job = training(microbatch_size=4)
    answer = answered(tower(), job, "a", "b", wishes=wishes, measured=MeasuredTopology(fleet("a", "b"), ()))
    assert isinstance(answer, PlanFailed) and words in answer.reason


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to an address space")
def test_a_planner_that_takes_too_much_memory_gives_up_before_the_machine_does() -> None:
    program = (
        "from farflung.broker.planning.process import MOST_MEMORY_BYTES, limit_memory\n"
        "limit_memory()\n"
        "try:\n    bytearray(MOST_MEMORY_BYTES)\nexcept MemoryError:\n    print('gave up')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "gave up\n"


NO_TANH = Ability(1, ("aten.tanh.default",), "jax 0.10.2")


@pytest.mark.cases(1)
@pytest.mark.parametrize("measured", [None, MeasuredTopology(fleet("a", "b", "c"), ())])
def test_workers_that_lack_an_op_are_left_out_with_the_reason(measured: MeasuredTopology | None) -> None:
    abilities = {"a": Ability(1), "b": NO_TANH, "c": Ability(1)}
    job = training(microbatch_size=4)
    for count in (2, 0):
        answer = answered(tower(), job, "a", "b", "c", count=count, measured=measured, abilities=abilities)
        assert isinstance(answer, PlanMade) and "b" not in answer.result.plan.workers()
        assert len(answer.result.plan.workers()) == 2 or not count
        assert list(answer.result.unable) == ["b"] and "aten.tanh.default" in answer.result.unable["b"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("measured", [None, MeasuredTopology(fleet("a", "b"), ())])
def test_a_model_that_too_few_can_run_is_told_with_what_the_others_lack(
    measured: MeasuredTopology | None,
) -> None:
    job, abilities = training(microbatch_size=4), {"a": NO_TANH, "b": NO_TANH}
    answer = answered(tower(), job, "a", "b", count=0, measured=measured, abilities=abilities)
    assert isinstance(answer, PlanLacks) and list(answer.unable) == ["a", "b"]
    assert answer.unable["a"].startswith("its backend (jax 0.10.2) has no aten.tanh.default")
    answer = answered(tower(), job, "a", "b", measured=measured, abilities={"b": NO_TANH})
    assert isinstance(answer, PlanLacks) and list(answer.unable) == ["b"]


def considered(current: PlanMade, measured: MeasuredTopology | None, *workers: str, **slow: float) -> Any:
    """What comes of looking for a better plan of a job that runs."""
    graph = tower()
    command = ConsiderPlan(
        "job-1",
        3,
        digest_of(graph),
        training(microbatch_size=4),
        workers,
        2,
        current=current.result.plan,
        slow=slow,
    )
    return asyncio.run(consider(command, graph, measured, Timeouts(), lambda: 7.0))


@pytest.mark.full
def test_a_better_plan_is_looked_for_beside_the_one_that_a_job_has() -> None:
    measured = MeasuredTopology(fleet("a", "b", "c"), ())
    current = answered(tower(), training(microbatch_size=4), "a", "b", measured=measured)
    assert isinstance(current, PlanMade) and current.result.prediction is not None
    same = considered(current, measured, "a", "b")
    assert same.result.plan == current.result.plan
    assert same.current_seconds == pytest.approx(current.result.prediction.step_seconds)
    slow = considered(current, measured, "a", "b", "c", b=50.0)
    assert slow.current_seconds > 5 * same.current_seconds
    assert slow.result.prediction.step_seconds < 0.5 * slow.current_seconds
    assert "b" not in slow.result.plan.workers()


def test_without_measured_links_no_better_plan_is_looked_for() -> None:
    current = answered(tower(), training(microbatch_size=4), "a", "b")
    assert isinstance(current, PlanMade)
    found = considered(current, None, "a", "b")
    assert found.result is None and found.reason == "the links between its workers were not measured"


def test_workers_of_unlike_backends_are_no_replicas_of_each_other() -> None:
    """Their sums of gradients would be applied with unlike bits, so there are fewer replicas, and a note."""
    abilities = {"a": Ability(10_000, (), "torch", "cpu", "x"), "b": Ability(10_000, (), "jax", "cpu", "y")}
    answer = answered(
        tower(),
        training(microbatch_size=4),
        "a",
        "b",
        wishes=Wishes(replicas=2),
        abilities=abilities,
    )
    assert isinstance(answer, PlanMade)
    assert answer.result.plan.workers() == ["a"] and answer.result.plan.sums == []
    (note,) = [note for note in answer.result.notes if "replica" in note]
    assert note.startswith("1 replica, not 2: replicas need workers that compute the same bits")
    assert note.endswith("the largest group of these has 1 worker")
