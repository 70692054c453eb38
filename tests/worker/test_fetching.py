"""A worker fetches what it can; what it cannot, whatever the reason, it says that it lacks."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.web import answering

from farflung.protocol.sessions import BasePiece, StoredAt
from farflung.quantization import BLOCKS, FORMATS, quantize, quantized_bytes
from farflung.weights.allowed import Allowed
from farflung.weights.ranges import FileRanges
from farflung.worker.weights import fetching as module
from farflung.worker.weights.fetching import Fetching, Wanted

CONTENT = bytes(range(64))


def wanted(
    name: str, start: int, size: int, file: int = 0, widened: str = "", content: bytes = CONTENT
) -> Wanted:
    digest = hashlib.sha256(content[start : start + size]).digest()
    at = StoredAt(file, start, widened)  # type: ignore[arg-type]
    return Wanted(BasePiece(1, name, digest, at), at, memoryview(bytearray(size)))


def fetched(files: list[str], pieces: list[Wanted], allowed: list[str]) -> tuple[list[str], list[str]]:
    """The names of the pieces that did not come, and the troubles; those that came are whole."""
    whole: list[str] = []

    def on_fetched(one: Wanted) -> None:
        assert hashlib.sha256(one.memory).digest() == one.piece.sha256
        whole.append(one.piece.name)

    fetching = Fetching(Allowed.parse(allowed), files, on_fetched)
    lacking = [one.piece.name for one in fetching.fetch(pieces)]
    assert sorted(whole + lacking) == sorted(one.piece.name for one in pieces)
    return lacking, fetching.troubles


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a").write_bytes(CONTENT)
    return [f"file://{tmp_path}/a", f"file://{tmp_path}/missing"]


def test_what_is_missing_in_one_file_does_not_keep_others_back(files: list[str], tmp_path: Path) -> None:
    pieces = [wanted("b", 0, 4, file=1), wanted("a", 0, 4), wanted("c", 60, 8)]
    lacking, troubles = fetched(files, pieces, [f"file://{tmp_path}"])
    assert lacking == ["b", "c"]
    assert [trouble.rpartition("/")[2] for trouble in troubles] == [
        "a is too short",
        "missing cannot be read: No such file or directory",
    ]


def test_a_size_that_is_none_of_float32_costs_only_that_piece(files: list[str], tmp_path: Path) -> None:
    pieces = [wanted("before", 0, 2), wanted("odd", 2, 6, widened="float16"), wanted("after", 5, 9)]
    lacking, troubles = fetched(files, pieces, [f"file://{tmp_path}"])
    assert lacking == ["odd"]
    assert troubles == ["'odd' has 6 bytes, which are no float32 values"]


BLOCK = max(BLOCKS.values())
VALUES = np.random.default_rng(3).standard_normal(4 * BLOCK).astype(np.float32)


def quantized(name: str, values: NDArray[np.float32], file: int, kind: str, form: str) -> Wanted:
    """A piece that is stored as floats of a type and held as codes and scales."""
    packed = np.empty(quantized_bytes(values.size, form), np.uint8)
    quantize(values, form, packed)
    at = StoredAt(file, 8, "" if kind == "float32" else kind, form)  # type: ignore[arg-type]
    piece = BasePiece(1, name, hashlib.sha256(packed.tobytes()).digest(), at)
    return Wanted(piece, at, memoryview(bytearray(packed.size)))


@pytest.mark.parametrize("form", FORMATS)
def test_floats_are_quantized_as_they_come(tmp_path: Path, form: str) -> None:
    """The last piece is of other values than the job says, so it counts as missing."""
    halves = VALUES.astype(np.float16)
    words = (VALUES.view(np.uint32) >> 16).astype("<u2")
    stored = {"float32": VALUES, "float16": halves, "bfloat16": words}
    exact = {
        "float32": VALUES,
        "float16": halves.astype(np.float32),
        "bfloat16": (words.astype(np.uint32) << 16).view(np.float32),
    }
    urls = []
    for kind, values in stored.items():
        (tmp_path / kind).write_bytes(bytes(8) + values.tobytes())
        urls.append(f"file://{tmp_path}/{kind}")
    pieces = [quantized(kind, exact[kind], at, kind, form) for at, kind in enumerate(stored)]
    pieces.append(quantized("other", -VALUES, 0, "float32", form))
    lacking, troubles = fetched(urls, pieces, [f"file://{tmp_path}"])
    assert lacking == ["other"]
    assert len(troubles) == 1 and "'other' is not what the job says" in troubles[0]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The sizes of the buffers of each read."""
    found: list[list[int]] = []
    whole = FileRanges.read

    def read(self: FileRanges, offset: int, buffers: Sequence[memoryview]) -> None:
        found.append([len(buffer) for buffer in buffers])
        whole(self, offset, buffers)

    monkeypatch.setattr(FileRanges, "read", read)
    return found


