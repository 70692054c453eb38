from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.fuzz import campaign
from tests.fuzz.campaign import TRICKLES, Figures

pytestmark = pytest.mark.fuzz

MOST_GROWTH_BYTES = 64 * 2**20


def assert_stood(figures: Figures) -> None:
    """No memory above the bound, nothing kept, and a healthy link that went on all the while."""
    assert figures.memory_peak - figures.memory_before <= MOST_GROWTH_BYTES, figures
    assert figures.trickles_hung_up_on == TRICKLES, figures
    assert figures.left_links == 0 and figures.left_descriptors <= 0, figures
    assert figures.healthy_exchanges > 100, figures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_live_endpoint_stands_20_000_damaged_frames_and_2_000_wrong_handshakes(tmp_path: Path) -> None:
    figures = asyncio.run(campaign.run(tmp_path, frames=20_000, handshakes=2_000, seed=1))
    assert figures.frames >= 20_000 and figures.handshakes == 2_000
    assert_stood(figures)
    # The damage reaches what it should: every frame is taken sometimes and refused sometimes.
    frames = "hello control open chunk credit ping pong cancel close ack stripe widen"
    for frame in frames.split():
        assert figures.frame_outcomes.get(f"{frame} refused", 0) > 10, (frame, figures)
    odd = [what for what in figures.frame_outcomes if what.startswith("odd ") and what.endswith(" refused")]
    assert not odd, figures  # what may be said is not refused, however strange
    further = [count for what, count in figures.frame_outcomes.items() if what.startswith("further")]
    assert sum(further) > 50, figures
