"""What a worker refuses before it looks at a program."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured
from tests.support import lengths
from tests.worker.loads import STEPS, fresh, load
from torch import Tensor

from farflung.client.capture.check import capture_shapes
from farflung.errors import CodecError, FarflungError, GraphError
from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.planner import PlannedJob, plan_graph
from farflung.planner.replicas import evenly_replicated
from farflung.plans import LinkCodec, Plan, side_by_side
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.runtime.optimizers.declared import SGD, AdamW
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training
from farflung.worker.computing.loading import load_segments, needed_bytes, require_compiled_to_fit
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.workload.footprint import Needs


@pytest.mark.parametrize("emulated", [False, True])
def test_no_worker_takes_a_job_that_is_not_of_its_kind(emulated: bool) -> None:
    """A broker that mixes them is refused: the one has no weights, the other computes nothing."""
    job = load()
    training = msgspec.structs.replace(job.training, emulated=emulated)
    job = msgspec.structs.replace(job, training=training)
    backend = TorchBackend() if emulated else EmulatedBackend(1.0)
    words = "the job is emulated, this worker computes" if emulated else "the job computes, this worker is"
    with pytest.raises(GraphError, match=words):
        load_segments("b", job, StateReceiver(job, [1], 10**6, fresh), 10**9, backend)


def test_a_job_with_a_codec_that_this_version_lacks_is_refused_by_its_name() -> None:
    job = load()
    training = msgspec.structs.replace(job.training.with_codecs(("int8", "int9")), emulated=True)
    job = msgspec.structs.replace(job, training=training)
    with pytest.raises(GraphError, match="codec 'int9', which this worker's version lacks: install"):
        load_segments("b", job, StateReceiver(job, [1], 10**6, fresh), 10**9, EmulatedBackend(1.0))


def test_a_job_whose_codecs_write_as_another_version_does_is_refused() -> None:
    job = load()
    training = msgspec.structs.replace(job.training, codecs=("int8",), emulated=True)
    job = msgspec.structs.replace(job, training=training)
    with pytest.raises(GraphError, match="codec format 1, this worker's version has"):
        load_segments("b", job, StateReceiver(job, [1], 10**6, fresh), 10**9, EmulatedBackend(1.0))


def test_a_job_that_would_begin_after_its_last_unit_is_refused() -> None:
    job = msgspec.structs.replace(load(), unit=STEPS)
    job = msgspec.structs.replace(job, training=msgspec.structs.replace(job.training, emulated=True))
    with pytest.raises(GraphError, match=f"would begin at unit {STEPS}, which it does not have"):
        load_segments("b", job, StateReceiver(job, [1], 10**6, fresh), 10**9, EmulatedBackend(1.0))


def test_segments_beyond_what_the_owner_gives_are_refused_with_the_bytes() -> None:
    _, graph = captured(case("chain"), 2)
    made = plan_graph(graph, 2, 2, ["a"])
    training = Training(steps=1, microbatches=2, microbatch_size=2, optimizer=AdamW(lr=1e-3))
    sizes = {e.name: made.segments[0].values[e.value].bytes(2) for e in graph.inputs_of("parameter")}
    program = SegmentProgram(0, made.programs[0], sizes, trained_shapes(made.segments[0]))
    job = Load("job-1", 1, made.plan, training, [program], {}, "desk")
    receiver = StateReceiver(job, [0], 10**9, fresh)
    with pytest.raises(GraphError) as refused:
        load_segments("a", job, receiver, receiver.size, TorchBackend())
    words = r"the segments need (\d+) bytes, this worker offers (\d+): raise `farflung join --memory`"
    needed, given = map(int, re.match(words, str(refused.value)).groups())  # type: ignore[union-attr]
    assert given == receiver.size and needed > 4 * given  # gradients, and two moments
    assert set(load_segments("a", job, receiver, needed, TorchBackend())) == {0}
    with pytest.raises(GraphError, match=f"need {needed} bytes, this worker offers {needed - 1}"):
        load_segments("a", job, receiver, needed - 1, TorchBackend())


class Unfolded(torch.nn.Module):
    """A convolution that PyTorch unfolds if it gets a single sample: 27 times what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv3d(16, 16, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.conv(pictures).square().mean()


def test_a_convolution_that_is_unfolded_beyond_what_the_owner_gives_is_refused() -> None:
    """Its operand has 17 MB, with all windows 453 MB."""
    graph = capture(Unfolded(), {"pictures": torch.zeros(2, 16, 16, 16, 1024)}).graph
    made = plan_graph(graph, 1, 1, ["a"])
    training = Training(steps=1, microbatches=1, microbatch_size=1, optimizer=SGD(lr=1e-3))
    sizes = {e.name: made.segments[0].values[e.value].bytes(1) for e in graph.inputs_of("parameter")}
    program = SegmentProgram(0, made.programs[0], sizes, trained_shapes(made.segments[0]))
    job = Load("job-1", 1, made.plan, training, [program], {}, "desk")
    with pytest.raises(GraphError) as refused:
        load_segments("a", job, StateReceiver(job, [0], 10**9, fresh), 450_000_000, TorchBackend())
    (line,) = str(refused.value).splitlines()
    assert re.match(r"the segments need \d+ bytes, this worker offers 450000000: raise `farflung join", line)


def test_compiled_segments_must_fit_into_the_owners_memory_limit() -> None:
    """Three segments of a worker rest, one works; the plan's window is two."""
    job = load()
    needs = Needs(
        state=100.0, came=10.0, shipped=0.0, running=50.0, again=50.0, waiting=30.0, returned=5.0, left=20.0,
        updating=8.0, copied=40.0,
    )  # fmt: skip
    bytes_of_all = 3 * (100 + 2 * (10 + 30)) + (50 - 30)
    require_compiled_to_fit("b", job, {}, dict.fromkeys(range(3), needs), bytes_of_all)
    words = f"compiled, the segments need {bytes_of_all} bytes, this worker offers {bytes_of_all - 1}: raise"
    with pytest.raises(GraphError, match=words):
        require_compiled_to_fit("b", job, {}, dict.fromkeys(range(3), needs), bytes_of_all - 1)
    require_compiled_to_fit("b", job, {}, dict.fromkeys(range(3)), 1)


def doubled(**changes: object) -> Load:
    """A chain on two workers, each with the whole of it, whose sums are changed."""
    _, graph = captured(case("chain"), 2)
    made = plan_graph(graph, 2, 2, ["a"])
    folded = PlannedJob(evenly_replicated(made.plan, ["a", "b"], 2), made.segments)
    job = folded.unfolded(2, {})
    training = Training(steps=1, microbatches=2, microbatch_size=2, optimizer=AdamW(lr=1e-3))
    sums = [msgspec.structs.replace(one, **changes) for one in job.plan.sums]
    plan = msgspec.structs.replace(job.plan, sums=sums)
    sizes = {e.name: made.segments[0].values[e.value].bytes(2) for e in graph.inputs_of("parameter")}
    programs = [
        SegmentProgram(number, program, sizes, trained_shapes(segment))
        for number, (program, segment) in enumerate(zip(job.programs, job.segments, strict=True))
    ]
    return Load("job-1", 1, plan, training, programs, {}, "desk")


def test_what_arrives_for_sums_is_counted_beside_compiled_segments() -> None:
    job, needs = doubled(), Needs(*(10.0,) * 10)
    alone = int(needs.footprint(job.plan.window, False).bytes)
    arriving = job.plan.sum_bytes({1})
    assert arriving > 0
    require_compiled_to_fit("b", job, {}, {1: needs}, alone + arriving)
    with pytest.raises(GraphError, match=f"compiled, the segments need {alone + arriving} bytes"):
        require_compiled_to_fit("b", job, {}, {1: needs}, alone + arriving - 1)


def test_a_worker_of_a_pipeline_runs_its_own_segments() -> None:
    job = doubled()
    loaded = load_segments("b", job, StateReceiver(job, [1], 10**9, fresh), 10**9, TorchBackend())
    assert set(loaded) == {1}


@pytest.mark.parametrize("changes", [{"bytes": 4}, {"value": 10**6}])
def test_sums_that_are_not_those_of_the_program_are_refused(changes: dict[str, object]) -> None:
    job = doubled(**changes)
    with pytest.raises(GraphError, match="sums of segment 1 do not match its program"):
        load_segments("b", job, StateReceiver(job, [1], 10**9, fresh), 10**9, TorchBackend())


@pytest.mark.parametrize(
    ("codec", "error", "complaint"),
    [
        ("int8", CodecError, "sums use codec 'int8', which is not in the job's codebook"),
        (
            "axes30-dithered",
            GraphError,
            "sums of gradients cannot use codec axes30-dithered, because what is read of it",
        ),
    ],
)
def test_a_codec_that_sums_cannot_use_is_refused(
    codec: str, error: type[FarflungError], complaint: str
) -> None:
    job = doubled()
    plan = msgspec.structs.replace(job.plan, sum_codec=codec)
    job = msgspec.structs.replace(job, plan=plan, training=job.training.with_codecs(("axes30-dithered",)))
    with pytest.raises(error, match=complaint):
        load_segments("b", job, StateReceiver(job, [1], 10**9, fresh), 10**9, TorchBackend())


def test_a_codec_on_sums_takes_memory_for_what_it_leaves_out() -> None:
    job = doubled()
    segment = wire.load_segment(job.programs[1].program, 2)
    plain = job.training.with_codecs(("int8",))
    coded = msgspec.structs.replace(job, plan=msgspec.structs.replace(job.plan, sum_codec="int8"))
    more = needed_bytes("b", coded, [segment], plain) - needed_bytes("b", job, [segment], plain)
    summed = sum(one.bytes for one in job.plan.sums)
    assert more >= 5 * summed  # two residuals, a payload, and at the owner its sum and what is read of it


def test_a_worker_reserves_memory_for_the_window_of_its_own_pipeline() -> None:
    job = doubled()
    segment = wire.load_segment(job.programs[1].program, 2)
    wide = msgspec.structs.replace(job.plan, window=4)
    first, second = wide.pipelines
    own = msgspec.structs.replace(wide, pipelines=[first, msgspec.structs.replace(second, window=1)])
    needed = [
        needed_bytes("b", msgspec.structs.replace(job, plan=plan), [segment], job.training)
        for plan in (msgspec.structs.replace(job.plan, window=1), own, wide)
    ]
    assert needed[0] == needed[1] < needed[2]


def test_a_plan_that_was_not_unfolded_is_refused() -> None:
    job = doubled()
    folded = evenly_replicated(plan_graph(captured(case("chain"), 2)[1], 2, 2, ["a"]).plan, ["a", "b"], 2)
    job = msgspec.structs.replace(job, plan=folded)
    with pytest.raises(GraphError, match="the plan is folded"):
        load_segments("b", job, StateReceiver(job, [0], 10**9, fresh), 10**9, TorchBackend())


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"clip": 1.0, "clip_by": "segment"}, "clipped by segment, and replicas that are cut unlike"),
        ({}, "home workers could add up gradients with strangers"),
    ],
)
def test_what_needs_equal_cuts_does_not_run_on_replicas_with_cuts_of_their_own(
    wish: dict[str, Any], words: str
) -> None:
    graph = captured(case("chain"), 2)[1]
    one, two = plan_graph(graph, 1, 2, ["a"]).plan, plan_graph(graph, 1, 2, ["b", "c"]).plan
    sizes = [[{0: 4}], [{0: 4}, {}]]
    plan = msgspec.structs.replace(side_by_side(one, [one, two], sizes, {}), home=[] if wish else [0, 1])
    job = Load("job-1", 1, plan, Training(1, 2, 2, AdamW(lr=1e-3), **wish), [], {}, "desk")
    with pytest.raises(GraphError, match=words):
        load_segments("a", job, StateReceiver(job, [0], 10**9, fresh), 10**9, TorchBackend())


