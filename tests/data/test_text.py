from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from farflung import data
from farflung.data.text import BLOCK_BYTES
from farflung.errors import JobError


@pytest.fixture
def book(tmp_path: Path) -> Path:
    file = tmp_path / "book.txt"
    file.write_bytes(bytes(range(256)) * (3 * BLOCK_BYTES // 256))
    return file


def test_an_item_is_a_window_and_the_same_window_one_byte_later(book: Path) -> None:
    dataset = data.text("train", sequence=100, file=book)
    assert len(dataset) == (2 * BLOCK_BYTES - 1) // 100
    item = dataset[2]
    assert item["tokens"].dtype == item["targets"].dtype == torch.int64
    assert item["tokens"].tolist() == [value % 256 for value in range(200, 300)]
    assert item["targets"].tolist() == [value % 256 for value in range(201, 301)]


def test_windows_follow_each_other_and_end(book: Path) -> None:
    dataset = data.text("train", sequence=100, file=book)
    items = list(dataset)  # type: ignore[call-overload]
    assert len(items) == len(dataset)
    assert torch.equal(items[5]["targets"][-1], items[6]["tokens"][0])
    for index in (len(dataset), -1):
        with pytest.raises(IndexError):
            dataset[index]


def test_without_a_file_the_library_is_read_and_described_as_a_whole() -> None:
    train, validation = data.text(), data.text("validation")
    assert train[0]["tokens"].shape == (128,)
    assert train.describe() == validation.describe()
    assert train.describe()["name"] == "python-library"
    assert int(train.describe()["bytes"]) > 128 * (len(train) + len(validation))
    assert len(str(train.describe()["sha256"])) == 64


def test_a_window_longer_than_the_text_is_refused_with_both_numbers(book: Path) -> None:
    with pytest.raises(JobError, match=r"validation part of book\.txt has 4096 bytes.*needs 4097"):
        data.text("validation", sequence=4096, file=book)
    assert len(data.text("validation", sequence=4095, file=book)) == 1


@pytest.mark.parametrize("sequence", [0, -3, 1.5, True, "128"])
def test_a_sequence_that_is_no_positive_number_is_refused(book: Path, sequence: object) -> None:
    with pytest.raises(JobError, match="sequence must be a positive whole number"):
        data.text(sequence=sequence, file=book)  # type: ignore[arg-type]


def test_an_unknown_split_is_refused(book: Path) -> None:
    with pytest.raises(JobError, match='"train" or "validation", found \'test\''):
        data.text("test", file=book)  # type: ignore[arg-type]


def test_a_text_given_from_outside_takes_the_librarys_place_and_no_other(book: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_bytes(b"x" * 3 * BLOCK_BYTES)
    with data.reading_from(book):
        assert data.text().describe()["name"] == "book.txt"
        assert data.text(file=own).describe()["name"] == "own.txt"
    assert data.text().describe()["name"] == "python-library"


def test_a_text_given_from_outside_that_nothing_reads_is_an_error(book: Path) -> None:
    with pytest.raises(JobError, match=r"--text .*book\.txt changes nothing"), data.reading_from(book):
        pass


def test_importing_the_room_loads_neither_torch_nor_numpy() -> None:
    program = "import sys, farflung.data; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
