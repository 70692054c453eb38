"""Which samples each microbatch holds, and what a bad item says."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.support import lengths
from torch import Tensor, nn
from torch.utils.data import DataLoader

from farflung.client.api.job import Job
from farflung.client.capture.check import capture_shapes
from farflung.client.output.checkpoints.identity import data_identity
from farflung.client.run import microbatches
from farflung.client.run.microbatches import DataFailed, DataWaits, Microbatch, Microbatches
from farflung.data import SampleOrder, spread_indices
from farflung.errors import JobError
from farflung.opdag.graph import LOSS_WEIGHT, BatchSize, Graph, Input, ValueType
from farflung.runtime.optimizers.declared import SGD


class Numbers:
    """Item i is the number i; `broken` raises, `odd` is of another type."""

    def __init__(self, length: int, broken: int = -1, odd: int = -1) -> None:
        self.length, self.broken, self.odd = length, broken, odd
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        if index == self.broken:
            raise ValueError("no such picture")
        return {"x": torch.full((1,), index, dtype=torch.float64 if index == self.odd else torch.float32)}


GRAPH = Graph(1, "x", [ValueType("float32", [BatchSize(1), 1])], [Input(0, "input", "x")], [], 0, {}, {}, {})


def job(data: Any, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "model": nn.Linear(1, 1),
        "data": data,
        "optimizer": SGD(lr=0.1),
        "batch": 4,
        "microbatches": 2,
        "steps": 3,
        "validation": Numbers(10),
        "validation_batches": 2,
        "seed": 5,
    }
    return Job(**{**fields, **changes})


def stream(job: Job, limit: int = 100, first: int = 0) -> list[Microbatch]:
    async def collect() -> list[Microbatch]:
        found = []
        stream = Microbatches(job, GRAPH).stream(first)
        async for microbatch in stream:
            found.append(microbatch)
            if len(found) == limit:
                break
        await stream.aclose()
        return found

    return asyncio.run(collect())


def test_units_and_samples_come_in_the_order_of_the_job() -> None:
    found = stream(job(Numbers(20)))
    assert [(entry.unit.number, entry.unit.train, entry.number) for entry in found] == [
        (unit, unit not in (0, 4), number) for unit in range(5) for number in range(2)
    ]
    steps: dict[int, list[float]] = {}
    for entry in found:
        steps.setdefault(entry.unit.number, []).extend(entry.tensors["x"].flatten().tolist())
    order = SampleOrder(20, 4, 5)
    assert [steps[unit] for unit in (1, 2, 3)] == [order.indices(step) for step in range(3)]
    assert steps[0] == steps[4] == spread_indices(10, 4)


def test_a_stream_begins_at_any_unit_with_the_samples_of_the_whole() -> None:
    whole = stream(job(Numbers(20)))
    for first in range(6):
        data = Numbers(20)
        begun = job(data)
        data.read.clear()
        late = stream(begun, first=first)
        expected = [entry for entry in whole if entry.unit.number >= first]
        assert [entry[:2] for entry in late] == [entry[:2] for entry in expected]
        for one, other in zip(late, expected, strict=True):
            assert torch.equal(one.tensors["x"], other.tensors["x"])
        assert len(data.read) == 2 * sum(entry.unit.train for entry in expected)


def test_an_evaluation_may_read_the_whole_validation_set() -> None:
    made = job(Numbers(20), validation=Numbers(11), validation_batches=None)
    first = [int(x) for entry in stream(made) if entry.unit.number == 0 for x in entry.tensors["x"].flatten()]
    assert made.validation_microbatches == 5 and len(first) == 10 == len({*first})


def test_little_is_loaded_before_it_is_needed() -> None:
    data = Numbers(400)
    stream(job(data, steps=90, validation=None), limit=3)
    assert len(data.read) <= 1 + (3 + microbatches.LOADED_AHEAD) * 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Numbers(4, broken=2), r"data\[2\] raised ValueError: no such picture"),
        (Numbers(4, odd=2), "one dtype"),
    ],
)
def test_a_bad_item_is_named(data: Numbers, words: str) -> None:
    with pytest.raises(JobError, match=words):
        stream(job(data, validation=None))


@pytest.mark.parametrize("readers", [1, 7])
def test_the_microbatches_before_a_bad_item_come_first(readers: int) -> None:
    order = SampleOrder(20, 4, 5)
    bad = order.indices(2)[3]

    async def collect() -> tuple[list[int], DataFailed]:
        made, found = job(Numbers(20, broken=bad), num_workers=readers), []
        try:
            async for microbatch in Microbatches(made, GRAPH).stream():
                found.append(microbatch.unit.number)
        except DataFailed as failed:
            return found, failed
        raise AssertionError("the item was not read")

    units, failed = asyncio.run(collect())
    assert units == [0, 0, 1, 1, 2, 2, 3] and failed.unit == 3
    assert str(failed).startswith(f"data[{bad}] raised ValueError: no such picture (test_microbatches.py:")


def test_a_sampler_that_raises_later_is_an_error_of_the_data() -> None:
    class Late:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            if self.epoch:
                raise ValueError("no second\nepoch")
            return iter(range(8))

    with pytest.raises(DataFailed, match=r"^the sampler raised ValueError: no second") as failed:
        stream(job(Numbers(20), sampler=Late(), validation=None))
    assert failed.value.unit == 2


def test_a_batch_unlike_the_captured_one_is_refused() -> None:
    def late_growth(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = torch.stack([item["x"] for item in items])
        return {"x": torch.cat([batch, batch], 1) if len(items) == 2 else batch}

    with pytest.raises(JobError, match=r"shape \(2, 2\), captured with float32 of shape \(2, 1\)"):
        stream(job(Numbers(4), validation=None, collate=late_growth))


def test_a_collate_that_reuses_its_buffer_does_no_harm() -> None:
    buffer = torch.zeros(2, 1)

    def reuse(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        for row, item in enumerate(items[:2]):
            buffer[row] = item["x"]
        return {"x": buffer}

    found = stream(job(Numbers(20), validation=None, collate=reuse))
    order = SampleOrder(20, 4, 5)
    values = [int(x) for entry in found for x in entry.tensors["x"].flatten()]
    assert values == [index for step in range(3) for index in order.indices(step)]


@pytest.mark.parametrize("readers", [2, 7])
def test_several_readers_change_no_sample_and_no_order(readers: int) -> None:
    """They read at the same time: each waits until as many others read as can."""
    data = Numbers(20)
    expected = stream(job(data))
    together = threading.Barrier(2)
    most = 0

    class Slow(Numbers):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            nonlocal most
            if threading.current_thread().name.startswith("farflung-data") and most < 4:
                most += 1
                together.wait(timeout=60)
            return super().__getitem__(index)

    found = stream(job(Slow(20), num_workers=readers))
    assert most >= 2
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    assert all(torch.equal(a.tensors["x"], b.tensors["x"]) for a, b in zip(found, expected, strict=True))


def test_readers_read_no_further_ahead_than_twice_their_number() -> None:
    data = Numbers(400)
    stream(job(data, steps=90, validation=None, num_workers=5), limit=3)
    assert len(data.read) <= 1 + (3 + 2 * 5) * 2


def test_a_slow_data_set_is_named_once_with_what_helps() -> None:
    now = [0.0]
    waits = DataWaits(lambda: now[0])

    def microbatch(waited: float, elsewhere: float) -> None:
        with waits.one():
            now[0] += waited
        now[0] += elsewhere

    for _ in range(20):
        microbatch(0.1, 0.9)
        assert not waits.bottleneck(1)
    for _ in range(30):
        microbatch(0.9, 0.1)
    words = waits.bottleneck(2)
    assert words.startswith("the data set is the bottleneck: 58 % of the time went by waiting")
    assert "Job(num_workers=8)" in words
    assert not waits.bottleneck(2)


def test_the_pipelines_beginning_is_not_blamed_on_the_data() -> None:
    now = [0.0]
    waits = DataWaits(lambda: now[0])
    for _ in range(microbatches.LEAST_WAITS - 1):
        with waits.one():
            now[0] += 10.0
        assert not waits.bottleneck(1)
    with waits.one():
        now[0] += 10.0
    assert waits.bottleneck(1)


class Pairs(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Items are tuples of a tensor and a number, as in torchvision."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1,), float(index)), index


def test_a_loaders_data_order_collate_and_workers_are_used() -> None:
    backwards = list(range(19, -1, -1))
    loader = DataLoader(Pairs(), batch_size=4, sampler=backwards, num_workers=3)
    made = job(loader, validation=DataLoader(Pairs(), batch_size=7), names=("x", "labels"))  # type: ignore[arg-type]
    assert made.readers == 3 and made.validation_microbatches == 2
    found = [int(x) for entry in stream(made) if entry.unit.train for x in entry.tensors["x"].flatten()]
    assert found == backwards[:12]


def test_a_loader_that_shuffles_has_the_jobs_own_order() -> None:
    loader = DataLoader(Pairs(), batch_size=4, shuffle=True)
    made = job(loader, validation=None, names=("x", "labels"))  # type: ignore[arg-type]
    found = [int(x) for entry in stream(made) for x in entry.tensors["x"].flatten()]
    order = SampleOrder(20, 4, 5)
    assert found == [index for step in range(3) for index in order.indices(step)]


class Endless(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """Gives 0, 1, 2 and so on, 30 in an epoch; with noise, other items whenever it is read."""

    def __init__(self, noise: bool = False) -> None:
        self.noise = noise

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in range(30):
            yield {"x": torch.tensor([number + (random.random() if self.noise else 0.0)])}


@pytest.mark.parametrize("readers", [1, 5])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_stream_keeps_its_order_and_begins_at_any_unit(readers: int, loaded: bool) -> None:
    data = torch.utils.data.DataLoader(Endless(), batch_size=4) if loaded else Endless()
    fields: dict[str, Any] = {"batch": 4, "steps": 12, "num_workers": readers, "validation": None}
    whole = stream(job(data, **fields))
    values = [int(x) for entry in whole for x in entry.tensors["x"].flatten()]
    assert values == [number % 30 for number in range(48)]
    late = stream(job(data, **fields), first=9)
    assert [int(x) for entry in late for x in entry.tensors["x"].flatten()] == values[36:]


def test_a_stream_that_cannot_be_read_again_is_noticed() -> None:
    assert data_identity(job(Endless(), batch=4, validation=None)).is_repeatable
    found = data_identity(job(Endless(noise=True), batch=4, validation=None))
    assert not found.is_repeatable and (found.items, found.order) == (0, "stream")


def test_a_stream_that_fills_no_batch_is_refused() -> None:
    with pytest.raises(JobError, match="data is a stream of 30 items, one batch needs 32: make the batch"):
        stream(job(Endless(), batch=32, validation=None))


class Ragged(Numbers):
    """Item 7 is longer than the others."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.zeros(2 if index == 7 else 1)}


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (2, r"^data\[6\] and data\[7\]: items of one batch must have equal shapes"),
        (4, r"^data\[7\]: items of one batch must have equal shapes.*Pad\(length\)"),
        (1, r"captured with float32 of shape \(1, 1\): every batch must be alike.* \(items 7 of data\)"),
    ],
)
@pytest.mark.parametrize("order", [range(8), (6, 7, 4, 5, 2, 3, 0, 1)], ids=["last", "among the first"])
def test_a_ragged_item_is_named_by_its_number(size: int, words: str, order: Sequence[int]) -> None:
    made = job(Ragged(8), batch=size, microbatches=1, steps=8, sampler=order, validation=None)
    with pytest.raises(JobError, match=words):
        stream(made)