def test_neighbours_that_are_to_be_quantized_are_read_one_by_one(
    tmp_path: Path, reads: list[list[int]]
) -> None:
    """What follows them and is kept as it is does not come with the last of them, but with its like."""
    content = bytes(8) + VALUES.tobytes()
    (tmp_path / "a").write_bytes(content)
    size = VALUES.nbytes // 4
    pieces = []
    for at, values in enumerate(VALUES.reshape(4, BLOCK)):
        start = 8 + at * size
        one = quantized(f"row {at}", values, 0, "float32", "nf4")
        if at >= 2:
            one = wanted(f"row {at}", start, size, content=content)
        pieces.append(one._replace(at=StoredAt(0, start, "", one.at.quantized)))
    assert fetched([f"file://{tmp_path}/a"], pieces, [f"file://{tmp_path}"]) == ([], [])
    assert reads == [[size], [size], [size, size]]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_what_is_to_be_quantized_takes_little_memory_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[list[int]], form: str, kind: str
) -> None:
    """It is read in parts, the last of which is shorter."""
    monkeypatch.setattr(module, "QUANTIZED_AT_ONCE", 3 * BLOCK)
    stored = VALUES.astype(kind)
    (tmp_path / "a").write_bytes(bytes(8) + stored.tobytes())
    one = quantized("a", stored.astype(np.float32), 0, kind, form)
    assert fetched([f"file://{tmp_path}/a"], [one], [f"file://{tmp_path}"]) == ([], [])
    assert reads == [[3 * BLOCK * stored.itemsize], [BLOCK * stored.itemsize]]


def test_what_cannot_be_quantized_costs_only_that_piece(tmp_path: Path) -> None:
    values = VALUES.copy()
    values[-1] = np.nan
    (tmp_path / "a").write_bytes(bytes(8) + values.tobytes())
    first = quantized("first", VALUES[:BLOCK], 0, "float32", "nf4")
    broken = quantized("broken", VALUES, 0, "float32", "nf4")
    odd = Wanted(broken.piece, broken.at, memoryview(bytearray(35)))
    lacking, troubles = fetched([f"file://{tmp_path}/a"], [first, broken], [f"file://{tmp_path}"])
    assert lacking == ["broken"]
    assert troubles[0].startswith("'broken' cannot be quantized: it has values that are infinite or not")
    lacking, troubles = fetched([f"file://{tmp_path}/a"], [odd], [f"file://{tmp_path}"])
    assert (lacking, troubles) == (["broken"], ["'broken' has 35 bytes, which are no blocks of nf4"])


def test_a_zero_byte_in_the_url_of_a_file_is_refused(files: list[str], tmp_path: Path) -> None:
    pieces = [wanted("a", 0, 2), wanted("b", 2, 2, file=1)]
    lacking, troubles = fetched([f"file://{tmp_path}/a%00b", files[0]], pieces, [f"file://{tmp_path}"])
    assert lacking == ["a"]
    assert troubles == [f"file://{tmp_path}/a%00b is no URL such as https://example.org/model/"]


def test_whatever_fails_is_one_line_and_the_next_file_is_fetched(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.open_ranges

    def broken(url: str, *rest: object) -> object:
        if url.startswith("https"):
            raise RuntimeError("first\nsecond")
        return real(url, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "open_ranges", broken)
    pieces = [wanted("a", 0, 2), wanted("b", 2, 2, file=1)]
    lacking, troubles = fetched(
        ["https://example.org/a?key=secret", files[0]], pieces, [f"file://{tmp_path}"]
    )
    assert lacking == ["a"]
    assert troubles == ["https://example.org/a cannot be read: first"]


def test_a_server_that_is_silent_does_not_outlast_its_job() -> None:
    asked = threading.Event()
    pieces = [wanted("a", 0, 4)]

    def answer(connection: socket.socket, request: bytes) -> None:
        asked.set()
        connection.recv(1)  # until the worker has gone

    with answering(answer) as url:
        fetching = Fetching(Allowed.parse([url]), [f"{url}/a"], lambda one: None)
        lacking: list[Wanted] = []
        thread = threading.Thread(target=lambda: lacking.extend(fetching.fetch(pieces)), daemon=True)
        thread.start()
        assert asked.wait(60)
        fetching.stop()
        thread.join(20)  # less than what silence is given
        assert not thread.is_alive()
        assert [one.piece.name for one in lacking] == ["a"]
