"""Where labels are masked, a step's loss and gradients are those of its whole batch."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import farflung
from farflung.client.capture.check import capture_job, check_job, example_batch
from farflung.client.run.microbatches import Microbatch, Microbatches, weighted
from farflung.errors import JobError
from farflung.opdag.capture import LossModule
from farflung.opdag.graph import LOSS_WEIGHT
from farflung.schedule import Unit

BATCH, MICROBATCHES, LENGTH = 8, 4, 6


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbol = nn.Embedding(11, 16)
        self.head = nn.Linear(16, 11)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.symbol(x)).flatten(0, 1), labels.flatten())


def items(masked: Callable[[int], int], count: int = 24) -> list[dict[str, Tensor]]:
    """Item i has `masked(i)` masked labels."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for index in range(count):
        x, labels = (torch.randint(11, (LENGTH,), generator=generator) for _ in range(2))
        labels[: masked(index)] = -100
        found.append({"x": x, "labels": labels})
    return found


def job(**changes: Any) -> farflung.Job:
    torch.manual_seed(3)
    fields: dict[str, Any] = {
        "model": Tagger(),
        "data": items(lambda index: index % LENGTH),
        "validation": items(lambda index: (5 * index) % LENGTH, 16),
        "optimizer": farflung.AdamW(lr=1e-2),
        "batch": BATCH,
        "microbatches": MICROBATCHES,
        "steps": 3,
        "counted": "labels",
    }
    return farflung.Job(**(fields | changes))


def step_of(made: farflung.Job) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """The microbatches of the first step, and its whole batch."""
    microbatches = Microbatches(made, capture_job(made).graph)
    parts = [loaded.tensors for loaded in microbatches.load_unit(Unit(1, True, 0, MICROBATCHES))]
    return parts, {name: torch.cat([part[name] for part in parts]) for name in ("x", "labels")}


def test_loss_and_gradients_are_those_of_the_whole_batch() -> None:
    made = job()
    parts, whole = step_of(made)
    counts = [int((part["labels"] != -100).sum()) for part in parts]
    assert len({*counts}) > 1
    wrapper, plain = LossModule(made.model, None), Tagger()
    plain.load_state_dict(made.model.state_dict())
    loss = sum(wrapper(part) / MICROBATCHES for part in parts)
    loss.backward()
    expected = plain(**whole)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(made.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-7)
    unweighted = sum(plain(part["x"], part["labels"]).item() / MICROBATCHES for part in parts)
    assert abs(unweighted - expected.item()) > 1e-3  # so the weights matter here


def test_the_weights_of_a_step_average_one_in_training_and_evaluation() -> None:
    made = job(validation_batches=4)
    microbatches = Microbatches(made, capture_job(made).graph)

    async def all_of() -> list[Any]:
        return [microbatch async for microbatch in microbatches.stream()]

    found = asyncio.run(all_of())
    for unit in {each.unit.number for each in found}:
        weights = [float(each.tensors[LOSS_WEIGHT][0]) for each in found if each.unit.number == unit]
        assert len(weights) == MICROBATCHES and sum(weights) == pytest.approx(MICROBATCHES)


