from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.links import Collector, feed, slice_header, value_header

from farflung.errors import ProtocolError
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import (
    MAXIMUM_CHUNK_BYTES,
    MAXIMUM_HEADER_BYTES,
    PREFIX_BYTES,
    Cancel,
    Chunk,
    Close,
    Control,
    Credit,
    Frame,
    Hello,
    Join,
    Open,
    Ping,
    Pong,
    Reply,
    Stripe,
    Widen,
    closing,
    encode,
    read_prefix,
)

COUNTS = st.integers(0, 2**53)

FRAMES: st.SearchStrategy[tuple[Frame, bytes]] = st.one_of(
    st.tuples(st.builds(Hello, st.just("lab-1"), st.just("worker"), st.just("data")), st.just(b"")),
    st.tuples(st.builds(Control, COUNTS, st.integers(0, 2**26)), st.binary(max_size=300)),
    st.tuples(st.builds(Open, COUNTS, st.just(slice_header(10)), COUNTS), st.binary(max_size=40_000)),
    st.tuples(st.builds(Open, COUNTS, st.just(value_header(10, True))), st.binary(max_size=10)),
    st.tuples(st.builds(Chunk, COUNTS, COUNTS), st.binary(min_size=1, max_size=300)),
    st.tuples(st.builds(Credit, st.integers(1, 2**53)), st.just(b"")),
    st.tuples(st.builds(Ping, st.floats(allow_nan=False)), st.just(b"")),
    st.tuples(st.builds(Pong, st.floats(allow_nan=False)), st.just(b"")),
    st.tuples(st.builds(Cancel, COUNTS, COUNTS), st.just(b"")),
    st.tuples(st.builds(Stripe, st.binary(min_size=16, max_size=16)), st.just(b"")),
    st.tuples(st.builds(Widen, st.integers(1, 255)), st.just(b"")),
    st.tuples(st.builds(closing, st.text(max_size=600)), st.just(b"")),
    st.tuples(st.just(Join()), st.binary(max_size=100)),
    st.tuples(st.just(Reply()), st.binary(max_size=100)),
)


def stream_of(frames: list[tuple[Frame, bytes]]) -> bytes:
    return b"".join(encode(frame, len(payload)) + payload for frame, payload in frames)


@given(st.lists(FRAMES, max_size=8), st.data())
@settings(max_examples=60)
def test_frames_survive_any_splitting_of_the_stream(frames: list[tuple[Frame, bytes]], data: Any) -> None:
    stream = stream_of(frames)
    collector = Collector()
    reader = FrameReader(collector)
    start = 0
    while start < len(stream):
        size = data.draw(st.integers(1, 2 * len(stream)))
        feed(reader, stream[start : start + size])
        start += size
    assert collector.frames == frames


class Careful(Collector):
    """Also checks what a reader promises: memory is asked for within the limits only."""

    def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        assert payload_bytes <= MAXIMUM_CHUNK_BYTES
        return super().begin(frame, payload_bytes)


@given(
    st.lists(FRAMES, min_size=1, max_size=4), st.lists(st.tuples(COUNTS, st.binary(max_size=9)), max_size=6)
)
@settings(max_examples=150)
def test_a_damaged_stream_raises_nothing_but_protocol_errors(
    frames: list[tuple[Frame, bytes]], damage: list[tuple[int, bytes]]
) -> None:
    stream = bytearray(stream_of(frames))
    for place, found in damage:
        place %= len(stream)
        stream[place : place + len(found)] = found
    reader = FrameReader(Careful())
    try:
        feed(reader, bytes(stream))
    except ProtocolError as error:
        assert "\n" not in str(error)


@given(st.binary(min_size=PREFIX_BYTES, max_size=2000))
@settings(max_examples=100)
def test_garbage_is_refused_before_memory_is_taken(garbage: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected a farflung frame"):
        feed(FrameReader(Careful()), b"GET " + garbage)


def test_the_message_for_another_protocol_version_says_what_to_do() -> None:
    prefix = bytearray(encode(Ping(1.0)))
    prefix[4] = 2
    with pytest.raises(ProtocolError, match="protocol 2, this side 1: install the same version"):
        read_prefix(memoryview(prefix)[:PREFIX_BYTES])


@pytest.mark.parametrize(
    ("frame", "limit"),
    [(Chunk(0, 0), 2**20), (Control(0, 1), 2**20), (Join(), 8192), (Ping(0.0), 0), (Close("x"), 0)],
)
def test_a_payload_over_the_limit_is_refused_at_the_prefix(frame: Frame, limit: int) -> None:
    read_prefix(memoryview(encode(frame, limit))[:PREFIX_BYTES])
    with pytest.raises(ProtocolError, match=f"at most {limit} bytes"):
        read_prefix(memoryview(encode(frame, limit + 1))[:PREFIX_BYTES])


def test_a_header_over_the_limit_is_refused_at_the_prefix() -> None:
    prefix = bytearray(encode(Ping(1.0)))
    prefix[6:8] = (MAXIMUM_HEADER_BYTES + 1).to_bytes(2, "big")
    with pytest.raises(ProtocolError, match="header of at most 4096"):
        feed(FrameReader(Careful()), bytes(prefix))


def test_an_unknown_type_is_refused() -> None:
    prefix = bytearray(encode(Ping(1.0)))
    prefix[5] = 99
    with pytest.raises(ProtocolError, match="found 99"):
        feed(FrameReader(Careful()), bytes(prefix))


@pytest.mark.parametrize(
    "header", [["x"], [-1, 0], [0, 0, 0], {"stream": 0}, [0, "0"], None, [[[[[]]]]], [2**60, 0]]
)
def test_a_header_of_another_shape_is_refused(header: Any) -> None:
    encoded = msgspec.msgpack.encode(header)
    prefix = bytearray(encode(Chunk(0, 0)))[:PREFIX_BYTES]
    prefix[6:8] = len(encoded).to_bytes(2, "big")
    with pytest.raises(ProtocolError, match="cannot read the header of a chunk frame"):
        feed(FrameReader(Careful()), bytes(prefix) + encoded)


def test_dropped_payloads_take_no_memory() -> None:
    class Dropping(Collector):
        def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
            return None

    collector = Dropping()
    reader = FrameReader(collector)
    data = encode(Chunk(0, 0), MAXIMUM_CHUNK_BYTES) + bytes(MAXIMUM_CHUNK_BYTES)
    tracemalloc.start()
    feed(reader, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(collector.frames) == 1
    assert peak < 100_000