def in_lengths(training: Training, plan: Plan | None = None) -> Load:
    """An emulated job of a GPT that was captured at three lengths, on two workers."""
    job = lengths.language(validation=None)
    made = plan_graph(capture_shapes(job).graph, 4, 2, ["a", "b"])
    programs = [SegmentProgram(number, program) for number, program in enumerate(made.programs)]
    return Load("job-1", 1, plan or made.plan, training, programs, {}, "desk")


def load_emulated(job: Load) -> dict[int, Any]:
    receiver = StateReceiver(job, [0], 10**6, fresh)
    return dict(load_segments("a", job, receiver, 10**10, EmulatedBackend(1.0)))


def test_programs_have_the_lengths_of_the_job() -> None:
    training = msgspec.structs.replace(lengths.language(validation=None).training(), emulated=True)
    whole = in_lengths(training)
    assert set(load_emulated(whole)) == {0}
    for other in ((), (8, 32), (8, 15, 32)):
        changed = msgspec.structs.replace(training, lengths=other)
        with pytest.raises(GraphError, match="the program of segment 0 has other lengths than the job"):
            load_emulated(msgspec.structs.replace(whole, training=changed))


def test_a_job_with_several_lengths_has_no_codecs_of_links() -> None:
    training = msgspec.structs.replace(lengths.language(validation=None).training(), emulated=True)
    whole = in_lengths(training.with_codecs(("int8",)))
    plan = msgspec.structs.replace(whole.plan, codecs=[LinkCodec("a", "b", "int8/int8", 4.0)])
    for job in (
        msgspec.structs.replace(whole, plan=plan),
        msgspec.structs.replace(whole, training=msgspec.structs.replace(training, compiled=True)),
    ):
        with pytest.raises(GraphError, match="several lengths has no codecs of links, and is not compiled"):
            load_emulated(job)


def test_a_segment_that_gets_no_value_cannot_know_the_length() -> None:
    training = msgspec.structs.replace(lengths.language(validation=None).training(), emulated=True)
    whole = in_lengths(training)
    edges = [edge for edge in whole.plan.edges if edge.target != 0]
    with pytest.raises(
        GraphError, match="segment 0 gets no value, so it cannot know a batch's length: use fewe"
    ):
        load_emulated(msgspec.structs.replace(whole, plan=msgspec.structs.replace(whole.plan, edges=edges)))
