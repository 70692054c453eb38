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
from typing import IO, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from farflung.errors import CopyError, CopyUnfit
from farflung.protocol.copies import StateVersion
from farflung.protocol.fields import MOST_COUNT
from farflung.runtime.state import StateKey

MOST_HEADER_BYTES = 2**23
"""Largest header of a file: it has room for 60,000 pieces. A hostile one takes 15 times its size."""

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


class _About(msgspec.Struct, frozen=True):
    """What a copy says of itself beside its pieces, as far as it is read."""

    base: str = ""
    base_bytes: str = ""


class _Copy(msgspec.Struct, rename={"about": "__metadata__"}):
    """The header of a file without its pieces."""

    about: _About = _About()


_At = Annotated[int, Meta(ge=0, le=MOST_COUNT)]


class _Entry(msgspec.Struct):
    """Where a piece is; nowhere, if it is what the file says of itself."""

    data_offsets: tuple[_At, _At] | None = None


_DAMAGES = (msgspec.MsgspecError, RecursionError, ValueError)
"""What goes wrong in a header that no worker writes."""


def copy_header(job: str, version: StateVersion, share: int, pieces: Pieces, base: Base | None) -> bytes:
    """The header of a version's file of one share."""
    about = {"job": job, "attempt": version.attempt, "unit": version.unit, "share": share}
    if base is not None:
        about |= {"base": base.sha256.hex(), "base_bytes": base.bytes}
    return _header({"__metadata__": {name: str(value) for name, value in about.items()}}, pieces)


def base_header(pieces: Pieces) -> bytes:
    """The header of a base."""
    return _header({}, pieces)


def copy_digest(job: str, version: StateVersion, share: int, pieces: Pieces, base: Pieces) -> bytes:
    """The SHA-256 of the file that a version of one share would have; `base` are the pieces of its base."""
    named = None
    if base:
        header = base_header(base)
        size = len(header) + sum(map(len, base.values()))
        named = Base(_sha256(header, base), size)
    return _sha256(copy_header(job, version, share, pieces, named), pieces)


def _sha256(header: bytes, pieces: Pieces) -> bytes:
    digest = hashlib.sha256(header)
    for buffer in pieces.values():
        digest.update(buffer)
    return digest.digest()


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
    if len(text) > MOST_HEADER_BYTES:
        raise CopyError(f"the {len(pieces)} tensors of the share are more than a copy can name")
    return len(text).to_bytes(8, "little") + text


def read_base(file: IO[bytes]) -> Base | None:
    """The base that a file names. Nothing is kept of its pieces, so it may be a stranger's.

    Raises
    ------
    CopyError
        The header is damaged.
    """
    return _base(_read_header(file)[8:])


def _read_header(file: IO[bytes]) -> memoryview:
    """The header of a file: its length in 8 bytes, and the JSON."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if length > MOST_HEADER_BYTES:
        raise CopyError("the file does not begin with a header")
    text = file.read(length)
    if len(text) < length:
        raise CopyError("the file is too short")
    return memoryview(first + text)


def _header_of(text: memoryview) -> Header:
    base = _base(text)
    try:
        found = msgspec.json.decode(text, type=dict[str, _Entry])
        found.pop("__metadata__", None)
        placed = sorted((entry.data_offsets or (-1, -1), _piece(name)) for name, entry in found.items())
    except _DAMAGES:
        raise CopyUnfit("its header is damaged") from None
    at = 0
    for (start, stop), _ in placed:
        if start != at or stop < at:
            raise CopyUnfit("its header is damaged")
        at = stop
    return Header([(piece, stop - start) for (start, stop), piece in placed], base)


def read_file(file: BufferedReader, place: Place) -> tuple[Header, bytes]:
    """Read a whole file, each piece into the memory that `place` gives; returns its header and SHA-256.

    Raises
    ------
    CopyUnfit
        The file has other pieces than its header says, or `place` does not expect a piece.
    CopyError
        Its header cannot be read, or `place` has no memory for a piece.
    """
    text = _read_header(file)
    header, digest = _header_of(text[8:]), hashlib.sha256(text)
    for piece, size in header.pieces:
        _read_piece(file, digest, place(piece, size), size)
    if file.read(1):
        raise CopyUnfit("the file is too long")
    return header, digest.digest()


def _read_piece(file: BufferedReader, digest: hashlib._Hash, buffer: memoryview | None, size: int) -> None:
    """Read the next bytes of a file into `buffer`, or pass over them."""
    left = size
    while buffer is None and left:
        passed = file.read(min(left, _CHUNK_BYTES))
        if not passed:
            raise CopyUnfit("the file is too short")
        digest.update(passed)
        left -= len(passed)
    if buffer is not None:
        if file.readinto(buffer) != size:
            raise CopyUnfit("the file is too short")
        digest.update(buffer)


def _base(text: memoryview) -> Base | None:
    """The base that a header names."""
    try:
        about = msgspec.json.decode(text, type=_Copy).about
    except _DAMAGES:
        raise CopyError("its header is damaged") from None
    if not about.base:
        return None
    size = int(about.base_bytes) if _COUNT.fullmatch(about.base_bytes) else MOST_COUNT + 1
    if size > MOST_COUNT or not _SHA256.fullmatch(about.base):
        raise CopyError("its header is damaged")
    return Base(bytes.fromhex(about.base), size)


def _piece(name: str) -> Piece:
    segment, rest = name.split("/", 1)
    tensor, slot = rest.rsplit("/", 1)
    return Piece(int(segment), StateKey(tensor, slot))
