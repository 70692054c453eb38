"""The picture of a simulated step."""

from __future__ import annotations

import pytest
from benchmarks.simulated_plans import MB, chain, topology
from matplotlib.collections import PolyCollection
from tests.pictures.drawn import assert_legible, svg_text

from farflung.pictures.timeline import draw_timeline
from farflung.simulator import Simulation, simulate


def simulated(count: int) -> Simulation:
    plan = chain([0.1] * count, [MB] * (count - 1), 5)
    return simulate(plan, topology([1.0] * count, 80.0, 5.0), timeline=True)


@pytest.mark.parametrize("count", [1, 4, 48])
def test_every_task_and_message_is_in_the_picture(count: int) -> None:
    found = simulated(count)
    figure = draw_timeline(found, "a & b $c$")
    (axes,) = figure.axes
    boxes = [
        path for part in axes.collections if isinstance(part, PolyCollection) for path in part.get_paths()
    ]
    # The first segment has gradients of parameters only, and no others to compute.
    assert len(boxes) == len(found.timeline) == 5 * (3 * count - 1 + 2 * (count - 1))
    (left, right), (low, high) = axes.get_xlim(), sorted(axes.get_ylim())
    for box in boxes:
        (x0, y0), (x1, y1) = box.vertices.min(axis=0), box.vertices.max(axis=0)
        assert left <= x0 < x1 <= right + 1e-9 and low <= y0 < y1 <= high
    words = svg_text(figure)
    assert "a & b $c$" in words and all(f"w{n}" in words for n in range(count))
    assert any(f"busy {found.bottleneck.share:.0%}" in text for text in words)
    assert len(axes.patches) == 1  # the bottleneck's frame
    assert_legible(figure)


def test_text_beside_the_picture_keeps_its_columns_and_stays_inside() -> None:
    lines = ["worker       layers      Mbit/s", "", "  home-0     layers.0          8" + 40 * "x"] * 12
    figure = draw_timeline(simulated(2), "", lines)
    words = svg_text(figure)
    assert words.count(lines[0]) == 12 and words.count(lines[2]) == 12
    assert_legible(figure)


def test_a_simulation_without_timeline_is_refused() -> None:
    with pytest.raises(ValueError, match="timeline=True"):
        draw_timeline(simulate(chain([0.1], [], 1), topology([1.0])))
