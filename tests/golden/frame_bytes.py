"""The frames of a connection: prefix and header as bytes, by the number that stands for the frame's type."""

from __future__ import annotations

from typing import Any, get_args

from tests.golden.samples import samples

from farflung.transport.wire import frames

FILE = "frames.json"
PAYLOAD_BYTES = 1_000
"""Said to follow each frame that may have a payload."""

_WITH_PAYLOAD = (frames.Control, frames.Open, frames.Chunk, frames.Join, frames.Reply)


def made() -> dict[str, Any]:
    """Today's frames."""
    found: dict[str, list[str]] = {}
    for kind in get_args(frames.Frame):
        payload = PAYLOAD_BYTES if kind in _WITH_PAYLOAD else 0
        for frame in samples(kind):
            data = frames.encode(frame, payload)
            number, _, _ = frames.read_prefix(memoryview(data)[: frames.PREFIX_BYTES])
            found.setdefault(str(number), []).append(data.hex())
    constants = {
        "magic": frames.MAGIC.hex(),
        "protocol": frames.PROTOCOL,
        "prefix_bytes": frames.PREFIX_BYTES,
        "header_limit": frames.MAXIMUM_HEADER_BYTES,
        "chunk_limit": frames.MAXIMUM_CHUNK_BYTES,
        "control_limit": frames.MAXIMUM_CONTROL_BYTES,
        "kinds": list(get_args(frames.Kind)),
    }
    return {"constants": constants, "frames": dict(sorted(found.items(), key=lambda item: int(item[0])))}
