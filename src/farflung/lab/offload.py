"""Packets with an offload header: one that stands for many segments, which the kernel never cut."""

from __future__ import annotations

import struct

from farflung.lab.shaper import FRAME_OVERHEAD

HEADER_BYTES = 10  # struct virtio_net_hdr before each packet of a TUN device with segmentation offload
_HEADER = struct.Struct("=BBHHHH")  # flags, kind, headers, segment bytes, checksum start, offset


def wire_bytes(packet: bytes) -> int:
    """Bytes of the IP packets that a packet with an offload header becomes, and of frames around later ones.

    The headers of each segment end after the TCP header, which starts where its checksum does.
    """
    _, kind, _, segment, start, _ = _HEADER.unpack_from(packet)
    size = len(packet) - HEADER_BYTES
    if kind == 0 or segment == 0:
        return size
    headers: int = start + (packet[HEADER_BYTES + start + 12] >> 4) * 4
    segments = -(-(size - headers) // segment)
    return size + (segments - 1) * (headers + FRAME_OVERHEAD)
