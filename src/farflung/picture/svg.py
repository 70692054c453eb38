"""Elements of an SVG document as text."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from farflung.text import printable

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def element(name: str, *children: str, **attributes: str | float) -> str:
    """An element; `stroke_width=2` is written stroke-width="2", and children are elements already."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={_value(value)}" for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def text(words: str, x: float, y: float, size: float, **attributes: str | float) -> str:
    """Words centred at a point, unless `text_anchor` says otherwise."""
    placed: dict[str, str | float] = {"x": x, "y": y, "font_size": size, "text_anchor": "middle"}
    return element("text", escape(printable(words)), **{**placed, **attributes})


def haloed(words: str, x: float, y: float, size: float, **attributes: str | float) -> str:
    """Words that stay readable on lines."""
    halo: dict[str, str | float] = {"fill": "#ffffff", "stroke": "#ffffff", "stroke_width": 4}
    # Not by paint-order, which many viewers do not know.
    return text(words, x, y, size, **{**attributes, **halo}) + text(words, x, y, size, **attributes)


def title(words: str) -> str:
    """What is shown when a pointer rests on the parent."""
    return element("title", escape(printable(words)))


def document(width: float, height: float, children: Iterable[str]) -> str:
    """A whole document on a white ground, as large as its viewer likes."""
    box = f"0 0 {width:.0f} {height:.0f}"
    ground = element("rect", width="100%", height="100%", fill="#ffffff")
    style = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": box, "font-family": FONT}
    opened = " ".join(f"{key}={quoteattr(value)}" for key, value in style.items())
    body = "\n".join([ground, *children])
    return f'<svg {opened} width="{width:.0f}" height="{height:.0f}">\n{body}\n</svg>\n'


def _value(value: str | float) -> str:
    return quoteattr(value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip("."))
