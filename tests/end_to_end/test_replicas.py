"""Replicas of a model on worker processes over TLS: equal to one process that adds in their order."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.kills.in_sum import order_strike, striking_sources, struck_at
from tests.end_to_end.fleets import Fleet, running, trained_state
from tests.end_to_end.installations import SEGMENT, installation
from tests.end_to_end.test_faults import assert_same
from tests.end_to_end.zoo_jobs import MICROBATCHES, job_of, microbatches_of
from tests.support.processes import Command, Machines, Run, eventually, machines, train
from torch import Tensor

import farflung
from farflung.client.api.load import load_job
from farflung.client.capture.check import capture_shapes
from farflung.client.options.codecs import parse_codecs
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
from farflung.data import SampleOrder
from farflung.opdag.capture.capture import LossModule
from farflung.planner import plan_job
from farflung.planner.replicas import evenly_replicated
from farflung.plans import Plan, Topology, Wishes, WorkerSpec, dealt, read_plan
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import named_state

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(4, tmp_path_factory.mktemp("fleet")) as started:
        yield started


def one_process(job: farflung.Job, shares: Sequence[int]) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and state of one process that adds the gradients of each pipeline, and then the pipelines'."""
    module = copy.deepcopy(job.model)
    wrapper = LossModule(module, None, job.precision)
    graph = capture_shapes(job).graph
    reference = Reference(module, lambda batch: wrapper(dict(batch)), graph, job.training())
    tree = [[numbers] for numbers in dealt(sum(shares), tuple(shares))]
    losses = []
    for step in range(job.steps):
        losses.append(reference.accumulate(microbatches_of(job, step, sum(shares)), tree))
        reference.apply()
    return losses, module.state_dict()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "replicas"),
    [
        ("gpt-dropout", 2),
        ("resnet", 4),
        pytest.param("gpt-dropout", 4, marks=pytest.mark.full),
        pytest.param("resnet", 2, marks=pytest.mark.full),
    ],
)
def test_losses_and_parameters_equal_one_process_bit_for_bit(fleet: Fleet, name: str, replicas: int) -> None:
    job = job_of(name, 12, farflung.AdamW(lr=3e-3), clip=0.5)
    summary, rows, folder = fleet.run(job, 4, Wishes(replicas=replicas))
    plan = read_plan(folder)
    shares = [one.microbatches for one in plan.pipelines]
    assert (summary.state, len(shares), sum(shares)) == ("done", replicas, MICROBATCHES)
    losses, state = one_process(job, shares)
    assert [row["loss"] for row in rows] == losses
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[key], value) for key, value in state.items())


def unlike_devices() -> Topology:
    """Worker 0 at one site, four times as fast as each of three at another, over a slow line."""
    sites = ["north", "south", "south", "south"]
    workers = tuple(
        WorkerSpec(f"worker-{number}", site, 4e-4 if number == 0 else 1e-4, 8.0)
        for number, site in enumerate(sites)
    )
    rates = tuple(tuple(1000.0 if a == b else 10.0 for b in sites) for a in sites)
    return Topology(workers, tuple(tuple(0.0 if a == b else 20.0 for b in sites) for a in sites), rates)


def test_replicas_with_cuts_of_their_own_equal_one_process_bit_for_bit(fleet: Fleet) -> None:
    """The planner cuts each for its own devices; gradients are added over unlike segments."""
    job = job_of("gpt-dropout", 8, farflung.AdamW(lr=3e-3), clip=0.5)
    summary, rows, folder = fleet.run(job, 4, Wishes(replicas=2, topology=unlike_devices()))
    plan = read_plan(folder)
    assert (summary.state, [one.segments for one in plan.pipelines]) == ("done", [1, 3])
    losses, state = one_process(job, [one.microbatches for one in plan.pipelines])
    assert [row["loss"] for row in rows] == losses
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[key], value) for key, value in state.items())


@pytest.mark.full
def test_codecs_apply_within_pipelines_and_sums_stay_exact(fleet: Fleet) -> None:
    job = job_of("gpt", 6, farflung.AdamW(lr=3e-3), codec="int8")
    summary, rows, _ = fleet.run(job, 4, Wishes(replicas=2, codecs=parse_codecs(["int8"]).wishes))
    dense_rows = fleet.run(job_of("gpt", 6, farflung.AdamW(lr=3e-3)), 4, Wishes(replicas=2))[1]
    assert summary.state == "done"
    losses = [row["loss"] for row in rows]
    assert losses != [row["loss"] for row in dense_rows]
    assert losses == pytest.approx([row["loss"] for row in dense_rows], rel=0.02)


