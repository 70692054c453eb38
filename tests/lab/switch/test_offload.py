import struct

from hypothesis import given
from hypothesis import strategies as st

from farflung.lab.switch.shaper import FRAME_OVERHEAD
from farflung.lab.switch.switch import HEADER_BYTES, wire_bytes

IP, TCP = 20, 32


def train(payload: int, segment: int) -> bytes:
    """A TCP packet with `payload` bytes, to be cut every `segment`, behind its offload header."""
    header = struct.pack("=BBHHHH", 1, 1, IP + TCP, segment, IP, 16)
    tcp = bytes(12) + bytes([TCP // 4 << 4]) + bytes(TCP - 13)
    return header + bytes(IP) + tcp + bytes(payload)


@given(st.integers(1, 60_000), st.integers(500, 1448))
def test_an_offloaded_packet_counts_as_its_segments(payload: int, segment: int) -> None:
    frames = -(-payload // segment)
    on_wire = payload + frames * (IP + TCP + FRAME_OVERHEAD)
    assert wire_bytes(train(payload, segment)) + FRAME_OVERHEAD == on_wire


def test_a_packet_without_segments_counts_as_itself() -> None:
    assert wire_bytes(bytes(HEADER_BYTES) + bytes(84)) == 84
