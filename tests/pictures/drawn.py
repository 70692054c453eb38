"""What a drawn figure shows: its texts, where they stand, and whether they cover one another."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from farflung.pictures.figure import render


def svg_text(figure: Figure) -> list[str]:
    """The texts of the figure as a program finds them in the SVG; a space may have become a no-break one."""
    root = ElementTree.fromstring(render(figure))  # noqa: S314 (written by this process)
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()).replace("\N{NO-BREAK SPACE}", " ") for text in texts]


def text_boxes(figure: Figure) -> dict[Text, Bbox]:
    """Every text that is shown, with its box in pixels."""
    figure.canvas.draw()
    hidden = set(_labels_beyond_axes(figure))
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return {text: text.get_window_extent() for text in texts if text not in hidden}


def assert_legible(figure: Figure) -> None:
    """Fail if a text leaves the canvas or covers another one."""
    boxes = text_boxes(figure)
    width, height = figure.canvas.get_width_height()
    for text, box in boxes.items():
        assert -1 <= box.x0 <= box.x1 <= width + 1, f"{text.get_text()!r} leaves the picture"
        assert -1 <= box.y0 <= box.y1 <= height + 1, f"{text.get_text()!r} leaves the picture"
    for (one, a), (other, b) in itertools.combinations(boxes.items(), 2):
        assert not a.padded(-1).overlaps(b.padded(-1)), f"{one.get_text()!r} covers {other.get_text()!r}"


def _labels_beyond_axes(figure: Figure) -> Iterator[Text]:
    """matplotlib keeps labels of ticks beyond the axes, which it does not draw."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not axis.axes.axison or not low <= tick.get_loc() <= high:
                yield from (tick.label1, tick.label2)