def run_in_process(job: farflung.Job, plan: Plan) -> tuple[list[float], list[dict[str, Tensor]]]:
    """Losses, and the parameters of each pipeline, of `plan` with its codecs in this process."""
    graph = capture_shapes(job).graph
    training = job.training().with_codecs((plan.sum_codec,))
    one = plan_job(graph, MICROBATCHES, job.microbatch_size, plan.workers()[:2], exactly=True)
    made = replace(one, plan=evenly_replicated(one.plan, plan.workers(), 2)).unfolded(job.microbatch_size, {})
    module = copy.deepcopy(job.model)
    pipeline = InProcessPipeline(graph, plan, made.segments, named_state(module, graph), training)
    losses = []
    for step in range(job.steps):
        shares = pipeline.run(step, microbatches_of(job, step))
        losses.append(sum(share.loss for share in shares))
        pipeline.decide(step, 1.0)
    halves = pipeline.segments[:2], pipeline.segments[2:]
    return losses, [{name: t for one in half for name, t in one.state().items()} for half in halves]


@pytest.mark.full
def test_replicas_with_a_codec_on_their_sums_are_equal_bit_for_bit_and_learn(fleet: Fleet) -> None:
    """Worker processes have the bits of one process, in which both replicas can be looked at."""
    job = replace(job_of("gpt", 12, farflung.AdamW(lr=3e-3)), sum_codec="int8")
    summary, rows, folder = fleet.run(job, 4, Wishes(replicas=2))
    plan = read_plan(folder)
    assert (summary.state, plan.sum_codec) == ("done", "int8")
    losses, (first, second) = run_in_process(job, plan)
    assert [row["loss"] for row in rows] == losses
    assert all(torch.equal(first[name], second[name]) for name in first)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[name], first[name]) for name in first)
    exact = fleet.run(replace(job, sum_codec="dense"), 4, Wishes(replicas=2))[1]
    assert losses != [row["loss"] for row in exact]
    assert losses == pytest.approx([row["loss"] for row in exact], rel=0.01)


@pytest.mark.full
def test_a_run_with_a_codec_on_sums_goes_on_from_a_checkpoint(fleet: Fleet, tmp_path: Path) -> None:
    job = replace(job_of("gpt", 8, farflung.AdamW(lr=3e-3)), sum_codec="int8")
    whole = [row["loss"] for row in fleet.run(job, 4, Wishes(replicas=2))[1]]
    store = CheckpointStore.open(tmp_path / "checkpoints")
    stopped = Checkpointing(CheckpointPolicy(), store, "r")
    fleet.run(replace(job, steps=4), 4, Wishes(replicas=2), checkpointing=stopped)
    resumed = Checkpointing(CheckpointPolicy(end=False), store, "r", store.load(), attempts=1)
    again = [fleet.run(job, 4, Wishes(replicas=2), checkpointing=resumed)[1] for _ in range(2)]
    losses = [[row["loss"] for row in rows] for rows in again]
    assert losses[0] == losses[1]  # with no residuals at its beginning, each time
    assert losses[0] == pytest.approx(whole[4:], rel=0.01)


@pytest.mark.full
def test_a_run_with_replicas_goes_on_with_one_or_others(fleet: Fleet, tmp_path: Path) -> None:
    job = job_of("gpt-dropout", 8, farflung.AdamW(lr=3e-3), clip=0.5)
    whole = fleet.run(job, 4, Wishes(replicas=2))[1]
    store = CheckpointStore.open(tmp_path / "checkpoints")
    stopped = Checkpointing(CheckpointPolicy(), store, "r")
    fleet.run(replace(job, steps=4), 4, Wishes(replicas=2), checkpointing=stopped)
    for wishes, workers in ((Wishes(replicas=2), 4), (Wishes(), 2)):
        resumed = Checkpointing(CheckpointPolicy(end=False), store, "r", store.load(), attempts=1)
        rows = fleet.run(job, workers, wishes, checkpointing=resumed)[1]
        losses = {row["step"]: row["loss"] for row in rows}
        expected = {row["step"]: row["loss"] for row in whole if row["step"] > 4}
        if wishes.replicas == 2:
            assert losses == expected
        assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.full
