from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from farflung.data import SampleOrder, collate, spread_indices
from farflung.errors import JobError

sizes = st.integers(1, 200).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length)))
seeds = st.integers(0, 2**63 - 1)


@settings(max_examples=50)
@given(sizes, seeds, st.integers(0, 10**6))
def test_an_epoch_visits_every_item_at_most_once_and_drops_less_than_a_batch(
    size: tuple[int, int], seed: int, epoch: int
) -> None:
    length, batch = size
    order = SampleOrder(length, batch, seed)
    first = epoch * order.steps_per_epoch
    visited = [index for step in range(order.steps_per_epoch) for index in order.indices(first + step)]
    assert len(set(visited)) == len(visited) > length - batch
    assert set(visited) <= set(range(length))


@settings(max_examples=50)
@given(sizes, seeds, st.integers(0, 10**9))
def test_any_place_is_reached_without_what_came_before(size: tuple[int, int], seed: int, step: int) -> None:
    length, batch = size
    walked = SampleOrder(length, batch, seed)
    for earlier in range(min(step, 3)):
        walked.indices(earlier)
    here = SampleOrder(length, batch, seed).indices(step)
    assert walked.indices(step) == here


def test_epochs_and_seeds_differ() -> None:
    orders = [SampleOrder(1000, 1000, seed).indices(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(1000)) for order in orders)


def test_the_order_is_fixed_for_good() -> None:
    # A run that resumes on another machine or version must go on with the items it would have seen.
    assert SampleOrder(20, 5, 7).indices(0) == [8, 16, 4, 1, 6]
    assert SampleOrder(20, 5, 7).indices(4) == [12, 17, 15, 16, 11]


def test_too_few_items_for_one_batch_are_refused() -> None:
    with pytest.raises(JobError, match=r"one batch needs 9 items .* the data has 8"):
        SampleOrder(8, 9, 0)


