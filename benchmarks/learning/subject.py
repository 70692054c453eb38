"""What is trained: a model, what it reads, what it is judged by, and how many steps it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from benchmarks.models.resnet import Basic, ResNet
from examples.gpt import GPT, Config
from torch import Tensor, nn

import farflung
from farflung.data import SampleOrder, collate, spread_indices
from farflung.runtime.training import Training

Batch = dict[str, Tensor]
SEGMENTS = 4
DEEP_STEPS, DEEP_WARMUP = 80, 20
MICROBATCHES = 4


class Items(Protocol):
    """A data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Batch: ...


@dataclass(frozen=True)
class Subject:
    """One model and its course.

    Attributes
    ----------
    training
        As every seed has it; `Training.seed` aside.
    data, held_out
        What it learns from and what it is judged by.
    segments
        How many it is cut into.
    """

    name: str
    title: str
    data: Items
    held_out: Items
    training: Training
    segments: int = SEGMENTS

    def model(self, seed: int) -> nn.Module:
        """The model as a run starts from it."""
        torch.manual_seed(seed)
        return _MODELS[self.name]()

    def microbatches(self, order: SampleOrder, step: int) -> list[Batch]:
        """Those of one training step."""
        return self._chunks(self.data, order.indices(step))

    def order(self, seed: int) -> SampleOrder:
        """What is read when."""
        batch = self.training.microbatches * self.training.microbatch_size
        return SampleOrder(len(self.data), batch, seed)

    def validation(self) -> list[Batch]:
        """The microbatches of an evaluation, the same ones every time."""
        count = self.training.validation_microbatches * self.training.microbatch_size
        return self._chunks(self.held_out, spread_indices(len(self.held_out), count))

    def _chunks(self, data: Items, indices: Sequence[int]) -> list[Batch]:
        size = self.training.microbatch_size
        return [
            collate([data[index] for index in indices[start : start + size]])
            for start in range(0, len(indices), size)
        ]


@torch.no_grad()
def plain(model: nn.Module, batches: Sequence[Batch]) -> tuple[float, float | None]:
    """Mean loss of the model in one piece in evaluation mode, and its accuracy if it classifies."""
    model.eval()
    total, right = 0.0, 0
    for batch in batches:
        total += float(model(**batch)) / len(batches)
        if isinstance(model, ResNet):
            right += int((model.scores(batch["pictures"]).argmax(dim=1) == batch["classes"]).sum())
    model.train()
    items = sum(len(batch["classes"]) for batch in batches) if isinstance(model, ResNet) else 0
    return total, right / items if items else None


