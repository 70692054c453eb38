"""Write the page: one HTML file with its style, its scripts and its data, which asks nothing of a network.

Names of workers, reasons and warnings come from other machines. They reach the page as JSON in which no
character can end the script element, and its scripts write them as text only. A content security policy names
the digests of the page's own scripts and style, so that a browser runs nothing else and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

import msgspec

import farflung
from farflung.errors import JobError
from farflung.files import write_atomically
from farflung.pages.report.document import RunDocument, document_of
from farflung.pages.report.recorded import read_run
from farflung.text import count_of, printable

SCRIPTS = ("uplot.js", "dom.js", "axes.js", "charts.js", "replay.js", "report.js")
STYLES = ("uplot.css", "page.css")
MOST_RUNS = 2
ENDINGS = (".html", ".htm")


class Page(msgspec.Struct, frozen=True):
    """A page that was written: its file, its size, the runs in it, and what they lack."""

    file: str
    bytes: int
    runs: list[str]
    states: list[str]
    warnings: list[str]


class PageData(msgspec.Struct, frozen=True):
    """What is embedded in a page; `format` counts up when a key changes its meaning."""

    format: int
    farflung: str
    runs: list[RunDocument]


def write_page(folders: Sequence[Path], out: Path | None = None) -> Page:
    """Write a page of one run, or of two side by side.

    Parameters
    ----------
    folders
        The run folders. Nothing in them is changed.
    out
        The file, which is replaced. By default `DIR-report.html` in the current folder, where `DIR` is the
        name of the first run folder.

    Raises
    ------
    JobError
        There are too many runs, a folder holds none, the file's name does not end in .html, or it cannot
        be written.
    """
    if not 1 <= len(folders) <= MOST_RUNS:
        raise JobError(
            f"expected the folder of a run, or of two to compare, found {count_of(len(folders), 'folder')}"
        )
    out = Path(f"{folders[0].resolve().name}-report.html") if out is None else out
    if out.suffix.lower() not in ENDINGS:
        raise JobError(f"the page {out} must end in .html: choose another --out")
    runs = [read_run(folder) for folder in folders]
    document = render([document_of(run) for run in runs])
    try:
        write_atomically(out, document)
    except OSError as error:
        raise JobError(f"cannot write {out}: {error.strerror or error}; choose another --out") from None
    warnings = [f"{run.folder}: {words}" for run in runs for words in run.warnings]
    return Page(
        str(out), len(document), [str(run.folder) for run in runs], [run.state for run in runs], warnings
    )


def render(runs: Sequence[RunDocument]) -> bytes:
    """The page of these runs, in UTF-8."""
    script, style = _joined(SCRIPTS), _joined(STYLES)
    data = PageData(1, farflung.__version__, list(runs))
    page = Template(_static("report.html")).substitute(
        title=_escaped(" and ".join(run.title for run in runs)),
        script=script,
        style=style,
        script_digest=_digest(script),
        style_digest=_digest(style),
        data=_embedded(data),
    )
    return page.encode(errors="replace")


def _embedded(data: PageData) -> str:
    """JSON in which nothing can end or confuse the element that holds it."""
    document = msgspec.json.encode(_printable(msgspec.to_builtins(data))).decode()
    for character in "<>&\u2028\u2029":
        document = document.replace(character, f"\\u{ord(character):04x}")
    return document


def _printable(value: object) -> object:
    """The same, without characters that would not show as themselves, such as those that reverse text."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {_printable(key): _printable(item) for key, item in value.items()}
        case list() | tuple():
            return [_printable(item) for item in value]
        case _:
            return value


def _escaped(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _joined(names: Sequence[str]) -> str:
    return "\n" + "\n".join(_static(name).strip() for name in names) + "\n"


def _static(name: str) -> str:
    return (resources.files("farflung.pages") / "static" / name).read_text(encoding="utf-8")
