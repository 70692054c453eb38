"""Headers held against the plan: what the plan does not name is refused before memory is taken."""

from __future__ import annotations

import msgspec
import pytest
from tests.worker.loads import MICROBATCHES, WINDOW, load, plan

from farflung.errors import ProtocolError
from farflung.plans import FEEDER, Pipeline, Sum
from farflung.protocol.messages import Load
from farflung.runtime.optimizers.diloco import DiLoCo
from farflung.transport.wire.headers import ValueHeader
from farflung.worker.linking.admission import UNITS_A_STEP, Admission
from farflung.worker.linking.intake import Intake
from farflung.worker.step_watch import StepWatch

VALUE = ValueHeader("job-1", 5, 0, 0, 0, 1, 1, False, 0, 32)
GRADIENT = ValueHeader("job-1", 5, 0, 0, 2, 1, 2, True, 0, 32)

SENT = ValueHeader("job-1", 5, 0, 0, 1, 2, 2, False, 0, 32)
ANSWER = ValueHeader("job-1", 5, 0, 0, 1, 0, 1, True, 0, 32)


def changed(header: ValueHeader, **fields: object) -> ValueHeader:
    return msgspec.structs.replace(header, **fields)


def test_values_of_the_plan_are_accepted_once() -> None:
    admission = Admission("b", load())
    assert admission.admit("a", VALUE)
    with pytest.raises(ProtocolError, match="twice"):
        admission.admit("a", VALUE)


def test_a_gradient_comes_once_and_only_for_a_value_that_was_sent() -> None:
    admission = Admission("b", load())
    with pytest.raises(ProtocolError, match="or without having received it"):
        admission.admit("c", GRADIENT)
    for microbatch in (0, 1):
        admission.on_sent(changed(SENT, microbatch=microbatch))
    assert admission.admit("c", GRADIENT)
    assert admission.admit("c", changed(GRADIENT, microbatch=1, bytes=0))
    with pytest.raises(ProtocolError, match="twice"):
        admission.admit("c", GRADIENT)


def test_an_attempt_begins_at_the_unit_that_it_is_given() -> None:
    admission = Admission("b", msgspec.structs.replace(load(), unit=1))
    assert not admission.admit("a", VALUE)
    assert admission.admit("a", changed(VALUE, unit=1))
    admission.advance()
    assert admission.admit("a", changed(VALUE, unit=2))
    with pytest.raises(ProtocolError, match="unit 3, which is not due"):
        admission.admit("a", changed(VALUE, unit=3))


def test_an_incomplete_value_may_be_sent_again() -> None:
    admission = Admission("b", load())
    admission.on_sent(SENT)
    for peer, header in (("a", VALUE), ("c", GRADIENT)):
        assert admission.admit(peer, header)
        admission.retract(header)
        assert admission.admit(peer, header)
        with pytest.raises(ProtocolError, match="twice"):
            admission.admit(peer, header)


def test_no_more_is_taken_than_the_window_before_something_is_answered() -> None:
    admission = Admission("b", load())
    for microbatch in range(WINDOW):
        assert admission.admit("a", changed(VALUE, microbatch=microbatch))
    with pytest.raises(ProtocolError, match=f"more than {WINDOW} microbatches ahead"):
        admission.admit("a", changed(VALUE, microbatch=WINDOW))
    admission.on_sent(ANSWER)
    assert admission.admit("a", changed(VALUE, microbatch=WINDOW))