class Reading:
    """Counts the batches that are made, and those of them that are in memory as they were made."""

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.most_alive = self.batches = 0
        self.ahead: list[int] = []

    def collate(self, given: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = {name: torch.stack([item[name] for item in given]) for name in given[0]}
        self.alive.add(batch["labels"])
        self.batches += 1
        self.most_alive = max(self.most_alive, len(self.alive))
        return batch

    def walk(self, made: farflung.Job) -> list[tuple[bool, float]]:
        """Weights by microbatch, and whether it is of a training step."""
        microbatches = Microbatches(made, capture_job(made).graph)
        self.most_alive = self.batches = 0

        async def weights() -> list[tuple[bool, float]]:
            found = []
            async for one in microbatches.stream():
                found.append((one.unit.train, float(one.tensors[LOSS_WEIGHT][0])))
                await asyncio.sleep(0.001)  # readers get as far ahead as they may
                self.ahead.append(self.batches - len(found))
            return found

        return asyncio.run(weights())


def test_an_evaluation_of_everything_streams() -> None:
    """However large the validation set, and whatever the number of readers, little of it is in memory."""
    reading = Reading()
    held_out = items(lambda index: (5 * index) % LENGTH, 240)
    made = job(validation=held_out, validation_batches=None, collate=reading.collate, num_workers=2, steps=1)
    found = reading.walk(made)
    weights = [weight for train, weight in found[:120]]
    assert len(found) == 120 + MICROBATCHES + 120 and not any(train for train, _ in found[:120])
    counts = [sum(int((held_out[2 * m + k]["labels"] != -100).sum()) for k in range(2)) for m in range(120)]
    assert weights == pytest.approx([120 * count / sum(counts) for count in counts])
    assert reading.most_alive < 30
    assert max(reading.ahead[:120]) <= 120 + MICROBATCHES + 4  # 120 were counted and dropped
    assert reading.batches == 3 * 120 + MICROBATCHES  # it is counted once, not before each evaluation


def test_readers_hold_no_more_than_a_step_and_a_few_ahead() -> None:
    reading = Reading()
    made = job(
        data=items(lambda index: index % LENGTH, 512),
        validation=None,
        batch=64,
        microbatches=32,
        steps=8,
        num_workers=8,
        collate=reading.collate,
    )
    assert len(reading.walk(made)) == 8 * 32
    assert max(reading.ahead) <= 32 + 2 * 8
    assert reading.batches == 8 * 32


def test_a_past_unit_is_read_once() -> None:
    """A worker that runs it again gets what it got before."""
    reading = Reading()
    made = job(collate=reading.collate)
    microbatches = Microbatches(made, capture_job(made).graph)

    async def unit(**bounds: int) -> list[Microbatch]:
        return [one async for one in microbatches.stream(**bounds) if one.unit.number == 2]

    expected = asyncio.run(unit())
    reading.batches = 0
    found = asyncio.run(unit(first=2, last=2))
    assert reading.batches == MICROBATCHES
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in other.tensors)


def test_equal_counts_weigh_exactly_one() -> None:
    parts, _ = step_of(job(data=items(lambda index: 2)))
    assert all(torch.equal(part[LOSS_WEIGHT], torch.ones(2)) for part in parts)


def test_a_weighted_job_is_equal_in_segments() -> None:
    assert check_job(job(), segments=2).ok
    assert set(example_batch(job())) == {"x", "labels", LOSS_WEIGHT}


def test_a_function_may_count() -> None:
    """As for a model that shifts its labels itself."""
    made = job(counted=lambda batch: (batch["labels"][:, 1:] != -100).sum())
    parts, _ = step_of(made)
    counts = [int((part["labels"][:, 1:] != -100).sum()) for part in parts]
    assert [float(part[LOSS_WEIGHT][0]) for part in parts] == pytest.approx(
        [MICROBATCHES * count / sum(counts) for count in counts]
    )


def fail(batch: dict[str, Tensor]) -> int:
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": items(lambda index: LENGTH)}, "a microbatch has no target that counts .* leave out items"),
        ({"counted": "tags"}, r"names no tensor of a batch, which has \['labels', 'x'\]"),
        ({"counted": fail}, r"Job\(counted=\) raised KeyError: 'gone'"),
        ({"counted": lambda batch: -1}, "must return a number of targets, found -1"),
    ],
)
def test_what_cannot_be_counted_is_one_line(changes: dict[str, Any], words: str) -> None:
    made = job(**changes)
    with pytest.raises(JobError, match=words):
        weighted(made, [made.collated([made.items[0], made.items[1]])])


def test_counted_must_be_a_name_or_a_function() -> None:
    with pytest.raises(JobError, match="counted must be callable or None, found int"):
        job(counted=3)
