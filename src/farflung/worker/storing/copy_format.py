"""How a share lies in files: safetensors whose tensors are flat bytes, named SEGMENT/NAME/SLOT.

What training changes is in one file, which also names the share's *base*: the file of all that stays, by the
digest of that file. A base says nothing of job, version or share, so equal ones have equal digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import IO, NamedTuple

from farflung.errors import CopyError
from farflung.protocol.copies import StateVersion
from farflung.protocol.fields import MOST_COUNT
from farflung.runtime.state import StateKey

MOST_HEADER_BYTES = 2**26
"""Largest header of a file that is read."""

_CHUNK_BYTES = 2**22
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COUNT = re.compile(r"[0-9]{1,16}")


class Piece(NamedTuple):
    """Names one piece of a share's state."""

    segment: int
    key: StateKey


Pieces = Mapping[Piece, memoryview]
Place = Callable[[Piece, int], memoryview | None]
"""The memory for a piece of so many bytes, None if it is not wanted, or CopyError if it is not expected."""


class Base(NamedTuple):
    """Names the file of what training does not change of a share: its digest, and how many bytes it has."""

    sha256: bytes
    bytes: int


@dataclass(frozen=True)
class Header:
    """The pieces of a file with their sizes, in their order, and the base that it names."""

    pieces: list[tuple[Piece, int]]
    base: Base | None = None


@dataclass(frozen=True)
class _Entry:
    piece: Piece
    start: int
    stop: int


def copy_header(job: str, version: StateVersion, share: int, pieces: Pieces, base: Base | None) -> bytes:
    """The header of a version's file of one share."""
    about = {"job": job, "attempt": version.attempt, "unit": version.unit, "share": share}
    if base is not None:
        about |= {"base": base.sha256.hex(), "base_bytes": base.bytes}
    return _header({"__metadata__": {name: str(value) for name, value in about.items()}}, pieces)


def base_header(pieces: Pieces) -> bytes:
    """The header of a base."""
    return _header({}, pieces)


def _header(header: dict[str, object], pieces: Pieces) -> bytes:
    """The header of a safetensors file: its length, then JSON that pads the data to 8 bytes."""
    at = 0
    for piece, buffer in pieces.items():
        name = f"{piece.segment}/{piece.key.name}/{piece.key.slot}"
        stop = at + len(buffer)
        header[name] = {"dtype": "U8", "shape": [len(buffer)], "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_header(file: IO[bytes], digest: hashlib._Hash | None = None) -> Header:
    """Read the header of a file, and add its bytes to `digest`.

    Raises
    ------
    CopyError
        The header is damaged.
    """
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if length > MOST_HEADER_BYTES:
        raise CopyError("the file does not begin with a header")
    text = file.read(length)
    if digest is not None:
        digest.update(first + text)
    try:
        found = json.loads(text)
        base = _base(found.pop("__metadata__", {}))
        entries = sorted(
            (_entry(name, value) for name, value in found.items()), key=lambda one: (one.start, one.stop)
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CopyError("its header is damaged") from None
    at = 0
    for entry in entries:
        if entry.start != at or entry.stop < at:
            raise CopyError("its header is damaged")
        at = entry.stop
    return Header([(entry.piece, entry.stop - entry.start) for entry in entries], base)


def read_file(file: BufferedReader, place: Place) -> tuple[Header, bytes]:
    """Read a whole file, each piece into the memory that `place` gives; returns its header and SHA-256.

    Raises
    ------
    CopyError
        The file is damaged, or `place` does not expect a piece.
    """
    digest = hashlib.sha256()
    header = read_header(file, digest)
    for piece, size in header.pieces:
        _read_piece(file, digest, place(piece, size), size)
    if file.read(1):
        raise CopyError("the file is too long")
    return header, digest.digest()


def _read_piece(file: BufferedReader, digest: hashlib._Hash, buffer: memoryview | None, size: int) -> None:
    """Read the next bytes of a file into `buffer`, or pass over them."""
    left = size
    while buffer is None and left:
        passed = file.read(min(left, _CHUNK_BYTES))
        if not passed:
            raise CopyError("the file is too short")
        digest.update(passed)
        left -= len(passed)
    if buffer is not None:
        if file.readinto(buffer) != size:
            raise CopyError("the file is too short")
        digest.update(buffer)


def _base(about: dict[str, str]) -> Base | None:
    if "base" not in about:
        return None
    sha256, size = about["base"], about["base_bytes"]
    if not (_SHA256.fullmatch(sha256) and _COUNT.fullmatch(size) and int(size) <= MOST_COUNT):
        raise ValueError
    return Base(bytes.fromhex(sha256), int(size))


def _entry(name: str, value: dict[str, list[int]]) -> _Entry:
    segment, rest = name.split("/", 1)
    tensor, slot = rest.rsplit("/", 1)
    start, stop = map(int, value["data_offsets"])
    return _Entry(Piece(int(segment), StateKey(tensor, slot)), start, stop)