@pytest.mark.parametrize(
    ("peer", "fields", "complaint"),
    [
        ("c", {}, "does not send in the plan"),
        ("desk", {}, "does not send in the plan"),
        ("a", {"value": 7}, "does not send in the plan"),
        ("a", {"target": 2}, "does not send in the plan"),
        ("a", {"source": FEEDER}, "does not send in the plan"),
        ("a", {"gradient": True}, "does not send in the plan"),
        ("a", {"attempt": 6}, "does not send in the plan"),
        ("a", {"bytes": 31}, "expected 32"),
        ("a", {"bytes": 2**40}, "expected 32"),
        ("a", {"bytes": 0}, "expected 32"),
        ("a", {"codec": 1}, "codec"),
        ("a", {"microbatch": MICROBATCHES}, "not due"),
        ("a", {"unit": 2}, "not due"),
        ("a", {"unit": 10**12}, "not due"),
    ],
)
def test_anything_else_is_refused(peer: str, fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        Admission("b", load()).admit(peer, changed(VALUE, **fields))


def coded(*codecs: str) -> Admission:
    given = load()
    return Admission(
        "b", msgspec.structs.replace(given, training=msgspec.structs.replace(given.training, codecs=codecs))
    )


def test_a_payload_of_the_jobs_codecs_is_taken_up_to_its_longest() -> None:
    for size in (1, 20, 32 + 8):
        assert coded("int8", "bf16").admit("a", changed(VALUE, codec=2, bytes=size))
    with pytest.raises(ProtocolError, match="expected 1 to 40 bytes"):
        coded("int8").admit("a", changed(VALUE, codec=1, bytes=41))
    with pytest.raises(ProtocolError, match="expected 1 to 40 bytes"):
        coded("int8").admit("a", changed(VALUE, codec=1, bytes=0))
    with pytest.raises(ProtocolError, match="expected at most codec 1"):
        coded("int8").admit("a", changed(VALUE, codec=2, bytes=20))
    with pytest.raises(ProtocolError, match="expected at most codec 0"):
        coded("int9").admit("a", changed(VALUE, codec=1, bytes=20))


def test_a_frozen_activation_may_be_coded_and_is_answered_with_nothing() -> None:
    given = load()
    edges = [
        msgspec.structs.replace(edge, differentiable=False, frozen=True) if edge.source >= 0 else edge
        for edge in given.plan.edges
    ]
    training = msgspec.structs.replace(given.training, codecs=("int8",))
    plan = msgspec.structs.replace(given.plan, edges=edges)
    admission = Admission("b", msgspec.structs.replace(given, plan=plan, training=training))
    assert admission.admit("a", changed(VALUE, codec=1, bytes=20))
    admission.on_sent(SENT)
    with pytest.raises(ProtocolError, match="expected at most codec 0"):
        admission.admit("c", changed(GRADIENT, codec=1, bytes=20))
    assert admission.admit("c", changed(GRADIENT, bytes=0))


def test_model_inputs_are_never_coded() -> None:
    fed = ValueHeader("job-1", 5, 0, 0, FEEDER, 0, 0, False, 1, 8)
    given = load()
    with_codec = msgspec.structs.replace(
        given, training=msgspec.structs.replace(given.training, codecs=("int8",))
    )
    with pytest.raises(ProtocolError, match="expected at most codec 0"):
        Admission("a", with_codec).admit("desk", fed)


def test_values_of_a_past_unit_are_dropped_silently() -> None:
    admission = Admission("b", load())
    admission.advance()
    assert not admission.admit("a", VALUE)
    assert not admission.admit("a", changed(VALUE, unit=1, attempt=4))
    assert not admission.admit("a", changed(VALUE, unit=1, job="job-0"))
    assert admission.admit("a", changed(VALUE, unit=1))


def test_the_feeder_may_run_ahead_of_peers() -> None:
    fed = ValueHeader("job-1", 5, 2, 0, FEEDER, 0, 0, False, 0, 8)
    admission = Admission("a", load())
    assert admission.admit("desk", fed)
    with pytest.raises(ProtocolError, match="not due"):
        admission.admit("desk", changed(fed, unit=UNITS_A_STEP * 2 * WINDOW + 1))


PART = ValueHeader("job-1", 5, 0, 0, 3, 0, 9, True, 0, 64)
"""Segment 3, of the second pipeline, gives its gradient of parameter 9 to segment 0, which owns the sum."""
WHOLE = ValueHeader("job-1", 5, 0, 0, 0, 3, 9, False, 0, 64)


def summing() -> Load:
    """Two pipelines of three segments on a, b, c and d, e, f, which add up the gradient of parameter 9."""
    one = plan()
    others = [
        msgspec.structs.replace(placed, segment=3 + n, workers=[worker])
        for n, (placed, worker) in enumerate(zip(one.placements, "def", strict=True))
    ]
    moved = [
        msgspec.structs.replace(
            e, source=e.source if e.source == FEEDER else e.source + 3, target=e.target + 3
        )
        for e in one.edges
    ]
    doubled = msgspec.structs.replace(
        one,
        placements=[*one.placements, *others],
        edges=[*one.edges, *moved],
        pipelines=[Pipeline(3, 2), Pipeline(3, 2)],
        sums=[Sum(9, 64, [[0], [3]], [0, 3], 0)],
    )
    return msgspec.structs.replace(load(), plan=doubled)


def test_a_part_of_a_sum_and_the_sum_are_accepted_once() -> None:
    for worker, peer, header in (("a", "d", PART), ("d", "a", WHOLE)):
        admission = Admission(worker, summing())
        assert admission.admit(peer, header)
        with pytest.raises(ProtocolError, match="twice"):
            admission.admit(peer, header)
        assert admission.admit(peer, changed(header, unit=1, bytes=0))
        admission.retract(changed(header, unit=1))
        assert admission.admit(peer, changed(header, unit=1))


@pytest.mark.parametrize(
    ("worker", "peer", "header", "complaint"),
    [
        ("a", "e", PART, "does not send in the plan"),
        ("a", "d", changed(PART, gradient=False), "does not send in the plan"),
        ("d", "a", changed(WHOLE, gradient=True), "does not send in the plan"),
        ("a", "d", changed(PART, source=0), "does not send in the plan"),
        ("a", "d", changed(PART, source=4), "does not send in the plan"),
        ("a", "d", changed(PART, microbatch=1), "a sum of unit 0, which is not due"),
        ("a", "d", changed(PART, unit=2), "a sum of unit 2, which is not due"),
        ("a", "d", changed(PART, bytes=32), "32 bytes .*expected 64"),
        ("a", "d", changed(PART, bucket=1), "a sum in bucket 1, but sums have no length"),
        ("a", "d", changed(PART, codec=1, bytes=10), r"10 bytes \(codec 1\), expected 64"),
        ("b", "d", changed(PART, target=1), "does not send in the plan"),
    ],
)
def test_what_is_no_part_of_a_planned_sum_is_refused(
    worker: str, peer: str, header: ValueHeader, complaint: str
) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        Admission(worker, summing()).admit(peer, header)


def coded_sums(segments: list[list[int]], heads: list[int]) -> Load:
    """As `summing`, with int8 on sums of these groups."""
    job = summing()
    plan = msgspec.structs.replace(job.plan, sums=[Sum(9, 64, segments, heads, 0)], sum_codec="int8")
    return msgspec.structs.replace(job, plan=plan, training=job.training.with_codecs(("bf16", "int8")))


def test_a_sum_between_sites_may_be_coded_and_one_within_a_site_may_not() -> None:
    for worker, peer, header in (("a", "d", PART), ("d", "a", WHOLE)):
        for allowed in ({"codec": 2, "bytes": 30}, {"codec": 2, "bytes": 72}, {"bytes": 64}, {"bytes": 0}):
            assert Admission(worker, coded_sums([[0], [3]], [0, 3])).admit(peer, changed(header, **allowed))
        for refused in ({"codec": 2, "bytes": 73}, {"codec": 2, "bytes": 0}, {"codec": 1, "bytes": 30}):
            with pytest.raises(ProtocolError, match=r"a sum with .*, expected at most 72"):
                Admission(worker, coded_sums([[0], [3]], [0, 3])).admit(peer, changed(header, **refused))
    with pytest.raises(ProtocolError, match=r"30 bytes \(codec 2\), expected 64"):
        Admission("a", coded_sums([[0, 3]], [0])).admit("d", changed(PART, codec=2, bytes=30))


def test_a_pipeline_admits_no_more_than_its_own_window() -> None:
    job = summing()
    pipelines = [Pipeline(3, 2), Pipeline(3, 2, 1)]
    job = msgspec.structs.replace(job, plan=msgspec.structs.replace(job.plan, pipelines=pipelines))
    for worker, peer, segment, most in (("b", "a", 1, WINDOW), ("e", "d", 4, 1)):
        admission = Admission(worker, job)
        mine = job.plan.microbatches_of(segment, MICROBATCHES)
        headers = [changed(VALUE, source=segment - 1, target=segment, microbatch=at) for at in mine]
        assert len(headers) == 2 and all(admission.admit(peer, header) for header in headers[:most])
        if most < 2:
            with pytest.raises(ProtocolError, match="more than 1 microbatches ahead"):
                admission.admit(peer, headers[1])


def test_a_narrow_pipeline_is_fed_past_evaluations_in_which_it_has_no_part() -> None:
    """Of an evaluation with one microbatch the second pipeline runs nothing: its window reaches further."""
    job = summing()
    pipelines = [Pipeline(3, 2, 2), Pipeline(3, 1, 1)]
    plan = msgspec.structs.replace(job.plan, microbatches=3, pipelines=pipelines)
    training = msgspec.structs.replace(
        job.training, microbatches=3, validate_every=1, validation_microbatches=1
    )
    admission = Admission("d", msgspec.structs.replace(job, plan=plan, training=training))
    (mine,) = plan.microbatches_of(3, 3)
    assert not plan.microbatches_of(3, 1)
    fed = ValueHeader("job-1", 5, 0, mine, FEEDER, 3, 0, False, 0, 8)
    steps = [unit.number for unit in training.units() if unit.train]
    for unit in steps[1:3]:
        assert admission.admit("desk", changed(fed, unit=unit))


def test_a_microbatch_of_another_pipeline_is_refused() -> None:
    job = summing()
    theirs = job.plan.microbatches_of(3, MICROBATCHES)[0]
    mine = job.plan.microbatches_of(0, MICROBATCHES)[0]
    assert Admission("b", job).admit("a", changed(VALUE, microbatch=mine))
    with pytest.raises(ProtocolError, match=f"microbatch {theirs} of unit 0, which is not due"):
        Admission("b", job).admit("a", changed(VALUE, microbatch=theirs))


def apart(warmup: int = 0) -> Load:
    """As `summing`, but the pipelines train apart, merge after each step and have ten steps."""
    job = summing()
    sync = DiLoCo(inner_steps=1, warmup=warmup)
    optimizer = msgspec.structs.replace(job.training.optimizer, diloco=sync)
    training = msgspec.structs.replace(job.training, optimizer=optimizer, steps=10)
    return msgspec.structs.replace(job, training=training)


def test_sums_come_in_merges_alone() -> None:
    admission = Admission("a", apart())
    with pytest.raises(ProtocolError, match="a sum of unit 0, which is not due"):
        admission.admit("d", PART)
    assert admission.admit("d", changed(PART, unit=1))


def test_the_feeder_passes_merges_over() -> None:
    """With a microbatch of a step for each pipeline, it is as many steps ahead as its window is wide."""
    admission = Admission("a", apart())
    fed = ValueHeader("job-1", 5, 0, 0, FEEDER, 0, 0, False, 0, 8)
    for unit in range(0, 2 * 2 * WINDOW, 2):
        assert admission.admit("desk", changed(fed, unit=unit))
    for wrong in (1, UNITS_A_STEP * 2 * WINDOW + 2):  # a merge, and a step too far ahead
        with pytest.raises(ProtocolError, match=f"of unit {wrong}, which is not due"):
            admission.admit("desk", changed(fed, unit=wrong))


def test_in_the_warm_up_only_the_first_pipeline_is_fed() -> None:
    fed = ValueHeader("job-1", 5, 0, 1, FEEDER, 0, 0, False, 0, 8)
    assert Admission("a", apart(warmup=2)).admit("desk", fed)
    with pytest.raises(ProtocolError, match="microbatch 1 of unit 0, which is not due"):
        Admission("d", apart(warmup=2)).admit("desk", changed(fed, target=3))


def in_lengths(*lengths: int) -> Load:
    """The load of a job with batches of these lengths."""
    whole = load()
    return msgspec.structs.replace(whole, training=msgspec.structs.replace(whole.training, lengths=lengths))


def test_values_of_shorter_batches_are_smaller_and_have_no_codec() -> None:
    admission = Admission("b", in_lengths(8, 16, 32))
    assert admission.admit("a", changed(VALUE, bucket=2, bytes=8))
    assert admission.admit("a", changed(VALUE, microbatch=1, bucket=1, bytes=32))  # as one without a length
    with pytest.raises(ProtocolError, match="in bucket 3, which the job lacks"):
        admission.admit("a", changed(VALUE, unit=1, bucket=3, bytes=8))
    with pytest.raises(ProtocolError, match=r"expected at most 32 \(codec 0\) in a shorter bucket"):
        admission.admit("a", changed(VALUE, unit=1, bucket=1, bytes=33))
    with pytest.raises(ProtocolError, match="in a shorter bucket"):
        admission.admit("a", changed(VALUE, unit=1, bucket=1, bytes=8, codec=1))
    with pytest.raises(ProtocolError, match=r"expected 32 \(codec 0\)"):
        admission.admit("a", changed(VALUE, unit=1, bytes=8))


def test_an_answer_to_a_fed_value_is_empty_in_each_bucket() -> None:
    admission = Admission("b", in_lengths(8, 16))
    admission.on_sent(changed(SENT, bucket=1, bytes=16))
    assert admission.admit("c", changed(GRADIENT, bucket=1, bytes=16))
    ends = Admission("a", in_lengths(8, 16))
    ends.on_sent(changed(VALUE, bucket=1, bytes=16))
    with pytest.raises(ProtocolError, match="in a shorter bucket"):
        ends.admit("b", changed(ANSWER, bucket=1, bytes=33))


def test_a_job_of_one_length_has_no_bucket() -> None:
    with pytest.raises(ProtocolError, match="in bucket 1, which the job lacks"):
        Admission("b", load()).admit("a", changed(VALUE, bucket=1, bytes=8))


def test_a_value_for_which_there_is_no_memory_is_refused_in_one_line() -> None:
    """Left to the event loop, the error would have kept the link open and silent."""

    def allocate(size: int) -> memoryview:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. can't allocate memory")

    intake = Intake(allocate, lambda: None, StepWatch())
    intake.begin("b", load(), None)
    intake.verified = True
    with pytest.raises(ProtocolError, match="has no memory left for a message of 32 bytes"):
        intake.opening("a", VALUE)
