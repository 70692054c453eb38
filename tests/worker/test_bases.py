"""What training does not change of a share is on a disk once, and each version's copy names it."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tests.worker.running_thread import eventually
from tests.worker.test_copy_store import read
from tests.worker.test_replay import fleet

from farflung.errors import CopyError
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.state import StateKey
from farflung.worker.computing.outcomes import StateCopied
from farflung.worker.storing.copy_format import MOST_HEADER_BYTES, Base, Piece, Pieces, copy_header
from farflung.worker.storing.copy_store import CopyStore

JOB, SHARE = "job-1", 3
FIRST, NEXT = StateVersion(2, 7), StateVersion(2, 8)
FIXED: Pieces = {Piece(3, StateKey("embedding")): memoryview(bytes(range(256)) * 40)}
CHANGING: Pieces = {Piece(3, StateKey("adapter")): memoryview(b"12345678")}


def written(folder: Path, *versions: StateVersion, limit: int = 10**6) -> tuple[CopyStore, list[HeldCopy]]:
    """A store with copies of these versions, which have their base in common."""
    folder.mkdir(exist_ok=True)
    store = CopyStore(folder, limit)
    base = store.write_base(JOB, SHARE, FIXED)
    return store, [store.write(JOB, version, SHARE, CHANGING, base) for version in versions]


def base_path(store: CopyStore, copy: HeldCopy) -> Path:
    return store.path_of_base(JOB, SHARE, Base(copy.base, copy.base_bytes))


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_a_second_version_is_without_what_training_does_not_change(tmp_path: Path) -> None:
    store, copies = written(tmp_path, FIRST, NEXT)
    inode = base_path(store, copies[0]).stat().st_ino
    assert store.write_base(JOB, SHARE, FIXED) == (copies[0].base, copies[0].base_bytes)
    assert base_path(store, copies[1]).stat().st_ino == inode  # it was not written again
    for copy in copies:
        assert copy.bytes < 1000 < 256 * 40 < copy.base_bytes
        assert read(store, copy) == {piece: bytes(data) for piece, data in {**CHANGING, **FIXED}.items()}
    assert CopyStore(tmp_path, 10**6).held() == copies  # another process finds them with their base
    with safe_open(store.path_of(copies[1]), framework="numpy") as file:
        assert file.metadata()["base"] == copies[1].base.hex() and list(file.keys()) == ["3/adapter/"]


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), fixed=st.sets(st.integers(0, 5), max_size=6)
)
def test_what_is_read_is_what_was_written_however_a_share_is_divided(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], fixed: set[int]
) -> None:
    pieces = {Piece(n, StateKey(f"p{n}")): memoryview(bytes([n]) * size) for n, size in enumerate(sizes)}
    rest = {piece: data for piece, data in pieces.items() if piece.segment in fixed}
    store = CopyStore(tmp_path_factory.mktemp("disk"), 10**6)
    base = store.write_base(JOB, SHARE, rest) if rest else None
    changing = {piece: data for piece, data in pieces.items() if piece not in rest}
    copy = store.write(JOB, FIRST, SHARE, changing, base)
    assert read(store, copy) == {piece: bytes(data) for piece, data in pieces.items()}
    assert store.find(JOB, FIRST, SHARE) == copy


@pytest.mark.parametrize("at", [0, 9, 500, -1])
def test_a_flipped_bit_in_a_base_is_found_and_the_base_is_deleted(tmp_path: Path, at: int) -> None:
    store, (copy,) = written(tmp_path, FIRST)
    flip(base_path(store, copy), at)
    with pytest.raises(CopyError):
        read(store, copy)
    with pytest.raises(CopyError, match="damaged"):
        store.read_fitting(copy, lambda piece, size: None)
    assert not base_path(store, copy).exists() and store.held() == []


def test_another_process_does_not_rely_on_a_base_that_it_has_not_verified(tmp_path: Path) -> None:
    store, (copy,) = written(tmp_path, FIRST)
    flip(base_path(store, copy))
    again = CopyStore(tmp_path, 10**6)
    assert not again.has_base(JOB, SHARE, Base(copy.base, copy.base_bytes))
    with pytest.raises(CopyError, match="no longer on the disk"):
        again.write(JOB, NEXT, SHARE, CHANGING, Base(copy.base, copy.base_bytes))
    again.write_base(JOB, SHARE, FIXED)
    assert read(again, copy)


def test_a_copy_whose_base_is_gone_or_cut_off_does_not_count(tmp_path: Path) -> None:
    store, (copy,) = written(tmp_path, FIRST)
    path = base_path(store, copy)
    path.write_bytes(path.read_bytes()[:-1])
    assert store.held() == []
    path.unlink()
    assert store.held() == []
    for look in (lambda: store.find(JOB, FIRST, SHARE), lambda: store.verify(copy)):
        with pytest.raises(CopyError):
            look()


def test_a_base_stays_while_a_copy_names_it_or_more_copies_are_to_come(tmp_path: Path) -> None:
    store, (first, _) = written(tmp_path, FIRST, NEXT)
    store.retain(JOB, [NEXT], NEXT)
    assert base_path(store, first).exists()
    store.retain(JOB, [], NEXT, shares={SHARE})
    assert store.held() == [] and base_path(store, first).exists()
    store.retain(JOB, [], NEXT, shares={SHARE + 1})
    assert not (tmp_path / "copies" / JOB).exists()


def test_of_a_share_that_has_another_base_by_now_the_one_before_is_deleted(tmp_path: Path) -> None:
    store = CopyStore(tmp_path, 10**6)

    def used(size: int, at: int) -> tuple[Base, Path]:
        base = store.write_base(JOB, SHARE, {Piece(3, StateKey("embedding")): memoryview(bytes(size))})
        path = store.path_of_base(JOB, SHARE, base)
        os.utime(path, ns=(at, at))
        return base, path

    (first, first_path), (_, second_path) = used(5, 1), used(6, 2)
    copy = store.write(JOB, FIRST, SHARE, CHANGING, first)  # the worker has its earlier share again
    store.retain(JOB, [], NEXT, shares={SHARE})
    assert first_path.exists() and not second_path.exists() and not store.path_of(copy).exists()
    (_, third_path), _ = used(7, 2**62), used(6, 3)
    store.retain(JOB, [], NEXT, shares={SHARE})
    assert third_path.exists() and not first_path.exists() and not second_path.exists()


def test_the_limit_counts_a_base_once(tmp_path: Path) -> None:
    _, (copy,) = written(tmp_path / "first", FIRST)
    room = copy.base_bytes + 2 * copy.bytes
    store, copies = written(tmp_path / "exact", FIRST, NEXT, limit=room)
    assert len(copies) == 2
    with pytest.raises(CopyError, match="farflung join --disk"):
        store.write(JOB, StateVersion(2, 9), SHARE, CHANGING, Base(copy.base, copy.base_bytes))


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.replace(b'"base":"0', b'"base":"/'),
        lambda header: header.replace(b'"base_bytes":"5"', b'"base_bytes":"x"'),
        lambda header: header.replace(b'"base_bytes"', b'"base_bytez"'),
        lambda header: header.replace(b'"base_bytes":"5"', b'"base_bytes":-15'),
    ],
)
def test_a_copy_that_names_a_base_as_no_worker_does_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    header = copy_header(JOB, FIRST, SHARE, {}, Base(bytes(32), 5))
    data = change(header)
    assert data != header and len(data) == len(header)
    with pytest.raises(CopyError, match="its header is damaged"):
        arrive(CopyStore(tmp_path, 10**6), data)


def arrive(store: CopyStore, data: bytes) -> HeldCopy:
    """A copy that comes from another worker is verified and put on disk."""
    copy = HeldCopy(JOB, FIRST, SHARE, hashlib.sha256(data).digest(), len(data))
    arriving = store.receive(copy)
    try:
        arriving.write(0, memoryview(data))
        arriving.verify()
        arriving.finish()
    finally:
        arriving.close()
    return copy


def file_with(text: bytes) -> bytes:
    """A file with this header and nothing else."""
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "text",
    [
        b'{"3/x/":{"data_offsets":[0,1e999]}}',
        b'{"3/x/":{"data_offsets":[0,%s]}}' % (b"9" * 5000),
        b'{"3/x/":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":{"data_offsets":[0,0]}}',
        b'{"3/x/":{}}',
        b'{"3/x/":{"data_offsets":[0,5]},"3/y/":{"data_offsets":[4,5]}}',
        b'{"3/\xff/":{"data_offsets":[0,0]}}',
        b"[]",
        b"",
    ],
    ids=range(9),
)
def test_a_hostile_header_is_a_copy_that_cannot_be_used(tmp_path: Path, text: bytes) -> None:
    store, data = CopyStore(tmp_path, 10**6), file_with(text)
    copy = HeldCopy(JOB, FIRST, SHARE, hashlib.sha256(data).digest(), len(data))
    with suppress(CopyError):
        arrive(store, data)  # a holder does not look at all of it
    with pytest.raises(CopyError):
        store.read(copy, lambda piece, size: None)


def test_a_header_is_not_longer_than_its_file_nor_than_the_limit(tmp_path: Path) -> None:
    store = CopyStore(tmp_path, 10**6)
    for length in (10, MOST_HEADER_BYTES + 1, 2**63):
        with pytest.raises(CopyError):
            arrive(store, length.to_bytes(8, "little") + b"{}")
    pieces = {Piece(3, StateKey("x" * (MOST_HEADER_BYTES // 4) + str(n))): memoryview(b"") for n in range(4)}
    with pytest.raises(CopyError, match="4 tensors of the share are more than a copy can name"):
        store.write(JOB, FIRST, SHARE, pieces)


@pytest.mark.parametrize("where", [b'"3/x/"', b'"__metadata__"'])
def test_a_holder_takes_no_memory_for_what_a_header_is_full_of(tmp_path: Path, where: bytes) -> None:
    data = file_with(b"{" + where + b":{" + b'"x":[' + b"{}," * 300_000 + b"{}]}}")
    store = CopyStore(tmp_path, 10**7)
    tracemalloc.start()
    arrive(store, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(data)


def test_frozen_weights_come_along_only_when_they_are_asked_for() -> None:
    with fleet("frozen", AdamW(0.01)) as one:
        one.run(0)
        for name, member in one.members.items():
            member.thread.copy_state(member.attempt, 0, keep=True, copy=True)
            member.thread.copy_state(member.attempt, 0, keep=False, copy=True, with_base=True)

            def copied(thread=member) -> list[StateCopied]:
                return [found for found in list(thread.said) if isinstance(found, StateCopied)]

            eventually(lambda found=copied: len(found()) == 2)
            without, with_base = copied()
            assert without.base is None and with_base.base is not None
            trained = {name for program in one.load.programs for name in program.trained}
            assert {piece.key.name for piece in without.pieces} <= trained
            assert without.pieces.keys() == with_base.pieces.keys()
            segments = one.load.plan.segments_of(name)
            owned = {name for part in one.load.programs if part.segment in segments for name in part.owned}
            assert {piece.key.name for piece in with_base.base} == owned - trained
        assert any(found.base for member in one.members.values() for found in member.all_of(StateCopied, 2))