def gpt(steps: int, quick: bool) -> Subject:
    """The GPT of `examples/gpt.py` on the Python library's sources, by the same course."""
    config = _gpt_config(quick)
    training = Training(
        steps=steps,
        microbatches=MICROBATCHES,
        microbatch_size=4,
        optimizer=farflung.AdamW(
            lr=4e-3, betas=(0.9, 0.99), weight_decay=0.1,
            schedule=farflung.WarmupCosine(warmup_steps=min(30, steps // 4), total_steps=steps),
        ),
        clip=1.0,
        validate_every=max(1, steps // 3),
        validation_microbatches=8 if quick else 64,
    )  # fmt: skip
    name = "gpt-quick" if quick else "gpt"
    text = farflung.data.text
    return Subject(
        name,
        f"a GPT of {config.width} wide and {config.layers} layers",
        text("train", sequence=config.sequence),
        text("validation", sequence=config.sequence),
        training,
    )


def resnet(steps: int, quick: bool) -> Subject:
    """ResNet-18 of a quarter of its width, on scikit-learn's scanned digits."""
    training = Training(
        steps=steps,
        microbatches=MICROBATCHES,
        microbatch_size=8 if quick else 15,
        optimizer=farflung.SGD(
            lr=0.05, momentum=0.9, weight_decay=5e-4,
            schedule=farflung.WarmupCosine(warmup_steps=min(10, steps // 4), total_steps=steps),
        ),
        validate_every=max(1, steps // 3),
        validation_microbatches=8 if quick else 24,
    )  # fmt: skip
    train, held_out = _digits()
    name, width = ("resnet-quick", 8) if quick else ("resnet", 16)
    return Subject(name, f"ResNet-18 from {width} wide on digits", train, held_out, training)


def deep_gpt(segments: int, warmup: bool = True) -> Subject:
    """A narrow GPT of 16 blocks on the Python library's sources, without warm-up and clipping if asked."""
    steps, config = DEEP_STEPS, _DEEP_GPT
    schedule = farflung.WarmupCosine(warmup_steps=DEEP_WARMUP if warmup else 0, total_steps=steps)
    training = Training(
        steps=steps, microbatches=1, microbatch_size=8,
        optimizer=farflung.AdamW(lr=4e-3, betas=(0.9, 0.99), weight_decay=0.1, schedule=schedule),
        clip=1.0 if warmup else None,
        validate_every=steps // 2, validation_microbatches=8,
    )  # fmt: skip
    train, held_out = (farflung.data.text(part, sequence=config.sequence) for part in ("train", "validation"))
    title = f"a GPT of {config.width} wide and {config.layers} layers"
    return Subject("deep-gpt", title, train, held_out, training, segments)


def deep_resnet(segments: int) -> Subject:
    """A residual convolutional network of 16 equal blocks on scikit-learn's digits."""
    training = Training(
        steps=DEEP_STEPS, microbatches=1, microbatch_size=32,
        optimizer=farflung.SGD(
            lr=0.05, momentum=0.9, weight_decay=5e-4,
            schedule=farflung.WarmupCosine(warmup_steps=DEEP_WARMUP, total_steps=DEEP_STEPS),
        ),
        clip=1.0, validate_every=DEEP_STEPS // 2, validation_microbatches=11,
    )  # fmt: skip
    title = f"a ResNet of 16 blocks, {_DEEP_WIDTH} wide, on digits"
    return Subject("deep-resnet", title, *_digits(), training, segments)


def _gpt_config(quick: bool) -> Config:
    return Config(width=64, layers=4, heads=2, sequence=32) if quick else Config()


def _resnet(width: int) -> ResNet:
    return ResNet((2, 2, 2, 2), classes=10, width=width, block=Basic)


_DEEP_GPT = Config(width=32, layers=16, heads=2, sequence=64)
_DEEP_WIDTH = 16
_MODELS = {
    "gpt": lambda: GPT(_gpt_config(False)),
    "gpt-quick": lambda: GPT(_gpt_config(True)),
    "deep-gpt": lambda: GPT(_DEEP_GPT),
    "deep-resnet": lambda: ResNet((16, 0, 0, 0), classes=10, width=_DEEP_WIDTH, block=Basic),
    "resnet": lambda: _resnet(16),
    "resnet-quick": lambda: _resnet(8),
}


class Digits:
    """Handwritten digits of 8 x 8, enlarged, in three equal colours."""

    _SIDE = 32

    def __init__(self, pictures: Tensor, classes: Tensor) -> None:
        large = F.interpolate(pictures, size=(self._SIDE, self._SIDE), mode="bilinear")
        self._pictures = large.expand(-1, 3, -1, -1)
        self._classes = classes

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, index: int) -> Batch:
        return {"pictures": self._pictures[index], "classes": self._classes[index]}


@cache
def _digits() -> tuple[Digits, Digits]:
    """Every fifth picture is held out: 1437 and 360."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pictures = torch.from_numpy(digits.images).float()[:, None] / 8 - 1
    classes = torch.from_numpy(digits.target).long()
    held_out = torch.arange(len(classes)) % 5 == 0
    return Digits(pictures[~held_out], classes[~held_out]), Digits(pictures[held_out], classes[held_out])
