"""A job's first state on its way in."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from tests.worker.loads import fresh, load

from farflung.errors import CopyError, CopyUnfit, GraphError, ProtocolError
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.state import CODERS, StateKey
from farflung.transport.wire.headers import SliceHeader
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.storing.copy_format import Piece

WEIGHT = bytes(range(12))
HEADER = SliceHeader("job-1", 5, 1, "weight", 0, 8, 12, hashlib.sha256(WEIGHT).digest())


def trained() -> Load:
    """The load after the first step of AdamW, which trains the weight of segment 1."""
    given = load()
    programs = [SegmentProgram(1, b"", {"weight": 12, "bias": 4}, {"weight": [3]})]
    training = msgspec.structs.replace(given.training, optimizer=AdamW(0.1))
    return msgspec.structs.replace(given, programs=programs, training=training, unit=1)


def filled() -> StateReceiver:
    receiver = StateReceiver(load(), [1], 10**6, fresh)
    bias = SliceHeader("job-1", 5, 1, "bias", 0, 4, 4, hashlib.sha256(b"bias").digest())
    rest = msgspec.structs.replace(HEADER, offset=8, bytes=4)
    for header, data in ((HEADER, WEIGHT[:8]), (bias, b"bias"), (rest, WEIGHT[8:])):
        memory = receiver.opening("desk", header)
        assert memory is not None and not receiver.full
        memory[:] = data
        receiver.complete(header)
    return receiver


def test_slices_fill_the_tensors_that_segments_will_use() -> None:
    receiver = filled()
    assert receiver.full
    assert receiver.verify() is None
    assert bytes(receiver.buffers[(1, "weight")]) == WEIGHT


def test_a_parameter_of_a_copy_without_any_slot_begins_without_and_one_that_lacks_some_is_refused() -> None:
    slots = {"exp_avg": 12, "exp_avg_sq": 12, "step": 8}
    for given, lacking in (([], ""), (["exp_avg"], "the copies of the job's state lack exp_avg_sq of")):
        receiver = StateReceiver(trained(), [1], 10**6, fresh)
        for name, size in (("weight", 12), ("bias", 4)):
            assert receiver.place(Piece(1, StateKey(name)), size) is not None
        for slot in given:
            assert receiver.place(Piece(1, StateKey("weight", slot)), slots[slot]) is not None
        receiver.trust()
        assert receiver.lacking.startswith(lacking) and receiver.full == (not lacking)
        assert not receiver.full or not receiver.take_slots(1)


def test_a_copy_without_the_parameter_itself_is_refused() -> None:
    receiver = StateReceiver(trained(), [1], 10**6, fresh)
    assert receiver.place(Piece(1, StateKey("bias")), 4) is not None
    receiver.trust()
    assert "weight" in receiver.lacking and not receiver.full


def test_coders_for_which_this_worker_has_no_memory_are_no_fault_of_the_copy() -> None:
    given = trained()
    training = msgspec.structs.replace(given.training, codecs=("int8",))
    receiver = StateReceiver(msgspec.structs.replace(given, training=training), [1], 52, fresh)
    with pytest.raises(CopyError, match="takes 5 bytes, this worker has 4 left") as refused:
        receiver.place(Piece(1, CODERS), 5)
    assert not isinstance(refused.value, CopyUnfit)
    with pytest.raises(CopyUnfit, match="does not fit the program"):
        receiver.place(Piece(1, StateKey("weight")), 5)


def test_a_flipped_bit_is_found() -> None:
    receiver = filled()
    receiver.buffers[(1, "weight")][3] += 1
    assert "weight" in (receiver.verify() or "")


@pytest.mark.parametrize(
    ("peer", "fields"),
    [
        ("a", {}),
        ("desk", {"name": "other"}),
        ("desk", {"segment": 0}),
        ("desk", {"total": 13}),
        ("desk", {"offset": 4}),
        ("desk", {"bytes": 13}),
    ],
)
def test_slices_that_the_plan_does_not_expect_are_refused(peer: str, fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="slice"):
        StateReceiver(load(), [1], 10**6, fresh).opening(peer, msgspec.structs.replace(HEADER, **fields))


def test_a_slice_comes_once_and_with_one_digest() -> None:
    receiver = StateReceiver(load(), [1], 10**6, fresh)
    receiver.opening("desk", HEADER)
    with pytest.raises(ProtocolError, match="out of order"):
        receiver.opening("desk", HEADER)
    with pytest.raises(ProtocolError, match="two digests"):
        receiver.opening("desk", msgspec.structs.replace(HEADER, offset=8, bytes=4, sha256=bytes(32)))


def test_a_slice_that_was_cut_off_may_come_once_more() -> None:
    receiver = StateReceiver(load(), [1], 10**6, fresh)
    rest = msgspec.structs.replace(HEADER, offset=8, bytes=4)
    for header in (HEADER, rest):
        assert receiver.opening("desk", header) is not None
    receiver.complete(rest)  # over another connection, and before the first
    receiver.retract(HEADER)
    assert receiver.opening("desk", HEADER) is not None
    with pytest.raises(ProtocolError, match="out of order"):
        receiver.opening("desk", HEADER)


def test_state_beyond_what_the_owner_gives_is_refused_before_it_is_taken() -> None:
    with pytest.raises(GraphError, match="takes 16 bytes, this worker offers 15"):
        StateReceiver(load(), [1], 15, fresh)


def test_an_attempt_that_is_over_is_dropped() -> None:
    assert (
        StateReceiver(load(), [1], 10**6, fresh).opening("desk", msgspec.structs.replace(HEADER, attempt=4))
        is None
    )
