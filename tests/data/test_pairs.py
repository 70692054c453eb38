"""Pairs of answers become rows whose prompts and padding are masked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farflung.data import Pairs
from farflung.errors import JobError

PAIR = {"prompt": [1, 2], "chosen": torch.tensor([3, 4, 5]), "rejected": [6]}


def test_prompts_and_padding_are_masked() -> None:
    batch = Pairs(6, pad=9)([PAIR, PAIR])
    assert [*batch] == ["chosen", "chosen_labels", "rejected", "rejected_labels"]
    assert all(one.shape == (2, 6) and one.dtype == torch.int64 for one in batch.values())
    assert batch["chosen"][0].tolist() == [1, 2, 3, 4, 5, 9]
    assert batch["chosen_labels"][0].tolist() == [-100, -100, 3, 4, 5, -100]
    assert batch["rejected"][1].tolist() == [1, 2, 6, 9, 9, 9]
    assert batch["rejected_labels"][1].tolist() == [-100, -100, 6, -100, -100, -100]


@pytest.mark.parametrize(
    ("length", "prompt", "chosen"), [(5, [1, 2], [3, 4, 5]), (4, [2], [3, 4, 5]), (3, [2], [3, 4])]
)
def test_beginnings_of_prompts_are_cut_first(length: int, prompt: list[int], chosen: list[int]) -> None:
    batch = Pairs(length, truncate=True)([PAIR])
    assert batch["chosen"][0].tolist() == prompt + chosen
    assert batch["rejected"][0].tolist()[: len(prompt) + 1] == [*prompt, 6]
    assert int((batch["chosen_labels"] == -100).sum()) == len(prompt)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ((1, 2), "a pair must be a dict with 'prompt', 'chosen', 'rejected', found a tuple"),
        ({"prompt": [1], "chosen": [2]}, r"this one lacks 'rejected': found \['chosen', 'prompt'\]"),
        ({**PAIR, "chosen": []}, "'chosen' of a pair is empty: leave the pair out"),
        ({**PAIR, "rejected": []}, "'rejected' of a pair is empty: leave the pair out"),
        ({**PAIR, "chosen": [], "rejected": []}, "'chosen' of a pair is empty"),
        ({**PAIR, "prompt": []}, "'prompt' of a pair is empty: begin it with a token"),
        ({**PAIR, "rejected": [3, 4, 5]}, "'chosen' and 'rejected' of a pair are equal"),
        ({**PAIR, "chosen": [1] * 9}, "a pair has 2 tokens of prompt and 9 of an answer, Pairs has 6"),
        ({**PAIR, "chosen": ["a"]}, "'chosen' of a pair is no list of tokens"),
        ({**PAIR, "chosen": [[1]]}, "'chosen' of a pair must be one list of whole numbers"),
        ({**PAIR, "chosen": [0.5]}, "'chosen' of a pair must be one list of whole numbers"),
    ],
)
def test_what_is_no_pair_is_named(item: Any, words: str) -> None:
    with pytest.raises(JobError, match=words):
        Pairs(6)([item])


def test_answers_that_become_equal_by_cutting_are_refused() -> None:
    pair = {"prompt": [1], "chosen": [2, 3, 4], "rejected": [2, 3, 5]}
    with pytest.raises(JobError, match="equal, as far as they fit"):
        Pairs(3, truncate=True)([pair])


@pytest.mark.parametrize("length", [1, True, 2.0])
def test_a_length_without_room_is_refused(length: Any) -> None:
    with pytest.raises(JobError, match="length must be a whole number of at least 2"):
        Pairs(length)
