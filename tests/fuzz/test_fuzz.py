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
@pytest.mark.parametrize(
    ("frames", "handshakes"), [(6_000, 600), pytest.param(20_000, 2_000, marks=pytest.mark.full)]
)
def test_a_live_endpoint_stands_damaged_frames_and_wrong_handshakes(
    frames: int, handshakes: int, tmp_path: Path
) -> None:
    figures = asyncio.run(campaign.run(tmp_path, frames=frames, handshakes=handshakes, seed=1))
    assert figures.frames >= frames and figures.handshakes == handshakes
    assert_stood(figures)
    # The damage reaches what it should: every frame is taken sometimes and refused sometimes.
    kinds = "hello control open chunk credit ping pong cancel close ack stripe widen"
    for kind in kinds.split():
        assert figures.frame_outcomes.get(f"{kind} refused", 0) > 5, (kind, figures)
    odd = [what for what in figures.frame_outcomes if what.startswith("odd ") and what.endswith(" refused")]
    assert not odd, figures  # what may be said is not refused, however strange
    assert figures.over_limits > 5, figures  # messages too large for the sender's role, or for their kind
    further = [count for what, count in figures.frame_outcomes.items() if what.startswith("further")]
    assert sum(further) > 15, figures
