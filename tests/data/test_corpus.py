from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import pytest

from farflung.data.text import BLOCK_BYTES, file_corpus, library
from farflung.errors import JobError


def test_the_library_is_over_eight_megabytes_of_python_and_a_part_is_kept_for_validation() -> None:
    corpus = library()
    assert corpus.byte_count > 8_000_000
    assert 0.01 < len(corpus.validation) / corpus.byte_count < 0.10
    assert b"def __init__(self" in corpus.train.tobytes()
    assert b"def " in corpus.validation.tobytes()


def test_tests_and_installed_packages_stay_out_of_the_library() -> None:
    everything = library().train.tobytes() + library().validation.tobytes()
    root = Path(sysconfig.get_path("stdlib"))
    for folder in ("test", "site-packages", "encodings", "pydoc_data"):
        for source in sorted((root / folder).rglob("*.py"))[:20]:
            content = source.read_bytes()
            assert len(content) < 200 or content not in everything, source


def test_a_source_stands_whole_on_one_side_of_the_split() -> None:
    corpus = library()
    source = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_bytes()
    sides = [source in part.tobytes() for part in (corpus.train, corpus.validation)]
    assert sorted(sides) == [False, True]


def test_reading_the_library_again_gives_the_same_bytes() -> None:
    first = library()
    library.cache_clear()
    again = library()
    assert again.sha256 == first.sha256
    assert again.train.tobytes() == first.train.tobytes()


def test_a_file_is_split_in_blocks_without_losing_a_byte(tmp_path: Path) -> None:
    blocks = [bytes([65 + index]) * BLOCK_BYTES for index in range(40)]
    content = b"".join(blocks) + b"the end"
    file = tmp_path / "book.txt"
    file.write_bytes(content)
    corpus = file_corpus(file)
    assert corpus.name == "book.txt"
    assert corpus.sha256 == hashlib.sha256(content).hexdigest()
    assert corpus.byte_count == len(content)
    train, validation = corpus.train.tobytes(), corpus.validation.tobytes()
    assert sorted(train + validation) == sorted(content)
    assert len(validation) <= 2 * BLOCK_BYTES
    assert sum(block in validation for block in blocks) + validation.endswith(b"the end") == 2


def test_the_smallest_file_still_has_both_parts(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_bytes(b"a" * (BLOCK_BYTES + 300))
    corpus = file_corpus(file)
    assert sorted((len(corpus.train), len(corpus.validation))) == [300, BLOCK_BYTES]


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "draft.txt"
    file.write_bytes(b"a" * 3 * BLOCK_BYTES)
    before = file_corpus(file).sha256
    file.write_bytes(b"b" * 4 * BLOCK_BYTES)
    assert file_corpus(file).sha256 != before


@pytest.mark.parametrize("content", [b"", b"a few words"])
def test_a_file_without_room_for_two_parts_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tiny.txt"
    file.write_bytes(content)
    with pytest.raises(JobError, match=rf"tiny\.txt has {len(content)} bytes.*more than 4096"):
        file_corpus(file)


def test_a_missing_file_and_a_folder_are_refused_in_one_line(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.txt", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(JobError, match=f"cannot be read: {reason}") as caught:
            file_corpus(path)
        assert "\n" not in str(caught.value)
