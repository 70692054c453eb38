"""Types of command line arguments: what cannot be measured is refused before the first second is spent."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path

from farflung.errors import FarflungError


def whole(text: str) -> int:
    """A whole number of at least 1."""
    found = int(text) if text.isascii() and text.strip().isdecimal() else 0
    if not 1 <= found <= 10**12:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text[:40]!r}")
    return found


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text[:40]!r}")
    return found


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """One of these names; the message says which is close."""

    def read(text: str) -> str:
        if text not in known:
            close = get_close_matches(text, known, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise argparse.ArgumentTypeError(f"there is no {text[:40]!r}: {hint}expected {', '.join(known)}")
        return text

    return read


def several(each: Callable[[str], object]) -> Callable[[str], str]:
    """Text that commas separate, each part of which `each` accepts; stays as it is."""

    def read(text: str) -> str:
        parts = text.split(",")
        if not all(parts):
            raise argparse.ArgumentTypeError(f"expected parts with commas in between, found {text[:40]!r}")
        for part in parts:
            each(part)
        return text

    return read


def name_of_testbed(text: str) -> str:
    """A shipped testbed's name, or the path of a topology file that can be read."""
    from farflung.plans.testbeds.catalogue import find_topology

    try:
        find_topology(text)
    except FarflungError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def codec_name(text: str) -> str:
    """A codec pair, codecs in turn, or a policy."""
    from farflung.planner.codecs.wishes import require_known
    from farflung.plans import CodecWishes

    try:
        wishes = CodecWishes(text)
        require_known(wishes, [], wishes.codebook)
    except FarflungError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def picture_file(text: str) -> Path:
    """A file that a picture can be written to."""
    from farflung.pictures.figure import check_picture

    path = Path(text)
    try:
        check_picture(path)
    except FarflungError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def folder_path(text: str) -> Path:
    """A folder, which need not exist yet."""
    path = Path(text)
    above = next((one for one in (path, *path.absolute().parents) if one.exists()), path)
    if not above.is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder, but {above} is a file")
    return path


def folder_that_exists(text: str) -> Path:
    """A folder that is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text[:200]}")
    return path


def file_that_exists(text: str) -> Path:
    """A file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text[:200]}")
    return path


def file_to_write(text: str) -> Path:
    """A file in a folder that is there; it may exist."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, found {text[:200]}")
    return path
