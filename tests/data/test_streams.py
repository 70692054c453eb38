"""Items of a stream by number: the same however they are asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.data.streams import StreamItems, StreamOrder, first_items, is_stream
from farflung.errors import JobError


class Counting:
    """Gives (epoch, place) for `length` places an epoch, and counts what is read."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.read = length, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self._from(0)

    def _from(self, first: int) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        for place in range(first, self.length):
            self.read += 1
            yield epoch, place


class Skipping(Counting):
    """As streams of `datasets`, it begins at any item."""

    def skip(self, count: int) -> _Skipped:
        return _Skipped(self, count)


class _Skipped:
    def __init__(self, whole: Skipping, count: int) -> None:
        self.whole, self.count = whole, count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self.whole._from(self.count)


@given(
    st.sampled_from([Counting, Skipping]),
    st.integers(1, 12),
    st.integers(0, 9),
    st.lists(st.integers(0, 40), min_size=1, max_size=20),
)
def test_an_item_is_the_same_whenever_it_is_read(
    kind: type[Counting], length: int, kept: int, numbers: list[int]
) -> None:
    items = StreamItems("data", kind(length), kept)
    for number in numbers:
        assert items[number] == divmod(number, length)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 30))
def test_a_first_epoch_that_fills_no_batch_is_refused(length: int, least: int, number: int) -> None:
    items = StreamItems("data", Counting(length), 4, least)
    if length >= least or number < length:
        assert items[number] == divmod(number, length)
        return
    with pytest.raises(JobError, match=f"a stream of {length} items?, one batch needs {least}"):
        items[number]


def test_a_first_epoch_of_which_a_part_is_skipped_is_not_counted() -> None:
    items = StreamItems("data", Skipping(10), 2, 8)
    assert items[9] == (0, 9) and items[12] == (1, 2)


def test_steps_in_order_read_each_item_once_whichever_thread_comes_first() -> None:
    source, order = Counting(1000), StreamOrder(8)
    items = StreamItems("data", source, 64)
    numbers = [number for step in range(40) for number in order.indices(step)]
    assert numbers == list(range(320))
    parts = [numbers[at : at + 4] for at in range(0, len(numbers), 4)]
    for at in range(0, len(parts), 8):  # eight are read at once, in any order
        ahead = parts[at : at + 8]
        random.Random(at).shuffle(ahead)
        with ThreadPoolExecutor(4) as threads:
            found = threads.map(lambda part: [items[number] for number in part], ahead)
            assert [list(one) for one in found] == [[(0, number) for number in part] for part in ahead]
    assert source.read == 320


def test_a_run_that_goes_on_reads_to_its_place_or_skips_there() -> None:
    plain, skipping = Counting(1000), Skipping(1000)
    assert StreamItems("data", plain, 8)[500] == (0, 500) and plain.read == 501
    items = StreamItems("data", skipping, 8)
    assert items[0] == (0, 0) and items[500] == (0, 500) and skipping.read == 10
    assert items[3] == (0, 3) and items[501] == (0, 501) and skipping.read == 14


def test_past_items_are_read_beside_the_run() -> None:
    source = Counting(1000)
    items = StreamItems("data", source, 8)
    for number in range(200):
        items[number]
    for number in range(50):
        assert items[100 + number] == (0, 100 + number)
        assert items[200 + number] == (0, 200 + number)
    assert source.read == 250 + 150


def test_a_stream_that_runs_dry_is_named() -> None:
    with pytest.raises(JobError, match="data ran dry: a Counting gave no item in epoch 2"):
        StreamItems("data", Counting(0), 4)[0]


def test_an_iterator_is_refused_and_only_streams_are_streams() -> None:
    with pytest.raises(JobError, match="read only once"):
        StreamItems("data", iter([1]), 4)
    assert is_stream(Counting(3)) and not is_stream([1]) and not is_stream(7)


def test_an_evaluation_takes_the_first_items() -> None:
    assert first_items("validation", Counting(9), 3) == [(0, 0), (0, 1), (0, 2)]
    assert len(first_items("validation", Counting(2), 3)) == 2
