"""The same training without a network: one process, whose losses every dense system must reproduce."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from benchmarks.race.course import Batches, Course

from farflung.files import write_atomically
from farflung.runtime.parity.optimizers import build

TOLERANCE = 1e-5


class Reference(msgspec.Struct, frozen=True):
    """Training loss of each step, and validation loss after some steps (0: before the first).

    `seconds_per_step` is this one process's median, evaluation aside.
    """

    losses: list[float]
    validation: list[tuple[int, float]]
    seconds_per_step: float

    @property
    def target_loss(self) -> float:
        """What the race is to: the best validation loss of the first four fifths of the run."""
        until = 0.8 * len(self.losses)
        return min(loss for step, loss in self.validation if step <= until)

    def steps_to(self, target_loss: float) -> int | None:
        """The first evaluated step at which a validation loss is reached; None if it never is."""
        return next((step for step, loss in self.validation if loss <= target_loss), None)

    def agrees(self, losses: list[float], count: int = 5) -> bool:
        """Whether a system's first losses are these, relative to each."""
        pairs = list(zip(losses[:count], self.losses, strict=False))
        return bool(pairs) and all(abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs)


def reference(course: Course, folder: Path, tell: Callable[[str], None]) -> Reference:
    """Train `course` here, or read what an earlier race of the same course and torch left in `folder`."""
    course = msgspec.structs.replace(course, codec="dense")
    key = hashlib.sha256(msgspec.json.encode(course) + torch.__version__.encode()).hexdigest()[:12]
    path = folder / f"reference-{key}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Reference)
    tell(f"training {course.steps} steps without a network, for the loss over steps")
    found = train(course)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(found))
    return found


def train(course: Course) -> Reference:
    """Eagerly, microbatch by microbatch, as every dense system does."""
    model, batches = course.model().train(), Batches(course)
    optimizer = build(course.optimizer(), model.parameters())
    return follow(
        course,
        model,
        batches,
        lambda number: step(model, optimizer, batches.step(number), course.microbatches),
    )


def follow(
    course: Course, model: torch.nn.Module, batches: Batches, run: Callable[[int], float]
) -> Reference:
    """All steps of a course, where `run` trains `model` by one and gives its loss."""
    held_out = batches.held_out() if course.validate_every else []
    losses: list[float] = []
    seconds: list[float] = []
    validation: list[tuple[int, float]] = []
    for number in range(course.steps + 1):
        if held_out and number % course.validate_every == 0:
            validation.append((number, evaluate(model, held_out)))
        if number == course.steps:
            break
        start = time.monotonic()
        losses.append(run(number))
        seconds.append(time.monotonic() - start)
    return Reference(losses, validation, sorted(seconds)[len(seconds) // 2])


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, torch.Tensor],
    microbatches: int,
) -> float:
    """One optimizer step; the mean of its microbatches' losses."""
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    parts = {name: tensor.chunk(microbatches) for name, tensor in batch.items()}
    for number in range(microbatches):
        loss = model(**{name: part[number] for name, part in parts.items()})
        (loss / microbatches).backward()
        total += float(loss.detach()) / microbatches
    optimizer.step()
    return total


@torch.no_grad()
def evaluate(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> float:
    """Mean loss in evaluation mode."""
    model.eval()
    total = sum(float(model(**batch)) for batch in batches)
    model.train()
    return total / len(batches)
