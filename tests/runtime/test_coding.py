"""Codecs between workers, in one process: what stays equal, repeats, is forgotten, and is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import SideBySide, captured, microbatches, planned
from torch import Tensor

from farflung.errors import CodecError, PlanError
from farflung.opdag.segment import Segment
from farflung.planner import PlannedJob
from farflung.plans import LinkCodec, Plan
from farflung.plans.codec_pair import codebook_of
from farflung.runtime.coding import Allocate, Coding, coding_bytes
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.training import Training

torch.set_num_threads(1)
SAMPLES, MICROBATCHES, WORKERS = 2, 3, 3
LEARNING = "axes30/axes100-dithered"
SUBTRACTING = "token-mean:axes30/axes100-dithered"
RUNGS = ["int8/int4-stochastic", LEARNING, SUBTRACTING, "row-topk30-int4/masked30-int4", "topk5-bf16+zstd"]


def training(*rungs: str) -> Training:
    return Training(9, MICROBATCHES, SAMPLES, AdamW(lr=1e-3), seed=7, codecs=codebook_of(rungs))


def everywhere(plan: Plan, rung: str) -> list[LinkCodec]:
    return [LinkCodec(a, b, rung, 1.0) for a in plan.workers() for b in sorted(plan.neighbours(a))]


def side(name: str, rung: str, *more: str, sample: bool = False) -> SideBySide:
    module, graph = captured(case(name), SAMPLES)
    job = planned(graph, training(), WORKERS)
    plan = msgspec.structs.replace(job.plan, codecs=everywhere(job.plan, rung))
    given = msgspec.structs.replace(training(rung, *more), sample_codecs=sample)
    return SideBySide(module, graph, PlannedJob(plan, job.segments), given)


def train(side: SideBySide, name: str, steps: Sequence[int]) -> list[float]:
    losses = []
    for step in steps:
        losses.append(side.accumulate(microbatches(case(name), SAMPLES, MICROBATCHES, step))[0])
        side.apply()
    return losses


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_a_codec_without_loss_changes_no_bit(name: str) -> None:
    coded = side(name, "dense+zstd")
    losses = train(coded, name, range(3))
    dense = side(name, "dense")
    assert train(dense, name, range(3)) == losses
    assert same(coded.state, dense.state)
    assert sum(sent.payload_bytes for sent in coded.pipeline.take_sent().values()) > 0


@pytest.mark.cases(4)
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_a_run_repeats_bit_for_bit_and_forgets_its_masks(name: str, rung: str) -> None:
    runs = [side(name, rung) for _ in range(2)]
    losses = [train(run, name, range(3)) for run in runs]
    assert losses[0] == losses[1]
    assert same(runs[0].state, runs[1].state)
    assert all(np.isfinite(losses[0]))
    assert not same(runs[0].state, dict(runs[0].states()[1]))
    assert all(not coding.remembered_bytes for coding in runs[0].pipeline.codings.values())
    for sent in runs[0].pipeline.take_sent().values():
        assert sent.payload_bytes * 1.5 < sent.tensor_bytes


def test_the_gradient_of_a_masked_activation_is_where_it_was_sent() -> None:
    run = side("gpt", "row-topk30-bf16/masked30-bf16")
    carried: list[tuple[Parcel[Tensor], Parcel[Tensor]]] = []
    whole = run.pipeline._transfer

    def noted(source: str, target: str, parcel: Parcel[Tensor]) -> Parcel[Tensor]:
        carried.append((parcel, whole(source, target, parcel)))
        return carried[-1][1]

    run.pipeline._transfer = noted  # type: ignore[method-assign]
    train(run, "gpt", [0])
    kept = {p[1:5]: read.payload != 0 for p, read in carried if not p.gradient and p.payload is not None}
    gradients = [read for p, read in carried if p.gradient and read.payload is not None]
    assert gradients
    for gradient in gradients:
        mask = kept[gradient.microbatch, gradient.target, gradient.source, gradient.value]
        assert gradient.payload is not None
        assert not gradient.payload[~mask].any()
        assert gradient.payload[mask].any()


@pytest.mark.parametrize(("name", "kind"), [("gpt", 1), ("resnet", 0)])
def test_keys_of_rows_go_from_the_tokens_along_all_links(
    name: str, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload begins with whether it is less a mean; a model without tokens is written without."""
    seen: list[tuple[int, int]] = []
    decode = Coding.decode

    def noted(self: Coding, parcel: Parcel[Coded], allocate: Allocate) -> Parcel[memoryview]:
        if parcel.payload is not None and parcel.payload.codec and not parcel.gradient:
            seen.append((parcel.source, parcel.payload.data[0]))
        return decode(self, parcel, allocate)

    monkeypatch.setattr(Coding, "decode", noted)
    run = side(name, "token-mean:even30/dense")
    train(run, name, range(2))
    assert {source for source, _ in seen} == {0, 1}
    assert {found for _, found in seen} == {kind}


