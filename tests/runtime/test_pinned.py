"""The ring of pinned memory: bounded, and no buffer is taken while a copy may use it."""

from __future__ import annotations

import pytest
import torch

from farflung.runtime.torch_backend import pinned
from farflung.runtime.torch_backend.pinned import GRAIN, PinnedRing, padded


class Copy:
    """The event of a copy, which passes when the test says so."""

    passed = False

    def query(self) -> bool:
        return self.passed


@pytest.fixture(autouse=True)
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary memory, since only a GPU's driver can pin some."""
    monkeypatch.setattr(pinned, "pinned_memory", lambda size: torch.empty(size, dtype=torch.uint8))


def test_a_buffer_is_used_again_for_a_value_of_almost_its_size() -> None:
    ring = PinnedRing(GRAIN)
    first = ring.take(GRAIN - 5)
    assert first is not None and len(first) == GRAIN
    ring.give_back(first)
    assert ring.take(10) is first


def test_no_more_is_taken_than_allowed() -> None:
    ring = PinnedRing(3 * GRAIN)
    taken = [ring.take(size) for size in (GRAIN, 2 * GRAIN)]
    assert all(buffer is not None for buffer in taken) and ring.take(1) is None
    assert PinnedRing().take(1) is None


def test_a_buffer_rests_until_its_copy_is_done() -> None:
    ring, copy = PinnedRing(GRAIN), Copy()
    buffer = ring.take(1)
    assert buffer is not None
    ring.give_back(buffer, copy)
    assert ring.take(1) is None
    copy.passed = True
    assert ring.take(1) is buffer


def test_buffers_of_other_sizes_make_room_once_they_rest() -> None:
    ring, copy = PinnedRing(3 * GRAIN), Copy()
    small, large = ring.take(1), ring.take(2 * GRAIN)
    assert small is not None and large is not None
    ring.give_back(large, copy)
    assert ring.take(1) is None
    copy.passed = True
    assert ring.take(1) is not None  # in place of the large one
    ring.give_back(small)
    assert ring.take(2 * GRAIN) is not None


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, GRAIN), (GRAIN, GRAIN), (GRAIN + 1, 2 * GRAIN)])
def test_sizes_are_rounded_up(size: int, expected: int) -> None:
    assert padded(size) == expected
