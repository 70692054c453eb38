"""Copies on a worker's disk: whole, verified, private, and within their limit."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from farflung.errors import CopyError
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.runtime.state import StateKey
from farflung.worker.storing.copy_format import Piece
from farflung.worker.storing.copy_store import SHARE_OF_DISK, CopyStore

JOB, VERSION, LATER = "job-1", StateVersion(2, 7), StateVersion(2, 8)
PIECES = {
    Piece(3, StateKey("a/b.weight")): memoryview(bytearray(range(16))),
    Piece(3, StateKey("a/b.weight", "exp_avg")): memoryview(bytearray(16)),
    Piece(4, StateKey("empty")): memoryview(bytearray()),
    Piece(3, StateKey("", "coders")): memoryview(bytearray(b"coders")),
}


def store(folder: Path, limit: int = 10**6) -> CopyStore:
    return CopyStore(folder, limit)


def read(one: CopyStore, copy: HeldCopy) -> dict[Piece, bytes]:
    found: dict[Piece, bytearray] = {}

    def place(piece: Piece, size: int) -> memoryview:
        found[piece] = bytearray(size)
        return memoryview(found[piece])

    one.read(copy, place)
    return {piece: bytes(data) for piece, data in found.items()}


def test_what_is_read_is_what_was_written_and_another_process_finds_it(tmp_path: Path) -> None:
    copy = store(tmp_path).write(JOB, VERSION, 3, PIECES)
    assert store(tmp_path).held() == [copy]
    assert read(store(tmp_path), copy) == {piece: bytes(data) for piece, data in PIECES.items()}


def test_a_copy_is_a_safetensors_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    one = store(tmp_path)
    path = one.path_of(one.write(JOB, VERSION, 3, PIECES))
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"job": JOB, "attempt": "2", "unit": "7", "share": "3"}
        assert file.get_tensor("3/a/b.weight/").tobytes() == bytes(range(16))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (
        stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
    )


@given(order=st.permutations(range(6)))
def test_a_copy_that_arrives_in_slices_is_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, order: list[int]
) -> None:
    mine, other = (store(tmp_path_factory.mktemp("disk")) for _ in range(2))
    copy = mine.write(JOB, VERSION, 3, PIECES)
    arriving, size = other.receive(copy), -(-copy.bytes // 6)
    for at in order:
        arriving.write(at * size, mine.read_slice(mine.path_of(copy), at * size, size))
    assert other.held() == []
    assert arriving.verify() is None
    arriving.finish()
    assert other.held() == [copy]
    assert other.path_of(copy).read_bytes() == mine.path_of(copy).read_bytes()


def test_a_copy_that_was_damaged_on_the_way_does_not_count(tmp_path: Path) -> None:
    copy = HeldCopy(JOB, VERSION, 3, b"\1" * 32, 4)
    arriving = store(tmp_path).receive(copy)
    arriving.write(0, memoryview(b"1234"))
    with pytest.raises(CopyError, match="damaged on the way"):
        arriving.verify()
    arriving.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("at", [0, 9, 200, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, at: int) -> None:
    one = store(tmp_path)
    copy = one.write(JOB, VERSION, 3, PIECES)
    data = bytearray(one.path_of(copy).read_bytes())
    data[at] ^= 4
    one.path_of(copy).write_bytes(data)
    for check in (one.verify, lambda copy: read(one, copy)):
        with pytest.raises(CopyError):
            check(copy)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""])
def test_a_file_of_another_length_is_refused(tmp_path: Path, change) -> None:
    one = store(tmp_path)
    copy = one.write(JOB, VERSION, 3, PIECES)
    one.path_of(copy).write_bytes(change(one.path_of(copy).read_bytes()))
    with pytest.raises(CopyError):
        read(one, copy)


def test_without_a_limit_copies_may_take_a_part_of_what_is_free_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 10_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    one = CopyStore(tmp_path, None)
    copy = one.write(JOB, VERSION, 3, PIECES)
    assert one.limit_bytes == (free + copy.bytes) // SHARE_OF_DISK
    free = 0
    again = CopyStore(tmp_path, None)
    assert again.held() == [copy] and again.limit_bytes > 0  # a worker that starts on a full disk
    with pytest.raises(CopyError, match="may use on this disk"):
        again.write(JOB, LATER, 3, PIECES)
    free = 10_000
    again.write(JOB, LATER, 3, PIECES)


def test_the_limit_holds_for_all_copies_and_what_arrives_together(tmp_path: Path) -> None:
    size = store(tmp_path / ".").write(JOB, VERSION, 3, PIECES).bytes
    one = store(tmp_path, 2 * size)
    arriving = one.receive(HeldCopy(JOB, VERSION, 5, b"\1" * 32, size))
    with pytest.raises(CopyError, match="farflung join --disk"):
        one.write(JOB, StateVersion(2, 8), 3, PIECES)
    arriving.close()
    one.write(JOB, StateVersion(2, 8), 3, PIECES)


def test_only_the_versions_to_keep_stay(tmp_path: Path) -> None:
    one = store(tmp_path)
    copies = [one.write(JOB, StateVersion(1, unit), share, PIECES) for unit in (3, 4, 5) for share in (0, 1)]
    other = one.write("job-2", StateVersion(1, 3), 0, PIECES)
    one.retain(JOB, [StateVersion(1, 3)], StateVersion(1, 4))
    assert one.held() == [*copies[:2], *copies[4:], other]
    one.retain(JOB, [], StateVersion(9, 0))
    assert one.held() == [other] and not (tmp_path / "copies" / JOB).exists()


def test_what_a_killed_process_left_unfinished_is_deleted(tmp_path: Path) -> None:
    arriving = store(tmp_path).receive(HeldCopy(JOB, VERSION, 3, b"\1" * 32, 4))
    arriving.write(0, memoryview(b"12"))
    assert store(tmp_path).held() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_job_whose_name_is_no_folder_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="no folder"):
        store(tmp_path).write("../job", VERSION, 3, PIECES)
