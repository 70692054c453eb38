"""What all pictures share: a style, text that stays text, labels that do not overlap, and files.

matplotlib is an optional dependency. It is imported only when something is drawn, and never with a display,
with pyplot or with the user's own settings.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.errors import PictureError
from farflung.files import write_atomically
from farflung.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

INK, PALE, GRID, GROUND = "#22262b", "#5f6773", "#e3e6ea", "#f3f5f7"
BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#0072b2", "#d55e00", "#009e73", "#aa4499", "#a50026", "#6b7280"
"""Colours that people with any colour vision can tell apart (Okabe and Ito's, slightly changed)."""

COLOURS = (GREY, BLUE, ORANGE, GREEN, PURPLE, "#b8860b")

_ENDINGS = (".svg", ".png", ".pdf")
_NO_DATE: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
_POINTS_PER_INCH = 72
_PIXELS_PER_INCH, _MOST_PIXELS = 144, 16_000


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before any long work.

    Raises
    ------
    PictureError
        The file's ending is not one of svg, png and pdf, its folder is missing, or matplotlib is.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise PictureError(f"a picture's name must end in .svg, .png or .pdf, found {path.name!r}")
    if not path.parent.is_dir():
        raise PictureError(f"cannot write the picture {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise PictureError("pictures need matplotlib: pip install 'farflung[pictures]'")


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of farflung, whatever the user's matplotlib settings are; also a decorator."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "text.parse_math": False,  # a `$` in a name is a dollar sign
                "svg.hashsalt": "farflung",
                "text.hinting": "none",
                "font.size": 9,
                "text.color": INK,
                "axes.titlesize": 12,
                "axes.labelcolor": PALE,
                "axes.labelsize": 9,
                "axes.edgecolor": GRID,
                "axes.axisbelow": True,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "grid.color": GRID,
                "xtick.color": PALE,
                "ytick.color": PALE,
                "xtick.labelsize": 8,
                "ytick.labelsize": 8,
                "xtick.major.size": 0,
                "ytick.major.size": 0,
                "xtick.minor.size": 0,
                "ytick.minor.size": 0,
                "legend.frameon": False,
                "legend.fontsize": 8.5,
                "lines.solid_capstyle": "butt",
            }
        )
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of this size in points, with text measured as it will be drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_POINTS_PER_INCH)
    FigureCanvasAgg(figure)
    return figure


def render(figure: Figure, kind: str = "svg", text_as_shapes: bool = False) -> bytes:
    """The figure as a file's content; the same figure always gives the same bytes.

    An SVG's text stays text, which can be searched, or becomes shapes, which look alike in any viewer.
    """
    import matplotlib

    dots = min(_PIXELS_PER_INCH, _MOST_PIXELS / max(figure.get_size_inches()))
    content = io.BytesIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names are in any script
        matplotlib.rcParams["svg.fonttype"] = "path" if text_as_shapes else "none"
        figure.savefig(content, format=kind, dpi=dots, metadata=_NO_DATE[kind])
    return content.getvalue()


def write_picture(figure: Figure, path: Path) -> None:
    """Write the figure to a file, in the format of the file's ending.

    Raises
    ------
    PictureError
        The file cannot be written, or its ending is not one of svg, png and pdf.
    """
    check_picture(path)
    try:
        write_atomically(path, render(figure, path.suffix.lower().removeprefix(".")))
    except OSError as error:
        raise PictureError(f"cannot write the picture {path}: {error.strerror or error}") from None


def plain_text(text: str, most: int = 200) -> str:
    """Text of others without control characters, and no longer than `most` characters."""
    clean = printable(text)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def bytes_text(count: float) -> str:
    """A number of bytes in three digits: 786 kB."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def rate_text(mbps: float) -> str:
    """A rate in Mbit/s without its unit: 7.9, 52, 1200."""
    return f"{mbps:.1f}".removesuffix(".0") if mbps < 10 else f"{mbps:.0f}"


def extent(text: Text) -> Bbox:
    """The box of a text in points, as drawn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        return text.get_window_extent()


class Space:
    """Which parts of a picture are taken, so that no label covers another."""

    def __init__(self) -> None:
        self.taken: list[Bbox] = []

    def is_free(self, box: Bbox) -> bool:
        """Whether nothing was drawn there yet."""
        return not any(box.overlaps(other) for other in self.taken)

    def claim(self, box: Bbox) -> bool:
        """Take a box if it is free, and say whether it was."""
        is_free = self.is_free(box)
        if is_free:
            self.taken.append(box)
        return is_free