@settings(max_examples=50)
@given(sizes)
def test_evaluation_items_are_distinct_and_spread(size: tuple[int, int]) -> None:
    length, count = size
    indices = spread_indices(length, count)
    assert len(set(indices)) == count and set(indices) <= set(range(length))
    assert all(after - before <= length // count + 1 for before, after in pairwise(indices))


def test_items_are_stacked_by_name() -> None:
    items = [{"x": torch.full((2, 3), float(n)), "y": torch.tensor(n)} for n in range(4)]
    batch = collate(items)
    assert batch["x"].shape == (4, 2, 3)
    assert batch["y"].tolist() == [0, 1, 2, 3]


def test_unequal_shapes_name_the_key_and_the_shapes() -> None:
    with pytest.raises(JobError, match=r"'x' has \(2,\) and \(3,\): pad them with Job"):
        collate([{"x": torch.zeros(3)}, {"x": torch.zeros(2)}])


def test_unequal_dtypes_and_names_are_refused() -> None:
    with pytest.raises(JobError, match=r"'x' has torch\.float32 and torch\.int64"):
        collate([{"x": torch.zeros(3)}, {"x": torch.zeros(3, dtype=torch.int64)}])
    with pytest.raises(JobError, match=r"same names, found \['x'\] and \['y'\]"):
        collate([{"x": torch.zeros(3)}, {"y": torch.zeros(3)}])


@pytest.mark.parametrize(
    ("item", "found"),
    [
        ((torch.zeros(1), 3), "is a tuple"),
        ({}, "is empty"),
        ({"label": 3}, "'label': int"),
        ({0: torch.zeros(1)}, "with 0: Tensor"),
    ],
)
def test_an_item_that_is_no_dict_of_tensors_is_refused(item: object, found: str) -> None:
    with pytest.raises(JobError, match=f"{found}.* a dict of tensors by argument name was expected"):
        collate([item])


@pytest.mark.parametrize(
    ("columns", "collates"), [(("input_ids", "labels"), "Pad"), (("prompt", "chosen", "rejected"), "Pairs")]
)
def test_lists_of_numbers_are_refused_with_the_collate_that_takes_them(
    columns: tuple[str, ...], collates: str
) -> None:
    items = [{name: [1, 2, 3] for name in columns}]
    with pytest.raises(JobError, match=rf"Job\(collate=farflung\.data\.{collates}\(length\)\)$"):
        collate(items)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"text": "a b", "y": [1]}, r"'text': str: .*; text must .* data\.remove_columns\(\['text'\]\)$"),
        (
            {"x": np.zeros(2)},
            r"'x': ndarray: .*; torch\.as_tensor makes one; so does data\.with_format\('torch'\)",
        ),
        ({"y": 3}, r"'y': int: .*; torch\.as_tensor makes one"),
        ({"y": None}, r"'y': NoneType: a dict of tensors by argument name was expected$"),
        ({"x": torch.ones(2), "y": None}, r"'y': NoneType: a dict of tensors by argument name was expected$"),
    ],
)
def test_what_makes_tensors_of_text_arrays_and_numbers_is_said(item: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        collate([item])


@pytest.mark.parametrize("item", [3, "a b", [1, 2, 3], torch.ones(2)])
def test_what_may_be_an_item_of_a_column_is_refused_with_the_data_set_as_the_cure(item: Any) -> None:
    with pytest.raises(JobError, match=r"of a column, such as ds\['input_ids'\], give the data set itself$"):
        collate([item])


def test_the_users_own_collate_makes_the_batch_and_is_checked() -> None:
    pad = torch.nn.utils.rnn.pad_sequence
    batch = collate([torch.ones(2), torch.ones(3)], lambda items: {"x": pad(items, batch_first=True)})
    assert batch["x"].tolist() == [[1, 1, 0], [1, 1, 1]]
    with pytest.raises(JobError, match="collate returned a list"):
        collate([torch.ones(2)], lambda items: list(items))  # type: ignore[arg-type,return-value]


def test_the_parts_of_a_tuple_get_names() -> None:
    items = [(torch.full((2,), float(n)), torch.tensor(n)) for n in range(3)]
    batch = collate(items, names=("x", "labels"))
    assert batch["x"].shape == (3, 2) and batch["labels"].tolist() == [0, 1, 2]
    assert collate(items, lambda given: (torch.zeros(3), torch.ones(3)), ("x", "y"))["y"].tolist() == [
        1,
        1,
        1,
    ]  # type: ignore[arg-type, return-value]
    with pytest.raises(JobError, match=r"a tuple of 2: .* name its parts with Job\(names=\(\.\.\.\)\)"):
        collate(items)
    with pytest.raises(JobError, match=r"a tuple of 2, Job\(names=\) has 3"):
        collate(items, names=("x", "y", "z"))


@pytest.mark.parametrize(
    "sampler",
    [
        WeightedRandomSampler([1.0, 2.0, 3.0] * 7, 18),
        RandomSampler(range(21), replacement=True, num_samples=18, generator=torch.Generator()),
        SequentialSampler(range(21)),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_any_step_of_a_sampler_can_be_drawn_again(sampler: Any) -> None:
    """In any order, with the same items, whatever torch drew meanwhile; epochs differ if it is random."""
    order = SampleOrder(21, 4, 7, sampler)
    steps = order.steps_per_epoch * 3
    first = [order.indices(step) for step in range(steps)]
    torch.rand(5)
    before = torch.get_rng_state()
    again = SampleOrder(21, 4, 7, sampler)
    assert [again.indices(step) for step in reversed(range(steps))] == first[::-1]
    assert torch.equal(torch.get_rng_state(), before)
    epochs = [first[at * order.steps_per_epoch : (at + 1) * order.steps_per_epoch] for at in range(2)]
    assert (epochs[0] == epochs[1]) == isinstance(sampler, SequentialSampler)


@pytest.mark.parametrize("own", [None, torch.Generator()], ids=["without", "with"])
def test_drawing_moves_no_generator_of_the_user_or_the_process(
    own: torch.Generator | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a while: other threads may use them. Nor are devices seeded."""
    for name in ("manual_seed", "set_rng_state"):
        monkeypatch.setattr(torch, name, lambda *_: pytest.fail("the process's generator was moved"))
        monkeypatch.setattr(torch.random, name, lambda *_: pytest.fail("the process's generator was moved"))
    before = own.get_state() if own else None
    sampler = SubsetRandomSampler(range(20), generator=own)
    order = SampleOrder(20, 5, 3, sampler)
    assert order.indices(0) != order.indices(4)
    assert sampler.generator is own
    if own is not None and before is not None:
        assert torch.equal(own.get_state(), before)


def test_a_sampler_that_runs_dry_is_named() -> None:
    class Shrinking:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(range(8 - 2 * self.epoch))

    order = SampleOrder(9, 4, 0, Shrinking())
    assert [order.indices(step) for step in (0, 1, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    with pytest.raises(JobError, match=r"the sampler ran dry in epoch 2: .* 2 steps had 4 each"):
        order.indices(3)
    with pytest.raises(JobError, match=r"one batch needs 9 items .* the data has 8"):
        SampleOrder(9, 9, 0, Shrinking())
