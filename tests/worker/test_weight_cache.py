"""Base weights on a worker's disk: only intact ones are read, and never too many are kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.worker.weights.cache import WeightCache

WEIGHTS = bytes(range(256)) * 8
SHA256 = hashlib.sha256(WEIGHTS).digest()


def cache(folder: Path, limit_bytes: int | None = 10**6, copied_bytes: int = 0) -> WeightCache:
    return WeightCache(folder, limit_bytes, lambda: copied_bytes)


def memory_of(size: int = len(WEIGHTS)) -> memoryview:
    return memoryview(bytearray(size))


def keep(target: WeightCache, content: bytes) -> bool:
    return target.keep(hashlib.sha256(content).digest(), memoryview(content))


def test_what_was_kept_is_read_by_a_later_process(tmp_path: Path) -> None:
    assert not cache(tmp_path).read(SHA256, memory_of())
    assert keep(cache(tmp_path), WEIGHTS)
    (tmp_path / "weights" / "ab.new").write_bytes(b"unfinished")
    memory = memory_of()
    assert cache(tmp_path).read(SHA256, memory)
    assert memory == WEIGHTS
    (file,) = (tmp_path / "weights").iterdir()
    assert file.name == SHA256.hex()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"0", lambda b: b"\xff" + b[1:]])
def test_a_damaged_file_is_deleted_and_counts_as_missing(tmp_path: Path, damage: object) -> None:
    target = cache(tmp_path)
    keep(target, WEIGHTS)
    file = tmp_path / "weights" / SHA256.hex()
    file.write_bytes(damage(WEIGHTS))  # type: ignore[operator]
    assert not target.read(SHA256, memory_of())
    assert not file.exists()
    assert keep(target, WEIGHTS) and target.read(SHA256, memory_of())


def test_bytes_of_another_digest_are_not_kept(tmp_path: Path) -> None:
    target = cache(tmp_path)
    assert not target.keep(SHA256, memoryview(b"other"))
    assert target.taken_bytes == 0


def test_the_least_recently_used_tensor_makes_room(tmp_path: Path) -> None:
    target = cache(tmp_path, limit_bytes=3000)
    contents = [bytes([n]) * 1000 for n in range(4)]
    for at, content in enumerate(contents[:3]):
        assert keep(target, content)
        path = tmp_path / "weights" / hashlib.sha256(content).hexdigest()
        os.utime(path, (at + 1, at + 1))
    target = cache(tmp_path, limit_bytes=3000)  # another process: the order comes from the disk
    assert target.read(hashlib.sha256(contents[0]).digest(), memory_of(1000))
    assert keep(target, contents[3])
    there = [target.read(hashlib.sha256(content).digest(), memory_of(1000)) for content in contents]
    assert there == [True, False, True, True]


def test_copies_of_a_jobs_state_go_first(tmp_path: Path) -> None:
    keep(cache(tmp_path, limit_bytes=5000), WEIGHTS)
    assert not keep(cache(tmp_path, limit_bytes=5000, copied_bytes=4000), WEIGHTS[1:])
    cache(tmp_path, limit_bytes=5000, copied_bytes=2000).shrink()
    assert cache(tmp_path).taken_bytes == len(WEIGHTS)
    cache(tmp_path, limit_bytes=5000, copied_bytes=4000).shrink()
    assert cache(tmp_path).taken_bytes == 0


def test_without_a_limit_a_fifth_of_what_is_free_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=5 * len(WEIGHTS) - 5)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    assert not keep(cache(tmp_path, limit_bytes=None), WEIGHTS)
    assert keep(cache(tmp_path, limit_bytes=None), WEIGHTS[1:])


def test_a_disk_that_refuses_costs_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = cache(tmp_path)
    (tmp_path / "weights").write_text("a file where the folder belongs")
    assert not keep(target, WEIGHTS) and not keep(target, WEIGHTS[1:])
    assert len([r for r in caplog.records if "base weights cannot be kept" in r.message]) == 1


def test_the_order_of_use_is_known_without_the_disk(tmp_path: Path) -> None:
    target = cache(tmp_path, limit_bytes=3000)
    contents = [bytes([n]) * 1000 for n in range(5)]
    digests = [hashlib.sha256(content).digest() for content in contents]
    for content in contents[:3]:
        assert keep(target, content)
    for path in (tmp_path / "weights").iterdir():
        os.utime(path, (1, 1))
    assert target.read(digests[0], memory_of(1000))
    assert keep(target, contents[3]) and keep(target, contents[4])
    there = [target.read(digest, memory_of(1000)) for digest in digests]
    assert there == [True, False, False, True, True]


def test_many_tensors_are_kept_without_reading_the_folder_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = 0
    listed: list[str] = []
    real = Path.glob

    def copied_bytes() -> int:
        nonlocal measured
        measured += 1
        return 0

    def glob(path: Path, pattern: str) -> object:
        listed.append(pattern)
        return real(path, pattern)

    monkeypatch.setattr(Path, "glob", glob)
    target = WeightCache(tmp_path, 10**6, copied_bytes)
    listed.clear()
    assert all(keep(target, bytes([n]) * 10) for n in range(20))
    assert (measured, listed) == (1, ["*"])
    target.shrink()
    assert (measured, listed) == (2, ["*"])
    assert target.taken_bytes == 200


@pytest.mark.parametrize("limit_bytes", [None, 10**6])
def test_a_disk_that_cannot_be_measured_costs_nothing_and_is_logged_once(
    limit_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", fails)
    target = WeightCache(tmp_path, limit_bytes, (lambda: 0) if limit_bytes is None else fails)
    assert not keep(target, WEIGHTS)
    target.shrink()
    (record,) = caplog.records
    assert record.getMessage() == f"base weights cannot be kept in {tmp_path}/weights: Input/output error"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 60), st.integers(0, 60))
def test_it_never_takes_more_than_its_owner_gives(sizes: list[int], limit: int, copied: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = cache(Path(folder), limit, copied)
        for number, size in enumerate(sizes):
            content = bytes([number]) * size
            is_kept = keep(target, content)
            assert is_kept == (size <= max(0, limit - copied))
            assert target.taken_bytes <= max(0, limit - copied)
            if is_kept:
                assert target.read(hashlib.sha256(content).digest(), memory_of(size))