def test_replicas_on_jax_agree_with_one_process(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    job = job_of("gpt", 5, farflung.AdamW(lr=3e-3), clip=0.5)
    with running(2, tmp_path, ["jax", "jax"]) as fleet:
        summary, rows, folder = fleet.run(job, 2, Wishes(replicas=2))
    losses, state = one_process(job, [2, 2])
    assert (summary.state, len(read_plan(folder).pipelines)) == ("done", 2)
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.allclose(ours[key], value, rtol=0, atol=1e-4) for key, value in state.items())


@pytest.mark.full
def test_only_workers_that_compute_alike_are_replicas(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    job = job_of("gpt", 2, farflung.AdamW(lr=3e-3))
    with running(3, tmp_path, ["torch", "torch", "jax"]) as fleet:
        summary, _, folder = fleet.run(job, 3, Wishes(replicas=2))
    assert (summary.state, read_plan(folder).workers()) == ("done", ["worker-0", "worker-1"])


def fleet_of(
    on: Machines, names: str, sources: Path | None = None
) -> tuple[Command, dict[str, Command], list[str]]:
    """A broker, idle workers of these names (of `sources`), and the options with which a submitter joins."""
    broker, token = on.broker(), on.token("worker", "--uses", str(len(names)))
    workers = {name: on.worker(name, token, sources) for name in names}
    for worker in workers.values():
        worker.says("idle in the backup pool")
    return broker, workers, ["--token", on.token("submitter"), "--broker", on.address]


def steps_of(run: Run) -> list[int]:
    return [row["step"] for row in run.rows]


FLIPPED = """

_steps = 0
_apply, _set = TorchSegment.apply, TorchSegment.set_parameter_gradient


def _counting(self, step, scale):
    global _steps
    _steps = step + 1
    _apply(self, step, scale)


def _flipped(self, value, gradient):
    _set(self, value, gradient)
    if _steps == 5 and value == min(self.parameter_gradients()):
        at = next(at for at, entry in enumerate(self._entries) if entry.value == value)
        self._state[at].grad.view(torch.int32).view(-1)[0] ^= 1


TorchSegment.apply, TorchSegment.set_parameter_gradient = _counting, _flipped
"""


@pytest.mark.full
@pytest.mark.faults
def test_one_flipped_bit_of_a_sum_is_caught_at_its_commit(tmp_path: Path) -> None:
    with machines(tmp_path) as on:
        broker, token = on.broker(), on.token("worker", "--uses", "2")
        sources = installation(tmp_path / "sources", {SEGMENT: lambda text: text + FLIPPED})
        workers = [on.worker("a", token), on.worker("b", token, sources)]
        for worker in workers:
            worker.says("idle in the backup pool")
        options = ["--token", on.token("submitter"), "--broker", on.address, "--steps", "20"]
        run = train(on, "flipped", "--workers", "2", "--replicas", "2", *options)
        assert "have unlike gradients of one parameter" in run.fails()
        assert steps_of(run) == [1, 2, 3, 4, 5]
        for command in (*workers, broker):
            command.stop()


@pytest.mark.cases(1)
@pytest.mark.faults
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_killed_or_frozen_in_a_sum_changes_no_bit_and_no_step_runs_again(
    tmp_path: Path, by: signal.Signals
) -> None:
    sources = striking_sources(tmp_path / "sources")
    with machines(tmp_path) as on:
        broker, workers, first = fleet_of(on, "abcde", sources)
        options = ["--workers", "4", "--replicas", "2", "--steps", "30"]
        undisturbed = train(on, "undisturbed", *options, *first)
        assert undisturbed.command.code() == 0
        run = train(on, "struck", *options)
        run.reaches(8)
        struck = run.workers[-1]
        order_strike(tmp_path / struck, by, after=1)
        assert_same(run, undisturbed)
        assert struck_at(tmp_path / struck) is not None
        assert steps_of(run) == list(range(1, 31)) and not run.events("rolled back")
        assert struck not in run.workers and len(run.workers) == 4
        workers[struck].signal(signal.SIGCONT)
        for command in (*(one for name, one in workers.items() if name != struck), broker):
            command.stop()
        if by == signal.SIGSTOP:
            workers[struck].stop()


@pytest.mark.full
@pytest.mark.faults
def test_a_newcomer_without_residuals_has_the_bits_of_its_replicas(tmp_path: Path) -> None:
    """Replicas compare their gradients at each commit: it would end the job if theirs had other bits."""
    with machines(tmp_path) as on:
        broker, workers, first = fleet_of(on, "abcde")
        options = ["--workers", "4", "--replicas", "2", "--sum-codec", "int8", "--steps", "24"]
        whole = train(on, "whole", *options, *first)
        assert whole.command.code() == 0
        run = train(on, "killed", *options)
        run.reaches(8)
        killed = run.workers[-1]
        workers[killed].signal(signal.SIGKILL)
        assert run.command.code() == 0
        assert killed not in run.workers and len(run.workers) == 4
        assert steps_of(run) == list(range(1, 25))
        losses = [row["loss"] for row in run.rows]
        assert losses == pytest.approx([row["loss"] for row in whole.rows], rel=0.02)
        for command in (*(one for name, one in workers.items() if name != killed), broker):
            command.stop()


def as_it_was_dealt(run: Run, shares: Mapping[int, Sequence[int]]) -> list[float]:
    """Losses of one process that adds each step's gradients as the replicas did that there were.

    `shares` has the microbatches of each replica from a step on.
    """
    job = load_job(run.folder.parent / "net.py")
    module = copy.deepcopy(job.model)
    wrapper = LossModule(module, None, job.precision)
    reference = Reference(
        module, lambda batch: wrapper(dict(batch)), capture_shapes(job).graph, job.training()
    )
    losses = []
    for row in run.rows:
        parts = shares[max(step for step in shares if step < row["step"])]
        tree = [[numbers] for numbers in dealt(sum(parts), tuple(parts)) if numbers]
        indices = SampleOrder(len(job.data), job.batch, job.seed).indices(row["step"] - 1)
        items = [job.data[index] for index in indices]
        split = {name: torch.stack([item[name] for item in items]).chunk(sum(parts)) for name in items[0]}
        batches = [{name: pieces[at] for name, pieces in split.items()} for at in range(sum(parts))]
        losses.append(reference.accumulate(batches, tree))
        reference.apply()
    return losses


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.parametrize(("count", "replicas"), [(4, 2), (3, 3)])
def test_a_run_goes_on_with_what_is_left_of_its_replicas(tmp_path: Path, count: int, replicas: int) -> None:
    with machines(tmp_path) as on:
        broker, workers, first = fleet_of(on, "abcd"[:count])
        options = ["--workers", str(count), "--replicas", str(replicas), "--steps", "30"]
        run = train(on, "left", *options, *first)
        run.reaches(8)
        before = read_plan(run.folder / "plan.json")
        killed = run.workers[-1]
        workers[killed].signal(signal.SIGKILL)
        assert run.command.code() == 0
        after = read_plan(run.folder / "plan.json")
        assert steps_of(run) == list(range(1, 31)) and not run.events("rolled back")
        assert killed not in run.workers and len(after.live_pipelines()) == replicas - 1
        at = run.events("regrouping")[-1]["unit"]
        shares = {0: [one.microbatches for one in before.pipelines]}
        shares[at] = [one.microbatches for one in after.pipelines]
        assert [row["loss"] for row in run.rows] == as_it_was_dealt(run, shares)
        for command in (*(one for name, one in workers.items() if name != killed), broker):
            command.stop()


@pytest.mark.full
@pytest.mark.faults
def test_a_worker_that_joins_makes_the_lost_replica_again(tmp_path: Path) -> None:
    with machines(tmp_path) as on:
        broker, workers, first = fleet_of(on, "ab")
        run = train(on, "again", "--workers", "2", "--replicas", "2", *first)
        run.reaches(6)
        lost = run.workers[-1]
        workers.pop(lost).signal(signal.SIGKILL)
        eventually("one replica is left", lambda: lost not in run.workers)
        workers["c"] = on.worker("c", on.token("worker"))
        eventually("the other replica again", lambda: "c" in run.workers)
        run.reaches(len(run.rows) + 3)
        run.command.stop()
        assert steps_of(run) == list(range(1, len(run.rows) + 1)) and not run.events("rolled back")
        for command in (*workers.values(), broker):
            command.stop()
