"""Short sequences become rows of one length, which say where each sequence begins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import IterableDataset

from farflung.data import Pack, PackStream, block_mask
from farflung.data.best_fit import best_fit_decreasing
from farflung.data.streams import StreamItems
from farflung.errors import JobError

ROW = 8
lengths_of_sequences = st.lists(st.integers(1, ROW), min_size=1, max_size=40)


def items(lengths: list[int]) -> list[dict[str, Tensor]]:
    """Sequences whose tokens are all different."""
    tokens = itertools.count(100)
    found = [torch.tensor([next(tokens) for _ in range(length)]) for length in lengths]
    return [{"input_ids": one, "labels": one.clone()} for one in found]


class Stream(IterableDataset[dict[str, Tensor]]):
    """Gives the items, those of the second epoch backwards."""

    def __init__(self, items: list[dict[str, Tensor]]) -> None:
        self.items, self.epoch = items, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.items if self.epoch % 2 == 0 else self.items[::-1])


def sequences_of(rows: list[dict[str, Tensor]]) -> list[list[int]]:
    """The sequences of rows as their positions tell them apart, without empty places."""
    found: list[list[int]] = []
    for row in rows:
        for token, position in zip(row["input_ids"].tolist(), row["position_ids"].tolist(), strict=True):
            if token and position == 0:
                found.append([])
            if token:
                assert position == len(found[-1])
                found[-1].append(token)
    return found


def test_a_row_holds_sequences_their_positions_and_labels_without_the_first() -> None:
    given = [
        {"input_ids": [5, 6, 7], "labels": [5, 6, 7], "attention_mask": [1, 1, 1]},
        {"input_ids": [8, 9], "labels": [-100, 9], "attention_mask": [1, 1]},
    ]
    (row,) = [*Pack(given, 7, {"input_ids": 2})]
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 9, 2, 2]
    assert row["labels"].tolist() == [-100, 6, 7, -100, 9, -100, -100]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert {*row} == {"input_ids", "labels", "position_ids"}
    assert {tensor.dtype for tensor in row.values()} == {torch.int64}


def test_labels_that_the_model_does_not_shift_are_all_kept() -> None:
    given = [{"tokens": [1, 2], "targets": [2, 3]}, {"tokens": [7], "targets": [8]}]
    (row,) = [*Pack(given, 3, labels="targets", shift=False)]
    assert row["targets"].tolist() == [2, 3, 8] and row["tokens"].tolist() == [1, 2, 7]


@given(lengths_of_sequences)
def test_every_sequence_is_in_one_row_and_rows_are_no_longer_than_asked_for(lengths: list[int]) -> None:
    given = items(lengths)
    rows = [*Pack(given, ROW)]
    assert sorted(sequences_of(rows)) == sorted(one["input_ids"].tolist() for one in given)
    assert all(len(tensor) == ROW for row in rows for tensor in row.values())
    assert len(rows) * ROW >= sum(lengths)
    half_full = [row for row in rows if (row["input_ids"] > 0).sum() <= ROW / 2]
    assert len(half_full) <= 1  # two of them would share a row


@given(lengths_of_sequences, st.integers(1, 5))
def test_a_stream_gives_every_sequence_once_an_epoch(lengths: list[int], open_rows: int) -> None:
    given = items(lengths)
    packed = PackStream(Stream(given), ROW, open_rows=open_rows)
    for epoch in (0, 1):
        packed.set_epoch(epoch)
        rows = [*packed]
        assert sorted(sequences_of(rows)) == sorted(one["input_ids"].tolist() for one in given)
        assert all(len(tensor) == ROW for row in rows for tensor in row.values())


@given(lengths_of_sequences, st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_a_row_of_a_stream_is_the_same_whenever_it_is_read(lengths: list[int], numbers: list[int]) -> None:
    given = items(lengths)
    packed = PackStream(Stream(given), ROW, open_rows=3)
    first = [*packed]
    packed.set_epoch(1)
    in_order = [row["input_ids"].tolist() for row in [*first, *packed]]
    items_by_number = StreamItems("data", PackStream(Stream(given), ROW, open_rows=3), 4)
    for number in (number for number in numbers if number < len(in_order)):
        assert items_by_number[number]["input_ids"].tolist() == in_order[number]


def test_known_lengths_spare_a_reading() -> None:
    read: list[int] = []

    class Counting(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    given = Counting(items([3, 4, 8]))
    packed = Pack(given, ROW, lengths=[3, 4, 8])
    assert read == [] and len(packed) == 2
    assert [[*row["input_ids"]] for row in packed] == [[*row["input_ids"]] for row in Pack([*given], ROW)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5, 5, 3, 3], [[0, 2], [1, 3]]),
        ([1, 7, 2, 6], [[0, 1], [2, 3]]),
        ([8, 1], [[0], [1]]),
        ([4, 4, 4], [[0, 1], [2]]),
        ([], []),
    ],
)
def test_the_fullest_row_with_room_is_taken(lengths: list[int], expected: list[list[int]]) -> None:
    assert best_fit_decreasing(lengths, 8) == expected


def test_places_see_their_own_sequence_up_to_themselves() -> None:
    mask = block_mask(torch.tensor([[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]))
    assert mask.shape == (2, 1, 5, 5) and mask.dtype == torch.bool
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    assert torch.equal(mask[1, 0], torch.ones(5, 5, dtype=torch.bool).tril())


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ((1, 2), "item 1: a dict of tensors was expected to pack, found a tuple"),
        ({"input_ids": [1]}, r"item 1 has no 'labels', only \['input_ids'\]: give Pack\(labels=NAME\)"),
        ({"input_ids": ["a"], "labels": [1]}, "item 1: 'input_ids' is no tensor or list of numbers"),
        ({"input_ids": [1, 2], "labels": [1]}, "item 1: its columns must have one length"),
        ({"input_ids": 1, "labels": 1}, "item 1: its columns must have one length"),
        ({"input_ids": [], "labels": []}, "item 1 is empty: leave it out"),
        (
            {"input_ids": [1] * 9, "labels": [1] * 9},
            "item 1 has length 9, a row 8: make rows longer, or give",
        ),
        ({"input_ids": [1], "labels": [1], "attention_mask": [0]}, "item 1 is padded"),
        ({"input_ids": [1], "labels": [1], "position_ids": [0]}, "which Pack makes: leave it out"),
        (
            {"tokens": [1], "labels": [1]},
            r"item 1 has other columns than the first: \['input_ids', 'labels'\] and \['labels', 'tokens'\]",
        ),
        (
            {"input_ids": [1.0], "labels": [1]},
            r"item 1: 'input_ids' is torch.float32, in the first item torch.int64: give all items the same",
        ),
        (
            {"input_ids": [1], "labels": torch.tensor([1], dtype=torch.uint8)},
            "item 1: 'labels' is torch.uint8, which has no -100 for masked places: give labels as signed",
        ),
        ({"input_ids": [1], "labels": [1.0]}, "item 1: 'labels' is torch.float32, which has no -100"),
        ({"input_ids": [1], "labels": [True]}, "item 1: 'labels' is torch.bool, which has no -100"),
    ],
)
def test_what_cannot_be_packed_is_named(item: Any, words: str) -> None:
    for packed in (
        lambda: Pack([*items([2]), item], ROW)[0],
        lambda: [*PackStream([*items([2]), item], ROW)],
    ):
        with pytest.raises(JobError, match=words):
            packed()


def test_an_item_unlike_the_first_is_named_also_in_a_row_of_its_own_and_with_known_lengths() -> None:
    """A batch of such rows would have another dtype than the captured one."""
    given = [*items([8]), {"input_ids": [0.5] * 8, "labels": [1] * 8}]
    with pytest.raises(JobError, match=r"item 1: 'input_ids' is torch\.float32"):
        Pack(given, ROW)
    with pytest.raises(JobError, match=r"item 1: 'input_ids' is torch\.float32"):
        Pack(given, ROW, lengths=[8, 8])[1]
    with pytest.raises(JobError, match=r"item 1: 'input_ids' is torch\.float32"):
        [*PackStream(given, ROW)]


@pytest.mark.parametrize("names", [["inputs_ids"], ["input_ids", "position_ids"]])
def test_a_fill_for_a_column_that_the_first_item_lacks_is_refused(names: list[str]) -> None:
    fill = dict.fromkeys(names, 7)
    words = rf"fill names \['{names[-1]}'\], but the columns of the first item are \['input_ids', 'labels'\]"
    for packed in (
        lambda: Pack(items([2]), ROW, fill),
        lambda: Pack(items([2]), ROW, fill, lengths=[2])[0],
        lambda: [*PackStream(items([2]), ROW, fill)],
    ):
        with pytest.raises(JobError, match=words):
            packed()


def test_a_fill_for_the_mask_that_is_left_out_does_no_harm() -> None:
    """`Pad` needs it, so it is often given."""
    given = [{**one, "attention_mask": [1, 1]} for one in items([2])]
    assert {*Pack(given, ROW, {"attention_mask": 0})[0]} == {"input_ids", "labels", "position_ids"}


def test_a_full_sequence_of_a_stream_is_a_row_and_closes_no_other() -> None:
    given = items([5, ROW, 3])
    rows = [*PackStream(given, ROW, open_rows=1)]
    full, shared = (row["input_ids"].tolist() for row in rows)
    assert full == given[1]["input_ids"].tolist()
    assert shared == [*given[0]["input_ids"].tolist(), *given[2]["input_ids"].tolist()]


def test_longer_sequences_are_cut_only_if_asked_for() -> None:
    long = items([9])
    for rows in (Pack(long, ROW, truncate=True), PackStream(long, ROW, truncate=True)):
        (row,) = [*rows]
        assert row["input_ids"].tolist() == long[0]["input_ids"].tolist()[:8]
    assert len(Pack(long, ROW, truncate=True, lengths=[9])[0]["labels"]) == 8


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pack(items([1]), 0), "length must be a whole number"),
        (lambda: Pack([], 8), "there is nothing to pack"),
        (lambda: Pack(Stream([]), 8), "found a Stream: pack a stream with farflung.data.PackStream"),
        (lambda: Pack(items([1]), 8, lengths=[1, 2]), "lengths= has 2 numbers, the data set 1 items"),
        (lambda: Pack(items([1]), 8, lengths=[9]), "item 0 has length 9, which must be from 1 to 8"),
        (lambda: Pack(items([2]), 8, lengths=[3])[0], "item 0 has length 2, and had 3 when rows were made"),
        (lambda: PackStream(iter([]), 8), "an object whose __iter__ begins anew"),
        (lambda: PackStream([], 8, open_rows=0), "open_rows must be a whole number"),
    ],
)
def test_unfit_settings_are_refused_in_a_line(make: Any, words: str) -> None:
    with pytest.raises(JobError, match=words):
        make()
