"""Items of different lengths become batches of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farflung.data import Pad
from farflung.errors import JobError


def test_items_are_filled_up_at_their_ends() -> None:
    items = [
        {"input_ids": torch.tensor([5, 6, 7]), "attention_mask": [1, 1, 1], "labels": [5, 6, 7], "kind": 2},
        {"input_ids": torch.tensor([8]), "attention_mask": [1], "labels": [8], "kind": 0},
    ]
    batch = Pad(4, {"input_ids": 9})(items)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 9], [8, 9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert batch["kind"].tolist() == [2, 0] and batch["labels"].dtype == torch.int64


def test_further_dimensions_and_types_stay() -> None:
    (batch,) = Pad(3)([{"frames": torch.ones(2, 5, dtype=torch.bfloat16)}]).values()
    assert batch.shape == (1, 3, 5) and batch.dtype == torch.bfloat16 and batch[0, 2].sum() == 0


def test_longer_items_are_cut_only_if_asked_for() -> None:
    with pytest.raises(JobError, match=r"'x' of an item has length 3, Pad has 2: .* truncate=True"):
        Pad(2)([{"x": [1, 2, 3]}])
    assert Pad(2, truncate=True)([{"x": [1, 2, 3]}])["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([{"x": "a b"}], r"'x' of an item is text: 'a b': .* data\.remove_columns\(\['x'\]\)"),
        ([{"x": ["a"]}], "'x' of an item is no tensor or list of numbers"),
        ([(1, 2)], "an item to pad must be a dict of tensors, found tuple"),
        ([{"x": [1]}, {"y": [1]}], "every item must have the same names"),
    ],
)
def test_what_cannot_be_padded_is_named(items: list[Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        Pad(2)(items)


@pytest.mark.parametrize("length", [0, -1, True, 2.0])
def test_a_length_that_is_none_is_refused(length: Any) -> None:
    with pytest.raises(JobError, match="length must be a whole number"):
        Pad(length)


def test_a_batch_gets_the_least_of_several_lengths_that_holds_its_longest_item() -> None:
    pad = Pad((2, 4, 8), {"x": 9})
    assert pad([{"x": [1]}, {"x": [1, 2]}])["x"].tolist() == [[1, 9], [1, 2]]
    assert pad([{"x": [1, 2, 3]}, {"x": torch.arange(4)}])["x"].shape == (2, 4)
    assert pad([{"x": [1], "y": torch.ones(5, 2)}])["y"].shape == (1, 8, 2)
    assert pad.at(8)([{"x": [1]}])["x"].tolist() == [[1, 9, 9, 9, 9, 9, 9, 9]]
    assert pad.lengths == (2, 4, 8) and Pad(3).lengths == (3,)


def test_an_item_longer_than_all_lengths_is_refused_or_cut() -> None:
    with pytest.raises(JobError, match=r"'x' of an item has length 9, Pad has 8: .* truncate=True"):
        Pad([2, 8])([{"x": [1]}, {"x": [1] * 9}])
    assert Pad([2, 8], truncate=True)([{"x": [1] * 9}])["x"].shape == (1, 8)
    with pytest.raises(JobError, match="has length 3, Pad has 2"):
        Pad([2, 8]).at(2)([{"x": [1, 2, 3]}])
    assert Pad([2, 8]).at(2, truncate=True)([{"x": [1, 2, 3]}])["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize("lengths", [[8, 2], [2, 2], (4, 4, 8)])
def test_lengths_that_are_not_ascending_are_refused(lengths: Any) -> None:
    with pytest.raises(JobError, match="lengths must be ascending, each once, found"):
        Pad(lengths)


@pytest.mark.parametrize("lengths", [[], [0, 2], [1.5, 2], "ab", [True, 2]])
def test_lengths_that_are_none_are_refused(lengths: Any) -> None:
    with pytest.raises(JobError, match="length must be a whole number of at least 1, or several"):
        Pad(lengths)


def test_a_tokenizer_without_a_pad_token_is_named() -> None:
    with pytest.raises(
        JobError, match=r"nothing is given to fill 'input_ids' with: .* give its eos_token_id"
    ):
        Pad([2, 8], {"input_ids": None})  # type: ignore[dict-item]
