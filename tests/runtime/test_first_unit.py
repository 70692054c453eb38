"""A run may begin at any unit: with the state that the earlier ones left, it has the whole run's bits."""

from __future__ import annotations

import msgspec
import pytest
import torch
from benchmarks.zoo import Batch, case
from benchmarks.zoo.side_by_side import captured, microbatches, planned
from torch import Tensor

from farflung.planner import PlannedJob
from farflung.plans import LaterCodecs, LinkCodec, Plan
from farflung.plans.codec_pair import codebook_of
from farflung.runtime.executor import SegmentShare
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.optimizers.schedules import Constant
from farflung.runtime.parity.steps import named_state
from farflung.runtime.training import Training
from farflung.schedule import Unit

torch.set_num_threads(1)
SAMPLES, MICROBATCHES, WORKERS = 2, 3, 3
LATER = "bf16"
TRAINING = Training(
    5, MICROBATCHES, SAMPLES, SGD(lr=0.1, schedule=Constant(warmup_steps=4)), seed=11, clip=0.05,
    validate_every=2, validation_microbatches=2, validate_twice=True,
)  # fmt: skip
"""The optimizer has no state, so that parameters and buffers are all that a unit leaves."""

State = dict[str, Tensor]


def links(plan: Plan, pair: str) -> list[LinkCodec]:
    return [LinkCodec(a, b, pair, 1.0) for a in plan.workers() for b in sorted(plan.neighbours(a))]


class Subject:
    """A model on three workers, whose links use `pair` and, if that is lossy, another pair from step 3 on."""

    def __init__(self, name: str, pair: str) -> None:
        self.case = case(name)
        self.module, self.graph = captured(self.case, SAMPLES)
        self.training = msgspec.structs.replace(TRAINING, codecs=codebook_of([pair, LATER]))
        job = planned(self.graph, self.training, WORKERS)
        later = [] if pair.startswith("dense") else [LaterCodecs(3, links(job.plan, LATER))]
        plan = msgspec.structs.replace(job.plan, codecs=links(job.plan, pair), later=later)
        self.job = PlannedJob(plan, job.segments)

    def state(self) -> State:
        return copies(named_state(self.module, self.graph))

    def pipeline(self, state: State, first: int) -> InProcessPipeline:
        return InProcessPipeline(self.graph, self.job.plan, self.job.segments, state, self.training, first)

    def batches(self, unit: Unit) -> list[Batch]:
        return microbatches(self.case, SAMPLES, unit.microbatches, unit.step if unit.train else 1000)

    def run(self, pipeline: InProcessPipeline, unit: Unit) -> list[SegmentShare]:
        shares = pipeline.run(unit.number, self.batches(unit))
        norm = gradient_norm(share.squares for share in shares)
        pipeline.decide(unit.number, clip_scale(self.training.clip, norm) if unit.train else 1.0)
        return shares


def copies(state: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("gpt-dropout", "dense"),
        ("gpt-dropout", "dense+zstd"),
        ("gpt-dropout", "int8/int4-stochastic"),
        ("gpt-dropout", "row-topk30-int4/masked30-int4"),
        ("batch-norm", "int8/int4-stochastic"),
    ],
)
def test_a_run_that_begins_at_any_unit_has_the_bits_of_the_whole_run(name: str, pair: str) -> None:
    subject = Subject(name, pair)
    state = subject.state()
    whole = subject.pipeline(state, 0)
    units = list(subject.training.units())
    assert [unit.train for unit in units[:5]] == [False, False, True, True, False]
    before, shares = [], []
    for unit in units:
        before.append(copies(state))
        shares.append(subject.run(whole, unit))
    for first in (1, 2, 3, 4, 7, len(units) - 1):
        again = copies(before[first])
        late = subject.pipeline(again, first)
        for unit in units[first:]:
            assert all(torch.equal(again[key], before[unit.number][key]) for key in again)
            assert subject.run(late, unit) == shares[unit.number]
        assert all(torch.equal(again[key], state[key]) for key in again)
    assert any(not torch.equal(before[0][key], state[key]) for key in state)
