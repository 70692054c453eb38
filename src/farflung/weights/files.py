"""Safetensors files of a model, local or at URLs: which tensors they have, where, and their bytes.

Only headers are read at first; each tensor is read when it is asked for, in pieces.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from farflung.errors import WeightsError
from farflung.quantization import NotFiniteError, QuantizedFormat, quantized_bytes, values_in
from farflung.weights.allowed import ANYTHING, shown
from farflung.weights.quantizing import item_bytes, quantize_stored
from farflung.weights.ranges import FileRanges, Ranges, open_ranges, whole_file
from farflung.weights.widening import Kind, widen

INDEX = "model.safetensors.index.json"
ALONE = "model.safetensors"
MOST_HEADER_BYTES = 2**27
MOST_INDEX_BYTES = 2**26
PIECE_BYTES = 2**24

KINDS = {
    "F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""Element types in safetensors files, and their names here."""

_Count = Annotated[int, Meta(ge=0, le=2**53)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[_Count]
    data_offsets: tuple[_Count, _Count]


class _Index(msgspec.Struct):
    """The index that Hugging Face writes beside a model's shards: tensor name -> file name."""

    weight_map: dict[str, str]


class StoredTensor(NamedTuple):
    """One tensor of a file: its element type as the file says it, and where its bytes are."""

    file: int
    kind: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


class Reading(NamedTuple):
    """How a tensor's stored bytes are converted.

    Values of the type `widened` become float32; empty: they stay as they are. With `quantized` they are
    float32, or of the type `widened`, and become codes and scales of that format.
    """

    widened: Kind | Literal[""] = ""
    quantized: QuantizedFormat | Literal[""] = ""

    @property
    def kind(self) -> str:
        """The element type of stored values that are widened or quantized."""
        return self.widened or "float32"

    def quantized_bytes(self, stored: int) -> int:
        """Bytes of codes and scales that so many stored bytes become."""
        return quantized_bytes(stored // item_bytes(self.kind), self.quantized)

    def stored_bytes(self, held: int) -> int:
        """How many bytes are stored of a tensor that has `held` when it has been read."""
        if self.quantized:
            return values_in(held, self.quantized) * item_bytes(self.kind)
        return held // 2 if self.widened else held


AS_IT_IS = Reading()


class WeightFiles:
    """The tensors in the safetensors file, or the folder with shards, at a path or URL.

    A folder has `model.safetensors.index.json`, `model.safetensors` or, on this machine, any such files. It
    may be that of a model in Hugging Face's cache, whose newest snapshot is taken.

    Raises
    ------
    WeightsError
        A file is missing or damaged, or cannot be read.
    """

    def __init__(self, place: str) -> None:
        self.name = shown(place) if is_url(place) else place
        self._ranges: dict[str, Ranges] = {}
        self._reading = threading.Lock()  # a connection serves one thread at a time
        self.files: list[str] = []
        """Paths or URLs of the files."""
        listed = _names(place)
        for file in sorted({*listed.values()} if listed else _alone(place)):
            self.files.append(file)
        self.tensors: dict[str, StoredTensor] = {}
        for number, file in enumerate(self.files):
            found = _header(file, self._open(file), number)
            self.tensors.update({n: t for n, t in found.items() if listed.get(n, file) == file})
        if lacking := sorted(name for name in listed if name not in self.tensors):
            raise WeightsError(f"{_shown(listed[lacking[0]])} has no {lacking[0]!r}, which {INDEX} names")

    def read(self, name: str, take: Callable[[memoryview], object]) -> None:
        """Pass the bytes of a tensor to `take`, piece by piece; WeightsError if they cannot be read."""
        stored = self.tensors[name]
        buffer = memoryview(bytearray(min(stored.bytes, PIECE_BYTES)))
        for at in range(0, stored.bytes, PIECE_BYTES):
            part = buffer[: min(PIECE_BYTES, stored.bytes - at)]
            with self._reading:
                self._open(self.files[stored.file]).read(stored.offset + at, [part])
            take(part)

    def sha256(self, name: str, how: Reading = AS_IT_IS) -> bytes:
        """The digest of a tensor's bytes once it is read in that way.

        Raises
        ------
        NotFiniteError
            It is to be quantized, and has values that are infinite or not a number.
        WeightsError
            It cannot be read.
        """
        digest = hashlib.sha256()

        def take(part: memoryview) -> None:
            if how.quantized:
                blocks = memoryview(bytearray(how.quantized_bytes(len(part))))
                try:
                    quantize_stored(part, how.kind, how.quantized, blocks)
                except NotFiniteError as error:
                    raise NotFiniteError(f"{self.name}: {name} cannot be quantized: {error}") from None
                part = blocks
            elif how.widened:
                part = widen(part, how.widened)
            digest.update(part)

        self.read(name, take)
        return digest.digest()

    def versions(self) -> tuple[str, ...]:
        """What changes when the files do, one for each; empty where nothing is known that does."""
        return tuple(self._open(file).version() for file in self.files)

    def close(self) -> None:
        """Close connections."""
        for ranges in self._ranges.values():
            ranges.close()

    def _open(self, file: str) -> Ranges:
        if file not in self._ranges:
            self._ranges[file] = open_ranges(file, ANYTHING) if is_url(file) else FileRanges(Path(file))
        return self._ranges[file]


def is_url(place: str) -> bool:
    """Whether a place of weights is a URL, and not a path of this machine."""
    return "://" in place


def widens(kind: str, dtype: str) -> Kind | None:
    """The stored element type, if it is one that becomes `dtype` without any rounding; else None."""
    if dtype != "float32":
        return None
    return {"BF16": "bfloat16", "F16": "float16"}.get(kind)  # type: ignore[return-value]


def _is_file(place: str) -> bool:
    path = place.partition("?")[0] if is_url(place) else place
    return path.endswith(".safetensors")


def _names(place: str) -> dict[str, str]:
    """The tensors that an index lists, each with its file; empty without an index."""
    if _is_file(place):
        return {}
    if is_url(place):
        if urlsplit(place).query:
            raise WeightsError(f"{shown(place)} has a query: only the URL of a file may have one")
        url = f"{place.rstrip('/')}/{INDEX}"
        return _index(url, whole_file(url, MOST_INDEX_BYTES))
    index = _snapshot(Path(place)) / INDEX
    if not index.is_file():
        return {}
    try:
        return _index(str(index), index.read_bytes())
    except OSError as error:
        raise WeightsError(f"{index} cannot be read: {error.strerror}") from None


def _index(where: str, data: bytes) -> dict[str, str]:
    if not data:
        return {}
    try:
        listed = msgspec.json.decode(data, type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightsError(f"{_shown(where)} cannot be read: {error}") from None
    if outside := [file for file in listed.values() if Path(file).name != file or "?" in file]:
        raise WeightsError(f"{_shown(where)} names a file that is not beside it: {outside[0][:80]!r}")
    folder = where.removesuffix(INDEX)
    return {name: f"{folder}{file}" for name, file in listed.items()}


def _alone(place: str) -> Sequence[str]:
    """The files of a place without an index."""
    if _is_file(place) or (not is_url(place) and not Path(place).is_dir()):
        return [place]
    if is_url(place):
        return [f"{place.rstrip('/')}/{ALONE}"]
    found = sorted(str(path) for path in _snapshot(Path(place)).glob("*.safetensors"))
    if not found:
        raise WeightsError(f"expected safetensors files in {place}, found none")
    return found


def _snapshot(folder: Path) -> Path:
    """The newest snapshot, if it is a model's folder in Hugging Face's cache; else the folder itself."""
    named = folder / "refs" / "main"
    if folder.name.startswith("models--") and named.is_file():
        return folder / "snapshots" / named.read_text().strip()
    return folder


def _header(file: str, ranges: Ranges, number: int) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file: its first 8 bytes are the length of a JSON header."""
    first = memoryview(bytearray(8))
    ranges.read(0, [first])
    length = int.from_bytes(first, "little")
    if not 0 < length <= MOST_HEADER_BYTES:
        raise WeightsError(f"{_shown(file)} cannot be read: it is no safetensors file")
    text = memoryview(bytearray(length))
    ranges.read(8, [text])
    try:
        found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        found.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in found.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise WeightsError(f"{_shown(file)} cannot be read: its header is damaged") from None
    return {name: _stored(file, name, entry, number, 8 + length) for name, entry in entries.items()}


def _stored(file: str, name: str, entry: _Entry, number: int, data: int) -> StoredTensor:
    start, stop = entry.data_offsets
    size = _ITEM_BYTES.get(entry.dtype)
    if stop < start or (size and math.prod(entry.shape) * size != stop - start):
        raise WeightsError(f"{_shown(file)} cannot be read: its header is damaged at {name[:60]!r}")
    return StoredTensor(number, entry.dtype, tuple(entry.shape), data + start, stop - start)


_ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


def _shown(file: str) -> str:
    return shown(file) if is_url(file) else file
