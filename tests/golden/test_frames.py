"""Frames of a connection, as bytes in both directions."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from tests.golden.formats import VERSIONS
from tests.golden.frame_bytes import FILE, PAYLOAD_BYTES, made

from farflung.transport.wire import frames

RECORDED: dict[str, Any] = json.loads(
    next(version / FILE for version in reversed(VERSIONS) if (version / FILE).exists()).read_text()
)
FRAMES = [(int(number), data) for number, all_of_it in RECORDED["frames"].items() for data in all_of_it]


def test_constants_are_those_that_were_recorded() -> None:
    assert made()["constants"] == RECORDED["constants"]


def test_every_frame_has_the_number_that_was_recorded() -> None:
    numbers = [int(number) for number in RECORDED["frames"]]
    assert numbers == list(range(1, 1 + len(get_args(frames.Frame))))


@pytest.mark.parametrize(("number", "text"), FRAMES)
def test_a_frame_is_read_and_written_as_it_was_recorded(number: int, text: str) -> None:
    data = memoryview(bytes.fromhex(text))
    found, header_bytes, payload_bytes = frames.read_prefix(data[: frames.PREFIX_BYTES])
    assert (found, header_bytes) == (number, len(data) - frames.PREFIX_BYTES)
    assert payload_bytes in (0, PAYLOAD_BYTES)
    frame = frames.read_header(found, data[frames.PREFIX_BYTES :])
    assert frames.encode(frame, payload_bytes) == data
