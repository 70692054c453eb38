"""Several pipelines that train one model: equal to one process that adds gradients by the same tree."""

from __future__ import annotations

import copy

import msgspec
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, planned

from farflung.opdag.capture.capture import LossModule
from farflung.planner import PlannedJob
from farflung.plans import Plan, dealt
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.training import Training

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
    subject = case(name)
    module, graph = captured(subject, SAMPLES)
    training = Training(STEPS, sum(shares), SAMPLES, optimizer, seed=3, clip=0.5)
    one = planned(graph, training, 2)
    folded = PlannedJob(replicated(one.plan, shares), one.segments)
    where = {w: f"site {sites[int(w[-1])]}" for w in folded.plan.workers()}
    job = folded.unfolded(SAMPLES, where)
    state = named_state(copy.deepcopy(module), graph)
    segments = received(job.programs, SAMPLES)
    pipeline = InProcessPipeline(graph, job.plan, segments, state, training)

    eager = copy.deepcopy(module)
    wrapper = LossModule(eager, subject.loss)
    reference = Reference(eager, lambda batch: wrapper(dict(batch)), graph, training)
    numbers = dealt(sum(shares), tuple(shares))
    tree = [[numbers[p] for p in range(len(shares)) if sites[p] == site] for site in dict.fromkeys(sites)]
    count = len(one.segments)
    for step in range(STEPS):
        batches = microbatches(subject, SAMPLES, sum(shares), step)
        found = pipeline.run(step, batches)
        expected = reference.accumulate(batches, tree)
        assert sum(share.loss for share in found) == pytest.approx(expected, rel=1e-6)
        for share in found:  # each pipeline has the same sums, bit for bit
            assert share.squares == found[share.segment % count].squares
        norm = gradient_norm(share.squares for share in found)
        pipeline.decide(step, clip_scale(training.clip, norm))
        reference.apply()
        theirs = named_state(eager, graph)
        for key, tensor in state.items():
            assert torch.allclose(tensor, theirs[key], rtol=0, atol=subject.tolerance), (step, key)
    trained = [segment.state() for segment in pipeline.segments]
    parameters = {entry.name for entry in graph.inputs_of("parameter")}
    for at, held in enumerate(trained):
        for key in held.keys() & parameters:
            assert torch.equal(held[key], trained[at % count][key])
