"""Writing and reading beside the passes of the compute thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, placed, workers
from tests.worker.loads import fresh, limits

from farflung.errors import CodecError
from farflung.plans import FEEDER, LinkCodec
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.coding import Coding
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.parity.steps import received
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.training import Training
from farflung.schedule import MOST_WAITING
from farflung.worker.computing.codec_thread import CodecThread, CodedLinks
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import Outcome, Outgoing
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import ComputeFailed, UnitFinished, Verified

SAMPLES, MICROBATCHES, PATIENCE_SECONDS = 2, 3, 60.0
ATTEMPT = ("job-1", 1)
Outcomes = list[Outcome | Outgoing]


class Fake:
    """A coding that notes what it is asked for; units above `current` are early."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.current = 0
        self.may_write = threading.Event()
        self.may_write.set()

    def set(self, codecs: Any) -> None:
        self.calls.append(("set", codecs))

    def encode(self, parcel: Parcel[memoryview]) -> Parcel[Coded]:
        assert self.may_write.wait(PATIENCE_SECONDS)
        self.calls.append(("encode", parcel.microbatch))
        return parcel.carrying(None)

    def decode(self, parcel: Parcel[Coded], allocate: Any) -> Parcel[memoryview]:
        if parcel.microbatch < 0:
            raise CodecError("damaged")
        self.calls.append(("decode", parcel.unit, parcel.microbatch))
        return parcel.carrying(None)

    def is_early(self, parcel: Parcel[Coded]) -> bool:
        return parcel.unit > self.current

    def decided(self, unit: int) -> None:
        self.current = unit + 1
        self.calls.append(("decided", unit))

    def restart(self) -> None:
        self.calls.append(("restart",))

    def take_sent(self) -> list[Sent]:
        self.calls.append(("sent",))
        return []


class Bench:
    """Coded links on a thread of their own, and what came of them."""

    def __init__(self) -> None:
        self.coding, self.thread = Fake(), CodecThread()
        self.read: list[tuple[int, int]] = []
        self.errors: list[Exception] = []
        self.links = CodedLinks(
            self.coding, self.thread.post, fresh, lambda p: self.read.append((p.unit, p.microbatch)),
            lambda p: None, self.errors.append,
        )  # fmt: skip
        self.thread.start()

    def end(self) -> None:
        self.coding.may_write.set()
        self.thread.close()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


def parcel(microbatch: int, unit: int = 0) -> Parcel[Any]:
    return Parcel(unit, microbatch, 0, 1, 7, False, None)


def test_all_is_done_in_the_order_in_which_it_was_asked_for() -> None:
    bench, told = Bench(), []
    bench.links.write(parcel(0))
    bench.links.read(parcel(1, unit=1))
    bench.links.read(parcel(2))
    bench.links.write(parcel(3))
    bench.links.finish(told.append)
    bench.links.decided(0, [])
    bench.links.write(parcel(4, unit=1))
    bench.end()
    assert bench.coding.calls == [
        ("encode", 0), ("decode", 0, 2), ("encode", 3), ("sent",), ("decided", 0), ("set", []),
        ("decode", 1, 1), ("encode", 4),
    ]  # fmt: skip
    assert bench.read == [(0, 2), (1, 1)] and told == [()] and not bench.errors


def test_a_restart_forgets_parcels_that_wait_for_the_next_unit() -> None:
    bench = Bench()
    bench.links.read(parcel(1, unit=1))
    bench.links.read(parcel(0))
    bench.links.restart()
    bench.links.read(parcel(0))
    bench.links.decided(0, None)
    bench.end()
    assert bench.coding.calls == [("decode", 0, 0), ("restart",), ("decode", 0, 0), ("decided", 0)]


def test_an_error_is_reported_once_and_nothing_follows() -> None:
    bench = Bench()
    bench.links.read(parcel(-1))
    for number in range(3 * MOST_WAITING):
        bench.links.write(parcel(number))
    bench.links.finish(lambda sent: pytest.fail("told of a unit that came to nothing"))
    bench.end()
    assert [str(error) for error in bench.errors] == ["damaged"] and bench.coding.calls == []


def test_encoding_blocks_while_too_many_parcels_wait() -> None:
    bench = Bench()
    bench.coding.may_write.clear()
    posted: list[int] = []

    def write() -> None:
        for number in range(2 * MOST_WAITING):
            bench.links.write(parcel(number))
            posted.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    eventually(lambda: len(posted) == MOST_WAITING)
    assert len(posted) == MOST_WAITING and not bench.coding.calls
    bench.coding.may_write.set()
    writer.join(PATIENCE_SECONDS)
    bench.end()
    assert len(posted) == 2 * MOST_WAITING == len(bench.coding.calls)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@contextmanager
