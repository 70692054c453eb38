"""DiLoCo in one process: equal to a plain loop over torch modules, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from tests.end_to_end.zoo_jobs import MICROBATCHES, job_of, microbatches_of
from torch import Tensor, nn

import farflung
from farflung.broker.core.training.commit import CommitGroup
from farflung.client.capture.check import capture_shapes
from farflung.opdag.capture.capture import LossModule
from farflung.planner import plan_job
from farflung.planner.replicas import evenly_replicated
from farflung.plans import Plan, dealt, seated
from farflung.plans.seating import dealt_anew
from farflung.protocol.messages import UnitReady
from farflung.protocol.worker import Share
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import Snapshot, part_of
from farflung.runtime.torch_backend.optimizers.update import square_sums

STEPS = 10
Batch = dict[str, Tensor]


def parts_of(batches: Sequence[Batch], shares: Sequence[int]) -> list[list[Batch]]:
    """The microbatches of each replica, dealt in turn."""
    return [[batches[number] for number in part] for part in dealt(len(batches), tuple(shares))]


def plain_loop(
    job: farflung.Job, replicas: int, left_out: range = range(0)
) -> tuple[list[float], list[dict[str, Tensor]]]:
    """Losses, and each replica's state, of DiLoCo as one would write it with `torch.optim`.

    In the steps that are `left_out`, up to a merge, the last replica has no part. Then it goes on with what
    the merge left, and with the inner optimizer's state of the first.
    """
    sync, optimizer = job.sync, job.optimizer
    assert sync is not None and isinstance(optimizer, farflung.AdamW)
    models: list[nn.Module] = [copy.deepcopy(job.model) for _ in range(replicas)]
    losses_of = [LossModule(model, None, job.precision) for model in models]
    inner = [torch.optim.AdamW(model.parameters(), lr=optimizer.lr, foreach=False) for model in models]
    anchors = [p.detach().clone().requires_grad_() for p in job.model.parameters()]
    outer = torch.optim.SGD(anchors, lr=sync.outer.lr, momentum=sync.outer.momentum, nesterov=True)
    values = {entry.name: entry.value for entry in capture_shapes(job).graph.inputs}
    losses = []
    for step in range(job.steps):
        shares = [MICROBATCHES // replicas] * replicas
        if step < sync.warmup:
            shares = [MICROBATCHES, *[0] * (replicas - 1)]
        elif step in left_out:
            shares = dealt_anew(shares, range(replicas - 1))
        together = 0.0
        for r, part in enumerate(parts_of(microbatches_of(job, step), shares)):
            inner[r].zero_grad()
            for batch in part:
                loss = losses_of[r](dict(batch))
                (loss / len(part)).backward()
                together += loss.item() / MICROBATCHES
            if part:
                clip(models[r], job.clip, values)
            if part:
                inner[r].step()
        losses.append(together)
        if step + 1 == sync.warmup:
            for at, own in enumerate(zip(*(model.parameters() for model in models), strict=True)):
                anchors[at].data.copy_(own[0].data)
        elif (step + 1 - sync.warmup) % sync.inner_steps == 0 or step + 1 == job.steps:
            for at, own in enumerate(zip(*(model.parameters() for model in models), strict=True)):
                moved = [
                    (anchors[at].data - one.data) * (share / MICROBATCHES)
                    for one, share in zip(own, shares, strict=True)
                    if share
                ]
                anchors[at].grad = sum(moved[1:], moved[0])
            outer.step()
            if step in left_out:
                inner[-1].load_state_dict(copy.deepcopy(inner[0].state_dict()))
        else:
            continue
        for model in models:
            for anchor, own_parameter in zip(anchors, model.parameters(), strict=True):
                own_parameter.data.copy_(anchor.data)
    return losses, [{name: t.detach() for name, t in model.state_dict().items()} for model in models]


def clip(model: nn.Module, bound: float | None, values: Mapping[str, int]) -> None:
    """Bound the norm of all gradients, added in the order of the graph's `values`."""
    named = {values[name]: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = gradient_norm([dict(zip(named, square_sums(named.values()), strict=True))])
    for gradient in named.values():
        gradient.mul_(clip_scale(bound, norm))


def pipeline_of(job: farflung.Job, replicas: int, codec: str = "dense", first: int = 0) -> InProcessPipeline:
    graph = capture_shapes(job).graph
    training = job.training().with_codecs(() if codec == "dense" else (codec,))
    workers = [f"w{number}" for number in range(2 * replicas)]
    one = plan_job(graph, MICROBATCHES, job.microbatch_size, workers[:2], exactly=True)
    plan = msgspec.structs.replace(evenly_replicated(one.plan, workers, replicas), sum_codec=codec)
    made = replace(one, plan=plan).unfolded(job.microbatch_size, {})
    module = copy.deepcopy(job.model)
    return InProcessPipeline(graph, made.plan, made.segments, named_state(module, graph), training, first)


def run(
    pipeline: InProcessPipeline, job: farflung.Job, first: int = 0, end: int | None = None
) -> list[float]:
    """Losses of the job's steps in units `first` to before `end`, decided as the broker decides them."""
    losses, training = [], job.training()
    for unit in training.units().since(first):
        if unit.number == end:
            break
        batches = microbatches_of(job, unit.step) if unit.train else []
        found = pipeline.run(unit.number, batches)
        group = CommitGroup.for_plan(pipeline.plan, 1, unit, is_apart=not training.has_sums(unit))
        for worker in pipeline.plan.workers():
            mine = [share for share in found if share.segment in pipeline.plan.segments_of(worker)]
            shares = [Share(s.segment, s.finite, s.loss, s.squares) for s in mine]
            group = group.add(worker, UnitReady("j", 1, unit.number, shares, 0))
        verdict = group.verdict(training.clip)
        assert not verdict.trouble
        pipeline.decide(unit.number, verdict.scale, verdict.scales)
        losses += [verdict.loss] if unit.train else []
    return losses


def parameters_of(pipeline: InProcessPipeline, replicas: int) -> list[dict[str, Tensor]]:
    each = len(pipeline.segments) // replicas
    parts = [pipeline.segments[at * each : (at + 1) * each] for at in range(replicas)]
    return [{name: t for one in part for name, t in one.state().items()} for part in parts]


def resumed(job: farflung.Job, step: int, merged: bool = True) -> list[float]:
    """Losses after `step` of two replicas that all begin with what the first one had then."""
    first = job.training().units().after(step, evaluated=False, merged=merged)
    assert first is not None
    before, after = pipeline_of(job, 2), pipeline_of(job, 2, first=first)
    run(before, job, end=first)
    for segment in after.segments:
        state: Snapshot = {}  # of its own: a segment goes on in the memory that it is given
        for first_ones in before.segments[:2]:
            state |= first_ones.snapshot(set(first_ones.segment.owned), slots=True)
        segment.restore(part_of(segment.segment, state))
    return run(after, job, first)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "optimizer", [farflung.AdamW(lr=3e-3), farflung.SGD(lr=0.1, momentum=0.9, dampening=0.5)]
)
def test_a_replica_that_waited_in_the_warm_up_begins_as_new_after_a_restore(optimizer: Any) -> None:
    """All go on from states of their own: the numbers come again, also where a rule counts no updates."""
    job = replace(job_of("gpt", STEPS, optimizer), sync=farflung.DiLoCo(inner_steps=3, warmup=4))
    whole = pipeline_of(job, 2)
    losses = run(whole, job)
    before, after = pipeline_of(job, 2), pipeline_of(job, 2, first=2)
    run(before, job, end=2)
    for old, new in zip(before.segments, after.segments, strict=True):
        new.restore(old.snapshot(set(old.segment.owned), slots=True))
    assert run(after, job, 2) == losses[2:]