def texts_of(*lengths: int) -> list[dict[str, Tensor]]:
    return [{"input_ids": torch.ones(n, dtype=torch.int64), "labels": torch.ones(n).long()} for n in lengths]


def test_each_microbatch_has_the_least_length_that_holds_it_and_the_weight_of_its_targets() -> None:
    data = texts_of(3, 8, 9, 1, 30, 2, 16, 16)
    made = lengths.language(data=data, sampler=range(8), steps=1, validation=data)
    loader = Microbatches(made, capture_shapes(made).graph)
    evaluation, unit = list(made.training().units())[:2]
    found = loader.load_unit(unit)
    assert [one.bucket for one in found] == [2, 1, 0, 1]
    assert [one.tensors["input_ids"].shape for one in found] == [(2, 8), (2, 16), (2, 32), (2, 16)]
    assert [round(float(one.tensors[LOSS_WEIGHT][0]) * 85 / 4) for one in found] == [11, 10, 32, 32]
    assert [one.bucket for one in loader.load_unit(evaluation)] == [2, 1, 0, 1]


def test_an_item_longer_than_all_lengths_is_named() -> None:
    data = texts_of(*[3] * 8, 33)
    made = lengths.language(data=data, sampler=[0, 1, 2, 3, 8, 5, 6, 7], validation=None, steps=1)
    loader = Microbatches(made, capture_shapes(made).graph)
    (unit,) = made.training().units()
    with pytest.raises(JobError, match=r"^data\[8\]: 'input_ids' of an item has length 33, Pad has 32: make"):
        loader.load_unit(unit)


def test_a_batch_of_none_of_the_lengths_is_refused() -> None:
    made = lengths.language(validation=None, steps=1)
    graph = capture_shapes(made).graph
    other = lengths.language(lengths=(5, 31), validation=None, steps=1)
    (unit,) = other.training().units()
    with pytest.raises(
        JobError, match=r"'input_ids' of a batch is int64 of shape \(2, (5|31)\), captured with"
    ):
        Microbatches(other, graph).load_unit(unit)
