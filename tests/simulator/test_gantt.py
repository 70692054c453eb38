from __future__ import annotations

from xml.etree import ElementTree

import pytest
from tests.simulator.plans import MB, chain, topology

from farflung.simulator import simulate
from farflung.simulator.gantt import gantt

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("count", [1, 4, 48])
def test_every_task_and_message_is_in_the_picture(count: int) -> None:
    plan = chain([0.1] * count, [MB] * (count - 1), 5)
    found = simulate(plan, topology([1.0] * count, 80.0, 5.0), timeline=True)
    picture = ElementTree.fromstring(gantt(found, "a & b"))  # noqa: S314
    # The first segment has gradients of parameters only, and no others to compute.
    boxes = [box for box in picture.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    assert len(boxes) == len(found.timeline) == 5 * (3 * count - 1 + 2 * (count - 1))
    width, height = (float(x) for x in picture.attrib["viewBox"].split()[2:])
    for box in boxes:
        assert 0 <= float(box.attrib["x"]) <= float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert 0 <= float(box.attrib["y"]) <= float(box.attrib["y"]) + float(box.attrib["height"]) <= height
    assert f"busy {found.bottleneck.share:.0%}" in "".join(picture.itertext())


def test_a_simulation_without_timeline_is_refused() -> None:
    with pytest.raises(ValueError, match="timeline=True"):
        gantt(simulate(chain([0.1], [], 1), topology([1.0])))
