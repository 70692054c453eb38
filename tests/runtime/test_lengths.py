"""Microbatches of several lengths in one step: the bits of eager, whatever the cut, and no mixture in one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec
import pytest
import torch
from benchmarks.zoo.side_by_side import SideBySide, workers
from tests.support.lengths import LENGTHS, classifier, language
from torch import Tensor

import farflung
from farflung.client.capture.check import capture_shapes
from farflung.client.run.microbatches import Microbatch, Microbatches
from farflung.errors import PayloadError
from farflung.opdag.buckets import in_buckets
from farflung.opdag.graph import Graph
from farflung.planner import plan_graph
from farflung.plans import FEEDER
from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.runtime.executor import Executor
from farflung.runtime.footprint import required_bytes
from farflung.runtime.parcel import Parcel
from farflung.runtime.torch_backend.segment import TorchSegment

torch.set_num_threads(1)
JOBS: dict[str, Callable[[], farflung.Job]] = {"gpt": language, "bert": classifier}
OF_JOBS = pytest.mark.parametrize("kind", JOBS)


@cache
def prepared(kind: str) -> tuple[farflung.Job, Graph, list[list[Microbatch]]]:
    """A job, its graph, and the microbatches of its steps."""
    job = JOBS[kind]()
    graph = capture_shapes(job).graph
    loader = Microbatches(job, graph)
    return job, graph, [loader.load_unit(unit) for unit in job.training().units() if unit.train]


def batches(step: list[Microbatch]) -> list[dict[str, Tensor]]:
    return [one.tensors for one in step]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("kind", "count", "recompute"),
    [("gpt", 1, False), ("gpt", 4, True), ("bert", 3, False), ("bert", 2, True)],
)
def test_a_run_on_any_number_of_workers_has_the_bits_of_eager(kind: str, count: int, recompute: bool) -> None:
    job, graph, steps = prepared(kind)
    training = msgspec.structs.replace(
        job.training(), validate_every=None, validation_microbatches=0, validate_twice=False
    )
    planned = plan_graph(graph, 4, 2, workers(count), recompute=recompute)
    run = SideBySide(job.model, graph, planned, training)
    for step in steps:
        ours, theirs = run.accumulate(batches(step))
        assert ours == theirs
        found, expected = run.gradients()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
        run.apply()


@OF_JOBS
def test_the_microbatches_of_these_jobs_have_all_lengths(kind: str) -> None:
    _, _, steps = prepared(kind)
    assert {one.bucket for step in steps for one in step} == set(range(len(LENGTHS)))
    for one in (one for step in steps for one in step):
        assert one.tensors["input_ids"].shape[1] == LENGTHS[-1 - one.bucket]


def executor_of(kind: str, count: int = 1) -> tuple[Executor[Tensor], list[Parcel[Tensor]], Graph]:
    """The first of some workers, and parcels that feed it with one of the shorter microbatches."""
    job, graph, steps = prepared(kind)
    planned = plan_graph(graph, 4, 2, workers(count))
    training = msgspec.structs.replace(job.training(), validation_microbatches=0, validate_twice=False)
    state = dict(job.model.named_parameters()) | dict(job.model.named_buffers())
    held = {e.name: state[e.name].detach().clone() for e in graph.inputs if e.kind in ("parameter", "buffer")}
    runner = TorchSegment(planned.segments[0], held, training)
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}
    one = next(one for step in steps for one in step if one.bucket)
    parcels = [
        Parcel(0, 0, FEEDER, 0, edge.value, False, one.tensors[names[edge.value]], one.bucket)
        for edge in planned.plan.edges
        if (edge.source, edge.target) == (FEEDER, 0)
    ]
    return Executor(planned.plan, {0: runner}, training, Nowhere()), parcels, graph


class Nowhere:
    """Drops what an executor makes."""

    def send(self, parcel: Parcel[Tensor]) -> None:
        pass

    def ready(self, unit: object, shares: object) -> None:
        pass


def test_one_microbatch_comes_in_one_bucket() -> None:
    executor, (first, second, *_), _ = executor_of("gpt")
    executor.receive(first)
    with pytest.raises(PayloadError, match=r"microbatch 0 came in bucket 0, others of it in [12]"):
        executor.receive(second._replace(bucket=0))
    executor.restart()
    executor.receive(second._replace(bucket=0))  # a step that runs again begins anew


def test_no_worker_is_named_where_two_do_not_agree_on_a_bucket() -> None:
    """The second may be right: a worker that was given a false bucket would be taken for the liar."""
    executor, fed, _ = executor_of("gpt", count=2)
    for parcel in fed:
        executor.receive(parcel)
    (back, *_) = [
        edge
        for edge in plan_graph(prepared("gpt")[1], 4, 2, workers(2)).plan.edges
        if (edge.source, edge.target) == (0, 1)
    ]
    gradient: Parcel[Tensor] = Parcel(0, 0, 1, 0, back.value, True, None, 0)
    with pytest.raises(PayloadError, match="came in bucket 0, others of it in") as refused:
        executor.receive(gradient)
    assert refused.value.sender is None


def test_shorter_batches_need_no_more_memory_than_the_longest() -> None:
    for segment in plan_graph(prepared("gpt")[1], 4, 2, workers(3)).segments:
        needed = [required_bytes(one, 2, 2) for one in in_buckets(segment)]
        assert needed == sorted(needed, reverse=True) and needed[0] > needed[-1]


def test_an_emulated_device_sends_and_computes_what_the_length_needs() -> None:
    _, graph, _ = prepared("gpt")
    job, segment = prepared("gpt")[0], plan_graph(graph, 4, 2, workers(2)).segments[0]
    backend = EmulatedBackend(1e6)
    runner = backend.runner(segment, {}, job.training())
    unit = next(unit for unit in job.training().units() if unit.train)
    sizes = []
    for bucket in range(len(LENGTHS)):
        made = runner.forward(unit, bucket, {}, bucket)
        sizes.append(sum(payload.size for payload in made.values()))
        runner.backward(unit, bucket, {}, lambda value, payload: None)
        runner.accumulate(unit, bucket)
    assert [size / sizes[0] for size in sizes] == [length / LENGTHS[-1] for length in reversed(LENGTHS)]