def test_a_run_that_stopped_in_a_merge_begins_with_it() -> None:
    job = replace(job_of("gpt", STEPS, farflung.AdamW(lr=3e-3)), sync=farflung.DiLoCo(inner_steps=3))
    before, behind = resumed(job, 3, merged=False), resumed(job, 3)
    assert len(before) == len(behind) == STEPS - 3
    assert before != behind  # the first one merges what the first replica has learned alone


@pytest.mark.cases(2)
@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("bound", [None, 0.5])
def test_equals_a_plain_loop_bit_for_bit(replicas: int, warmup: int, bound: float | None) -> None:
    sync = farflung.DiLoCo(inner_steps=3, warmup=warmup)
    job = replace(job_of("gpt", STEPS, farflung.AdamW(lr=3e-3), clip=bound), sync=sync)
    pipeline = pipeline_of(job, replicas)
    losses = run(pipeline, job)
    expected, states = plain_loop(job, replicas)
    assert losses == pytest.approx(expected, rel=1e-12)  # a plain loop adds them in another order
    for ours, theirs in zip(parameters_of(pipeline, replicas), states, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def gone_on(before: InProcessPipeline, job: farflung.Job, plan: Plan, first: int) -> InProcessPipeline:
    """The job from unit `first` on with this plan: a pipeline that was dropped has the first one's state."""
    graph, module = capture_shapes(job).graph, copy.deepcopy(job.model)
    programs = [one.segment for one in before.segments]
    after = InProcessPipeline(graph, plan, programs, named_state(module, graph), job.training(), first)
    live = before.plan.live_segments()
    for at, segment in enumerate(after.segments):
        donor = before.segments[at if at in live else at % before.plan.pipelines[0].segments]
        segment.restore(donor.snapshot(set(donor.segment.owned), slots=True))
    return after


@pytest.mark.cases(1)
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_replica_that_is_left_out_until_a_merge_equals_a_plain_loop_bit_for_bit(replicas: int) -> None:
    """Merges weight the others by their parts of a batch; after one all have the same parameters again."""
    sync = farflung.DiLoCo(inner_steps=3, quorum=1)
    job = replace(job_of("gpt", STEPS, farflung.AdamW(lr=3e-3), clip=0.5), sync=sync)
    expected, states = plain_loop(job, replicas, left_out=range(4, 6))
    units = job.training().units()
    lost, back = units.after(4), units.after(6)
    assert lost is not None and back is not None
    whole = pipeline_of(job, replicas)
    losses = run(whole, job, end=lost)
    seats = {at: name for at, name in whole.plan.seats().items() if whole.plan.pipeline_of(at) < replicas - 1}
    left = gone_on(whole, job, seated(whole.plan, seats), lost)
    losses += run(left, job, lost, back)
    merged = parameters_of(left, replicas)[:-1]
    assert all(torch.equal(one[name], merged[0][name]) for one in merged for name in states[0])
    again = gone_on(left, job, whole.plan, back)
    losses += run(again, job, back)
    assert losses == pytest.approx(expected, rel=1e-12)
    for ours, theirs in zip(parameters_of(again, replicas), states, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_without_the_first_replica_the_next_one_evaluates_and_trains_on() -> None:
    sync = farflung.DiLoCo(inner_steps=3, quorum=1)
    job = replace(job_of("gpt", STEPS, farflung.AdamW(lr=3e-3)), sync=sync)
    whole = pipeline_of(job, 2)
    lost = job.training().units().after(4)
    assert lost is not None
    run(whole, job, end=lost)
    seats = {at: name for at, name in whole.plan.seats().items() if whole.plan.pipeline_of(at)}
    plan = seated(whole.plan, seats)
    assert [[*plan.microbatches_of(segment, 4, alone=True)] for segment in (0, 2)] == [[], [0, 1, 2, 3]]
    assert len(run(gone_on(whole, job, plan, lost), job, lost)) == STEPS - 4
