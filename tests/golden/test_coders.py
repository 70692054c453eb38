"""Payloads of codecs are read as they were, and snapshots of coders are taken up and given back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.golden.coders import FILE, ROWS, WIDTH, context, recipe_called, worker_coding
from tests.golden.formats import VERSIONS

from farflung.plans import Plan
from farflung.plans.codec_pair import CODEC_FORMAT

RECORDED: dict[str, Any] = json.loads(
    next(version / FILE for version in reversed(VERSIONS) if (version / FILE).exists()).read_text()
)


def test_the_codec_format_is_the_one_that_was_recorded() -> None:
    assert RECORDED["codec_format"] == CODEC_FORMAT


@pytest.mark.parametrize("name", RECORDED["payloads"])
def test_a_payload_is_read_as_it_was(name: str) -> None:
    coder, kept = recipe_called(name).coder(WIDTH), RECORDED["payloads"][name]
    _require_close(_read(coder, kept, 0), _numbers(kept))


@pytest.mark.parametrize("name", RECORDED["snapshots"])
def test_a_coder_goes_on_from_a_snapshot(name: str) -> None:
    kept = RECORDED["snapshots"][name]
    for end in ("writer", "reader"):
        coder = recipe_called(name).coder(WIDTH)
        coder.restore(bytes.fromhex(kept[end]))
        assert coder.snapshot() == bytes.fromhex(kept[end])
    _require_close(_read(coder, kept, 3), _numbers(kept))


def test_a_worker_goes_on_from_what_it_remembered_of_its_links() -> None:
    kept = RECORDED["worker"]
    snapshot = bytes.fromhex(kept["snapshot"])
    assert len(msgspec.msgpack.decode(snapshot)) > 0
    coding = worker_coding(msgspec.json.decode(kept["plan"], type=Plan))
    coding.restore(snapshot)
    assert coding.snapshot() == snapshot


def _require_close(found: np.ndarray, recorded: np.ndarray) -> None:
    """Equal but for the last bits of a matrix product, which differ between CPUs by its largest numbers."""
    assert np.abs(found - recorded).max() <= 1e-6 * np.abs(recorded).max()


def _read(coder: Any, kept: dict[str, str], step: int) -> np.ndarray:
    into = np.empty((ROWS, WIDTH), np.float32)
    coder.decode(bytes.fromhex(kept["payload"]), into, context(step))
    return into.reshape(-1)


def _numbers(kept: dict[str, str]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(kept["read"]), np.float32)
