"""Damaged payloads: decoders refuse them or read a tensor, in little memory. `make fuzz` feeds a million."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from tests.fuzz.payloads import LEARNING, MOST_BYTES, Figures, Target, run
from tests.support.arrays import FAMILIES

from farflung.errors import CodecError

pytestmark = pytest.mark.fuzz


def assert_stood(figures: Figures) -> None:
    """No memory above the bound; crashes and other errors end the attack."""
    assert figures.most_bytes <= MOST_BYTES, figures


@pytest.mark.slow
def test_decoders_stand_6_000_damaged_payloads() -> None:
    figures = run(count=6_000, seed=1)
    assert figures.payloads == 6_000
    assert_stood(figures)
    # The damage reaches what it should: each decoder refuses some, and most are deceived by others.
    for name in (*FAMILIES, *LEARNING):
        assert figures.outcomes[f"{name}: refused"] > 50, figures


def test_what_learns_is_fed_payloads_that_bring_axes() -> None:
    for name, recipe in LEARNING.items():
        sizes = [len(Target(name, recipe, learned).payloads[1]) for learned in (1, 0)]
        assert (sizes[0] - sizes[1] >= 64 * 64) == (recipe.axes is not None), name


def test_a_plane_that_would_fill_the_memory_is_refused_unread() -> None:
    codec, array = FAMILIES["lossless"], np.zeros((64, 64), np.float32)
    honest = codec.encode(array).joined()
    bomb = zstandard.compress(bytes(10**8))
    for raw in (10**8, 64):
        entry = np.array([raw, len(bomb), 1], "<u4").tobytes()
        with pytest.raises(CodecError):
            codec.decode((1).to_bytes(4, "little") + entry + bomb, np.empty_like(array))
    codec.decode(honest, array)
