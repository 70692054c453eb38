"""Several pipelines that train one model: equal to one process that adds gradients by the same tree."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from benchmarks.zoo import Case, case
from benchmarks.zoo.side_by_side import captured, microbatches, planned

from farflung.errors import CodecError
from farflung.opdag.capture.capture import LossModule
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob, place
from farflung.planner.assignment import Assignment
from farflung.planner.cutting.balanced import balanced_cut
from farflung.plans import Plan, dealt
from farflung.plans.codec_pair import codebook_of
from farflung.runtime.coding import Coding
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer
from farflung.runtime.parcel import Parcel
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.codecs import TensorCarrier
from farflung.runtime.training import ClipBy, Training
from farflung.workload import workload_of

torch.set_num_threads(1)
SAMPLES = 2
STEPS = 4


def replicated(plan: Plan, shares: list[int]) -> Plan:
    """The plan with one replica of each segment for each share, on workers of their own."""
    placements = [
        msgspec.structs.replace(p, workers=[f"{p.worker}-{replica}" for replica in range(len(shares))])
        for p in plan.placements
    ]
    return msgspec.structs.replace(plan, placements=placements, shares=shares, microbatches=sum(shares))


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", ["gpt-dropout", "gpt-tied", "resnet", "batch-norm"])
@pytest.mark.parametrize(
    ("shares", "sites", "optimizer"),
    [
        ([2, 2], [0, 1], AdamW(lr=1e-2)),
        ([3, 1], [0, 0], SGD(lr=0.05, momentum=0.9)),
        ([1, 2, 1, 1], [0, 0, 1, 2], AdamW(lr=1e-2)),
    ],
)
def test_pipelines_train_as_one_process_that_adds_in_the_same_order(
    name: str, shares: list[int], sites: list[int], optimizer: Optimizer
) -> None:
    trains_as_one_process(name, shares, sites, optimizer)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt", "gpt-tied", "gpt2-fused", "resnet"])
@pytest.mark.parametrize(
    ("shares", "sites", "segments"),
    [([2, 2], [0, 1], 2), ([5, 3], [0, 1], 3), ([2, 2, 2, 2], [0, 0, 1, 1], 4)],
)
def test_they_do_so_for_fifty_steps(name: str, shares: list[int], sites: list[int], segments: int) -> None:
    """With a tied table the last bits of sums differ, which AdamW makes larger: to 0.3 % after 50 steps."""
    trains_as_one_process(name, shares, sites, AdamW(lr=3e-3), segments, steps=50)


@pytest.mark.parametrize(
    ("name", "depths", "shares", "sites"),
    [
        ("gpt-dropout", [1, 3], [3, 1], [0, 1]),
        ("gpt-tied", [3, 1], [2, 2], [0, 0]),
        ("resnet", [1, 3], [1, 3], [0, 1]),
        ("batch-norm", [2, 3, 1], [1, 2, 1], [0, 0, 1]),
    ],
)
def test_pipelines_with_cuts_of_their_own_do_so_too(
    name: str, depths: list[int], shares: list[int], sites: list[int]
) -> None:
    trains_as_one_process(name, shares, sites, AdamW(lr=1e-2), depths)


def test_they_clip_each_segment_alike() -> None:
    trains_as_one_process("gpt", [2, 2], [0, 1], AdamW(lr=3e-3), clip_by="segment")


def trains_as_one_process(
    name: str,
    shares: list[int],
    sites: list[int],
    optimizer: Optimizer,
    depths: int | Sequence[int] = 2,
    steps: int = STEPS,
    clip_by: ClipBy = "global",
) -> None:
    """Train `name` in pipelines of these depths, beside one process that adds by the same tree."""
    subject = case(name)
    module, graph = captured(subject, SAMPLES)
    training = Training(steps, sum(shares), SAMPLES, optimizer, seed=3, clip=0.5, clip_by=clip_by)
    one = planned(graph, training, depths if isinstance(depths, int) else depths[0])
    if isinstance(depths, int):
        made = PlannedJob(replicated(one.plan, shares), one.segments)
    else:
        made = beside_each_other(graph, depths, shares)
    where = {w: f"site {sites[int(w[-1])]}" for w in made.plan.workers()}
    job = made.unfolded(SAMPLES, where)
    state = named_state(copy.deepcopy(module), graph)
    segments = received(job.programs, SAMPLES)
    pipeline = InProcessPipeline(graph, job.plan, segments, state, training)

    eager = copy.deepcopy(module)
    wrapper = LossModule(eager, subject.loss)
    owned = [segment.owned for segment in one.segments]
    reference = Reference(eager, lambda batch: wrapper(dict(batch)), graph, training, owned=owned)
    numbers = dealt(sum(shares), tuple(shares))
    tree = [[numbers[p] for p in range(len(shares)) if sites[p] == site] for site in dict.fromkeys(sites)]
    for step in range(steps):
        batches = microbatches(subject, SAMPLES, sum(shares), step)
        found = pipeline.run(step, batches)
        expected = reference.accumulate(batches, tree)
        is_near = step < STEPS or not subject.tolerance
        assert sum(share.loss for share in found) == pytest.approx(expected, rel=1e-6 if is_near else 1e-2)
        for sums in ({s.segment: s.squares for s in found}, {s.segment: s.bits for s in found}):
            first, *others = by_pipeline(job.plan, sums)
            assert first and all(other == first for other in others)  # the same, bit for bit
        norm = gradient_norm(share.squares for share in found)
        pipeline.decide(step, clip_scale(training.global_clip, norm))
        reference.apply()
        theirs = named_state(eager, graph)
        for key, tensor in state.items():
            if is_near:
                assert torch.allclose(tensor, theirs[key], rtol=0, atol=subject.tolerance), (step, key)
    trained = by_pipeline(job.plan, {at: segment.state() for at, segment in enumerate(pipeline.segments)})
    parameters = {entry.name for entry in graph.inputs_of("parameter")}
    for held in trained:
        assert held.keys() >= parameters
        assert all(torch.equal(held[key], trained[0][key]) for key in parameters)


def by_pipeline(plan: Plan, found: Mapping[int, Mapping[Any, Any]]) -> list[dict[Any, Any]]:
    """What all segments of each pipeline have together."""
    together: list[dict[Any, Any]] = [{} for _ in plan.pipelines]
    for segment, each in found.items():
        together[plan.pipeline_of(segment)].update(each)
    return together


def beside_each_other(graph: Graph, depths: Sequence[int], shares: Sequence[int]) -> PlannedJob:
    """Pipelines of these depths, each with a cut of its own, on workers whose names end with its number."""
    parts = []
    for number, (depth, share) in enumerate(zip(depths, shares, strict=True)):
        cut = balanced_cut(workload_of(graph, share, SAMPLES), depth)
        workers = tuple((f"w{at}-{number}",) for at in cut.devices)
        parts.append(Assignment(cut.cuts, workers, share, window=depth + 1))
    first, *others = parts
    whole = replace(first, microbatches=sum(shares), shares=tuple(shares), others=tuple(others))
    return place(graph, whole, SAMPLES)


def coded_plan(graph: Graph, codec: str) -> tuple[PlannedJob, Training]:
    """A GPT in two pipelines at two sites, with `codec` on the sums between them."""
    training = Training(12, 4, SAMPLES, AdamW(lr=3e-3), seed=3, clip=0.5)
    training = training.with_codecs(codebook_of([codec]))
    one = planned(graph, training, 2)
    plan = msgspec.structs.replace(replicated(one.plan, [2, 2]), sum_codec=codec)
    where = {worker: worker[-1] for worker in plan.workers()}
    return PlannedJob(plan, one.segments).unfolded(SAMPLES, where), training


def coded_job(codec: str) -> tuple[InProcessPipeline, Case, Training]:
    """It with new weights, to be trained."""
    subject = case("gpt-tied")
    module, graph = captured(subject, SAMPLES)
    job, training = coded_plan(graph, codec)
    segments = received(job.programs, SAMPLES)
    state = named_state(copy.deepcopy(module), graph)
    return InProcessPipeline(graph, job.plan, segments, state, training), subject, training


def train(pipeline: InProcessPipeline, subject: Case, training: Training, stumbles: int = -1) -> list[float]:
    """The losses of all steps; step `stumbles` is dropped when it has run, and runs again."""
    losses = []
    for step in range(training.steps):
        batches = microbatches(subject, SAMPLES, training.microbatches, step)
        found = pipeline.run(step, batches)
        if step == stumbles:
            pipeline.restart()
            found = pipeline.run(step, batches)
        losses.append(sum(share.loss for share in found))
        norm = gradient_norm(share.squares for share in found)
        pipeline.decide(step, clip_scale(training.clip, norm))
    return losses


def weights(pipeline: InProcessPipeline) -> list[dict[str, torch.Tensor]]:
    """The parameters of each pipeline."""
    half = len(pipeline.segments) // 2
    parts = (pipeline.segments[:half], pipeline.segments[half:])
    return [{k: v.clone() for each in part for k, v in each.state().items()} for part in parts]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("codec", "near"), [("int8", 0.003), ("hadamard4", 0.02), ("topk30-bf16", 0.1)])
def test_replicas_stay_equal_bit_for_bit_with_a_codec_on_their_sums(codec: str, near: float) -> None:
    exact, *rest = coded_job("dense")
    expected = train(exact, *rest)
    pipeline, *rest = coded_job(codec)
    losses = train(pipeline, *rest)
    first, second = weights(pipeline)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert losses != expected and losses == pytest.approx(expected, rel=near)
    assert any(not torch.equal(first[name], exact_one) for name, exact_one in weights(exact)[0].items())


def test_a_step_that_runs_again_leaves_the_same_residuals() -> None:
    undisturbed, disturbed = coded_job("int8"), coded_job("int8")
    assert train(*undisturbed) == train(*disturbed, stumbles=5)
    for mine, theirs in zip(weights(undisturbed[0]), weights(disturbed[0]), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("codec", ["int8", "topk30-bf16"])
def test_a_newcomer_without_residuals_has_the_bits_of_its_replicas(codec: str) -> None:
    """What it has not left out yet changes its messages, but all replicas read the same ones."""
    undisturbed, (pipeline, subject, training) = coded_job(codec), coded_job(codec)
    losses = []
    for step in range(training.steps):
        if step == 5:
            graph = captured(subject, SAMPLES)[1]
            job, _ = coded_plan(graph, codec)
            taker = job.plan.worker_of(len(job.segments) - 1)
            mine = [one for one in job.segments if job.plan.worker_of(one.number) == taker]
            pipeline.codings[taker] = Coding(taker, job.plan, training, mine, step)
        found = pipeline.run(step, microbatches(subject, SAMPLES, training.microbatches, step))
        losses.append(sum(share.loss for share in found))
        half = len(found) // 2
        assert [one.bits for one in found[:half]] == [one.bits for one in found[half:]]
        pipeline.decide(step, clip_scale(training.clip, gradient_norm(share.squares for share in found)))
    first, second = weights(pipeline)
    assert all(torch.equal(first[name], second[name]) for name in first)
    expected = train(*undisturbed)
    assert losses[:6] == expected[:6] and losses != expected
    assert losses == pytest.approx(expected, rel=0.03)


def test_sums_of_tensors_on_a_device_have_the_bits_of_those_in_memory() -> None:
    """A device's sums are coded on the host: two steps, so that the second has residuals."""
    job, training = coded_plan(captured(case("gpt-tied"), SAMPLES)[1], "int8")
    one = max(job.plan.sums, key=lambda each: each.bytes)
    head = next(each for each in one.heads if each != one.owner)
    coders: dict[int, list[Coding]] = {}
    for segment in (head, one.owner):
        mine = [s for s in job.segments if job.plan.worker_of(s.number) == job.plan.worker_of(segment)]
        arguments = (job.plan.worker_of(segment), job.plan, training, mine, 0)
        device = TensorCarrier(torch.device("cpu"))
        coders[segment] = [Coding(*arguments), Coding(*arguments, device)]
    shape = job.segments[head].values[one.value].shape_at(SAMPLES)
    for unit in range(2):
        up = torch.randn(shape, generator=torch.Generator().manual_seed(unit))
        for source, target in ((head, one.owner), (one.owner, head), (one.owner, one.owner)):
            parcel = Parcel(unit, 0, source, target, one.value, source == head, None)
            on_host, on_device = coders[source]
            sent = on_host.encode(parcel._replace(payload=tensors.memory(up)))
            again = on_device.encode(parcel._replace(payload=up))
            assert sent.payload is not None and again.payload is not None
            assert len(sent.payload.data) < one.bytes / 3.5
            assert bytes(sent.payload.data) == bytes(again.payload.data)
            on_host, on_device = coders[target]
            read = on_host.decode(sent, tensors.allocate).payload
            tensor = on_device.decode(again, tensors.allocate).payload
            assert bytes(read) == bytes(tensors.memory(tensor))
        for each in (coding for both in coders.values() for coding in both):
            each.decided(unit)


def test_a_codec_of_sums_must_be_in_the_codebook_and_fit_sums() -> None:
    subject = case("gpt-tied")
    _, graph = captured(subject, SAMPLES)
    training = Training(1, 2, SAMPLES, SGD(lr=0.1))
    one = planned(graph, training, 1)
    for codebook, codec, complaint in (
        ((), "int8", "sums use codec 'int8', which is not in the job's codebook"),
        (("axes30",), "axes30", "sums of gradients cannot use codec axes30, because"),
    ):
        plan = msgspec.structs.replace(one.plan, sum_codec=codec)
        with pytest.raises(CodecError, match=complaint):
            Coding("a", plan, training.with_codecs(codebook), [])