def first_worker(
    rung: str,
) -> Iterator[tuple[ComputeThread, Outcomes, Callable[..., None]]]:
    """The compute thread of the first of two workers, which has begun; and what feeds it a microbatch."""
    graph = captured(case("gpt"), SAMPLES)[1]
    job = placed(graph, [len(graph.nodes) // 2], workers(2), MICROBATCHES, SAMPLES)
    codecs = [LinkCodec(a, b, rung, 1.0) for a, b in (("worker-0", "worker-1"), ("worker-1", "worker-0"))]
    plan = msgspec.structs.replace(job.plan, codecs=codecs)
    training = Training(2, MICROBATCHES, SAMPLES, SGD(0.1)).with_codecs((rung,))
    segment = received(job.programs, SAMPLES)[0]
    owned = [entry for entry in segment.inputs if entry.name in segment.owned]
    sizes = {entry.name: segment.values[entry.value].bytes(SAMPLES) for entry in owned}
    program = SegmentProgram(0, job.programs[0], sizes, trained_shapes(segment))
    load = Load("job-1", 1, plan, training, [program], {}, "desk")
    outcomes: Outcomes = []
    thread = ComputeThread("worker-0", 10**9, TorchBackend(), outcomes.append, outcomes.append)
    thread.start()
    thread.prepare(load, StateReceiver(load, [0], 10**9, tensors.allocate), limits())
    eventually(lambda: bool(outcomes))
    (verified,) = outcomes
    assert isinstance(verified, Verified) and verified.problem is None
    thread.begin(ATTEMPT)
    batches = microbatches(case("gpt"), SAMPLES, MICROBATCHES, 0)
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}

    def feed(microbatch: int, factor: int = 1) -> None:
        for edge in plan.edges:
            if edge.source == FEEDER and edge.target == 0:
                data = tensors.memory((batches[microbatch][names[edge.value]] * factor).contiguous())
                fed = Parcel(0, microbatch, FEEDER, 0, edge.value, False, Coded(0, data))
                thread.receive(ATTEMPT, fed)

    try:
        yield thread, outcomes, feed
    finally:
        thread.close()
        thread.join(PATIENCE_SECONDS)


def coded(outcomes: Outcomes) -> list[int]:
    """Microbatches of what left and was written by a codec, in order."""
    sent = [one.parcel for one in outcomes if isinstance(one, Outgoing)]
    return [parcel.microbatch for parcel in sent if parcel.payload is not None and parcel.payload.codec]


def test_a_microbatch_is_written_while_the_next_ones_pass_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is written only once the second one's pass has begun, and that ends only after it was.

    Both are here before the first one's pass: the thread that writes reads as well, and would not come to it.
    """
    fed, begun, written = threading.Event(), threading.Event(), threading.Event()
    encode, forward = Coding.encode, TorchSegment.forward

    def slow_encode(self: Coding, parcel: Parcel[memoryview]) -> Parcel[Coded]:
        if parcel.target != FEEDER and parcel.microbatch == 0:
            assert begun.wait(PATIENCE_SECONDS)
        found = encode(self, parcel)
        written.set()
        return found

    def slow_forward(self: TorchSegment, unit: Any, microbatch: int, values: Any, bucket: int) -> Any:
        if microbatch == 0:
            assert fed.wait(PATIENCE_SECONDS)
        else:
            begun.set()
            assert written.wait(PATIENCE_SECONDS)
        return forward(self, unit, microbatch, values, bucket)

    monkeypatch.setattr(Coding, "encode", slow_encode)
    monkeypatch.setattr(TorchSegment, "forward", slow_forward)
    with first_worker("int8") as (_, outcomes, feed):
        for microbatch in range(2):
            feed(microbatch)
        fed.set()
        eventually(lambda: 1 in coded(outcomes))
    assert set(coded(outcomes)) == {0, 1} and coded(outcomes) == sorted(coded(outcomes))


def test_an_undecodable_parcel_ends_the_attempt_in_one_line() -> None:
    with first_worker("int8") as (thread, outcomes, feed):
        feed(0)
        eventually(lambda: bool(coded(outcomes)))
        sent = [one.parcel for one in outcomes if isinstance(one, Outgoing)]
        value = next(one.value for one in sent if one.payload is not None and one.payload.codec)
        damaged = Parcel(0, 0, 1, 0, value, True, Coded(1, memoryview(b"?????????")))
        thread.receive(ATTEMPT, damaged)
        eventually(lambda: any(isinstance(one, ComputeFailed) for one in outcomes))
    (failed,) = [one for one in outcomes if isinstance(one, ComputeFailed)]
    assert failed.sender == "worker-1"  # of segment 1: it may be at fault, not the one that reads it
    assert "cannot be decoded" in failed.reason and "\n" not in failed.reason
    assert not any(isinstance(one, UnitFinished) for one in outcomes)


def test_an_index_out_of_range_is_the_fault_of_who_sent_the_data() -> None:
    with first_worker("int8") as (_, outcomes, feed):
        feed(0, factor=10**6)
        eventually(lambda: any(isinstance(one, ComputeFailed) for one in outcomes))
    (failed,) = [one for one in outcomes if isinstance(one, ComputeFailed)]
    assert failed.sender == "desk" and "the data has a token or class" in failed.reason
