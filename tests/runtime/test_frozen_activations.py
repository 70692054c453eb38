"""A GPT whose lower half is frozen, on four workers in one process: codecs write its activations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch
from benchmarks.zoo.side_by_side import SideBySide, captured, microbatches, planned
from tests.support.half_frozen import HALF_FROZEN

from farflung.planner import PlannedJob
from farflung.plans import FEEDER, Edge, LinkCodec, Plan
from farflung.plans.codec_pair import codebook_of
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.training import Training

torch.set_num_threads(1)
SAMPLES, MICROBATCHES, WORKERS, STEPS = 2, 3, 4, 4
RUNGS = [
    "int8/int4-stochastic",
    "axes30/axes100-dithered",
    "row-topk30-int4/masked30-int4",
    "token-mean:int8",
]


def trained(rung: str, sample: bool = False) -> tuple[SideBySide, list[float]]:
    """After some steps with a codec pair on all links, and the losses."""
    module, graph = captured(HALF_FROZEN, SAMPLES)
    training = Training(
        STEPS, MICROBATCHES, SAMPLES, AdamW(lr=1e-3), seed=7, codecs=codebook_of([rung]), sample_codecs=sample
    )
    job = planned(graph, training, WORKERS)
    links = [LinkCodec(a, b, rung, 1.0) for a in job.plan.workers() for b in sorted(job.plan.neighbours(a))]
    plan = msgspec.structs.replace(job.plan, codecs=links)
    side = SideBySide(module, graph, PlannedJob(plan, job.segments), training)
    losses = []
    for step in range(STEPS):
        losses.append(side.accumulate(microbatches(HALF_FROZEN, SAMPLES, MICROBATCHES, step))[0])
        side.apply()
    return side, losses


def frozen_edges(plan: Plan) -> list[Edge]:
    return [edge for edge in plan.edges if edge.frozen and edge.source != FEEDER]


def written(side: SideBySide, edges: Sequence[Edge]) -> tuple[int, int]:
    """Bytes of tensors and payloads on the links that carry these edges."""
    plan, sent = side.pipeline._plan, side.pipeline.take_sent()
    links = {(plan.worker_of(edge.source), plan.worker_of(edge.target)) for edge in edges}
    found = [sent[link] for link in sorted(links)]
    return sum(one.tensor_bytes for one in found), sum(one.payload_bytes for one in found)


def test_a_codec_without_loss_changes_no_bit() -> None:
    (coded, losses), (dense, expected) = trained("dense+zstd"), trained("dense")
    assert losses == expected
    assert all(torch.equal(tensor, dense.state[name]) for name, tensor in coded.state.items())


@pytest.mark.parametrize("rung", RUNGS)
def test_frozen_activations_are_coded_and_the_loss_stays_close(rung: str) -> None:
    coded, losses = trained(rung, sample=True)
    edges = frozen_edges(coded.pipeline._plan)
    assert edges and not any(edge.differentiable for edge in edges)
    tensor_bytes, payload_bytes = written(coded, edges)
    assert payload_bytes * 1.5 < tensor_bytes
    dense = trained("dense")[1]
    assert losses == pytest.approx(dense, rel=0.02) and losses != dense
    assert all(not coding.remembered_bytes for coding in coded.pipeline.codings.values())