def test_links_change_their_codecs_between_two_steps() -> None:
    run = side("gpt", "int8/eden4", "bf16")
    train(run, "gpt", [0])
    rough = sum(sent.payload_bytes for sent in run.pipeline.take_sent().values())
    run.pipeline.set_codecs(everywhere(run.pipeline._plan, "bf16"))
    train(run, "gpt", [1])
    fine = sum(sent.payload_bytes for sent in run.pipeline.take_sent().values())
    assert fine > 1.5 * rough


def test_plain_passes_are_those_of_no_codec() -> None:
    coded, dense = side("gpt", "int4"), side("gpt", "dense")
    batch = microbatches(case("gpt"), SAMPLES, MICROBATCHES, 0)
    assert coded.pipeline.run(0, batch, plain=True) == dense.pipeline.run(0, batch)
    assert not coded.pipeline.take_sent()


class Ends:
    """Both ends of the first link of a plan with two workers, and one activation that crosses it."""

    def __init__(self, rung: str, first: int = 0) -> None:
        graph = captured(case("gpt"), SAMPLES)[1]
        job = planned(graph, training(), 2)
        plan = msgspec.structs.replace(job.plan, codecs=everywhere(job.plan, rung))
        edge = next(e for e in plan.edges if e.source >= 0 and e.differentiable)
        self.bytes = edge.bytes
        self.place = (0, 0, edge.source, edge.target, edge.value, False)
        self.codings = [self.coding(plan, worker, job.segments, rung, first) for worker in plan.workers()]
        self.coding_bytes = coding_bytes("worker-0", plan, training(rung), job.segments[:1])

    def coding(self, plan: Plan, worker: str, segments: Sequence[Segment], rung: str, first: int) -> Coding:
        mine = [segments[number] for number in plan.segments_of(worker)]
        return Coding(worker, plan, training(rung), mine, first)

    def sent(self, numbers: np.ndarray) -> Parcel[Coded]:
        return self.codings[0].encode(Parcel(*self.place, memoryview(numbers).cast("B")))

    def read(self, parcel: Parcel[Coded]) -> np.ndarray:
        memory = self.codings[1].decode(parcel, lambda size: memoryview(bytearray(size))).payload
        assert memory is not None
        return np.frombuffer(memory, np.float32)

    def numbers(self) -> np.ndarray:
        return np.random.default_rng(1).standard_normal(self.bytes // 4).astype(np.float32)


def test_tensors_that_are_not_finite_are_sent_uncompressed_and_counted() -> None:
    ends = Ends("int8")
    numbers = ends.numbers()
    numbers[3] = np.inf
    assert np.array_equal(ends.read(ends.sent(numbers)), numbers)
    (sent,) = ends.codings[0].take_sent()
    assert (sent.not_finite, sent.tensor_bytes) == (1, numbers.nbytes)
    ends.sent(ends.numbers())
    (sent,) = ends.codings[0].take_sent()
    assert sent.not_finite == 0


def test_a_damaged_payload_is_one_line_that_names_its_sender() -> None:
    ends = Ends("int8")
    sent = ends.sent(ends.numbers())
    assert sent.payload is not None
    cut = sent._replace(payload=Coded(1, sent.payload.data[:-1]))
    with pytest.raises(CodecError, match=r"value \d+ of microbatch 0 from worker-0 cannot be decoded"):
        ends.read(cut)
    with pytest.raises(CodecError, match="has codec 2, which it cannot have"):
        ends.read(sent._replace(payload=Coded(2, sent.payload.data)))


def test_a_codec_that_the_job_did_not_name_is_refused() -> None:
    graph = captured(case("gpt"), SAMPLES)[1]
    job = planned(graph, training(), 2)
    plan = msgspec.structs.replace(job.plan, codecs=everywhere(job.plan, "int8"))
    with pytest.raises(CodecError, match=r"worker-0 -> worker-1 uses codec 'int8', which is not in the"):
        Coding("worker-0", plan, training("int4"), job.segments)
    with pytest.raises(CodecError, match="there is no codec 'int9'"):
        Coding("worker-0", job.plan, training("int9"), job.segments)


def test_a_step_that_is_run_again_gives_the_same_bytes() -> None:
    ends = Ends(LEARNING)
    written = []
    for step in range(3):
        ends.place = (step, *ends.place[1:])
        ends.read(ends.sent(ends.numbers() + step))
        for coding in ends.codings:
            coding.decided(step)
    again = Ends(LEARNING, first=3)
    for coding, kept in zip(again.codings, ends.codings, strict=True):
        coding.restore(kept.snapshot())
    for each in (ends, again):
        each.place = (3, *each.place[1:])
        sent = each.sent(each.numbers())
        assert sent.payload is not None
        written.append(bytes(sent.payload.data))
        assert np.abs(each.read(sent) - each.numbers()).max() < 1
    assert written[0] == written[1]


@pytest.mark.parametrize("rung", RUNGS)
def test_a_unit_that_is_dropped_runs_again_with_the_same_bits(rung: str) -> None:
    """Dropped in its middle, once the codecs have learned from the steps before it and from its beginning."""
    undisturbed, dropped = side("gpt", rung, sample=True), side("gpt", rung, sample=True)
    losses = [train(run, "gpt", range(2)) for run in (undisturbed, dropped)]
    undisturbed.pipeline.take_sent(), dropped.pipeline.take_sent()
    batches = microbatches(case("gpt"), SAMPLES, MICROBATCHES, 2)
    with pytest.raises(PlanError):
        dropped.pipeline.run(2, batches[:-1])
    dropped.pipeline.restart()
    assert all(not coding.remembered_bytes for coding in dropped.pipeline.codings.values())
    for run, found in zip((undisturbed, dropped), losses, strict=True):
        found += train(run, "gpt", range(2, 4))
    assert losses[0] == losses[1]
    assert same(undisturbed.state, dropped.state)
    counts = [
        {link: one._replace(coding_seconds=0.0) for link, one in run.pipeline.take_sent().items()}
        for run in (undisturbed, dropped)
    ]
    assert counts[0] == counts[1]


def test_a_payload_for_a_later_state_waits_for_its_unit() -> None:
    ends = Ends(LEARNING)
    first = ends.sent(ends.numbers())
    ends.codings[0].decided(0)
    ends.place = (1, *ends.place[1:])
    second = ends.sent(ends.numbers())
    assert not ends.codings[1].is_early(first) and ends.codings[1].is_early(second)
    ends.read(first)
    ends.codings[1].decided(0)
    assert not ends.codings[1].is_early(second)
    assert np.abs(ends.read(second) - ends.numbers()).max() < 1


def test_values_that_no_codec_may_write_are_dense_whatever_the_codebook_names() -> None:
    graph = captured(case("gpt"), SAMPLES)[1]
    job = planned(graph, training(), 2)
    job_training = msgspec.structs.replace(training("int8"), codecs=("int8", "dense"))
    coding = Coding("worker-0", job.plan, job_training, [job.segments[0]])
    whole = memoryview(bytes(16))
    assert coding.encode(Parcel(0, 0, 0, 1, 10**6, False, whole)).payload == Coded(0, whole)


@pytest.mark.parametrize(
    "rung", ["int8", "dense+zstd", "topk100-bf16", "masked30-int4", "even30", "axes30", "token-mean:even30"]
)
def test_no_codec_takes_more_memory_than_is_kept_free_for_it(rung: str) -> None:
    ends = Ends(rung)
    numbers = ends.numbers()
    ends.read(ends.sent(numbers))  # what is made once and kept
    tracemalloc.start()
    ends.read(ends.sent(numbers))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= ends.coding_bytes + 2**16


def test_snapshots_are_held_against_the_job() -> None:
    ends = Ends("int8")
    for coding in ends.codings:
        coding.restore(coding.snapshot())
    with pytest.raises(CodecError, match="damaged"):
        ends.codings[0].restore(b"\xc1")
    other = msgspec.msgpack.encode([(((8, 9, 10), False, "int8"), b"x")])
    with pytest.raises(CodecError, match="belongs to another worker or job"):
        ends.codings[0].restore(other)


def test_in_a_plain_pass_every_link_is_dense() -> None:
    """Unit 0 evaluates with codecs, unit 1 the same weights without."""
    graph = captured(case("gpt"), SAMPLES)[1]
    job = planned(graph, training(), 2)
    plan = msgspec.structs.replace(job.plan, codecs=everywhere(job.plan, "int8"))
    both = msgspec.structs.replace(training("int8"), validation_microbatches=1, validate_twice=True)
    edge = next(edge for edge in plan.edges if edge.source == 0 and edge.differentiable)
    coding = Coding("worker-0", plan, both, [job.segments[0]])
    data = memoryview(np.ones(edge.bytes // 4, np.float32)).cast("B")
    sent = [coding.encode(Parcel(unit, 0, 0, edge.target, edge.value, False, data)) for unit in (0, 1, 2)]
    assert [parcel.payload and parcel.payload.codec for parcel in sent] == [1, 0, 1]
