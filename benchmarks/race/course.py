"""What every system of the race trains: one model, its data, batch, microbatches, optimizer and seed."""

from __future__ import annotations

import msgspec
import torch
from examples.gpt import GPT, Config
from torch import Tensor

import farflung
from farflung.data import SampleOrder, collate, spread_indices
from farflung.data.text import Corpus, TextDataset, library
from farflung.runtime.optimizers.schedules import Constant


class Course(msgspec.Struct, frozen=True):
    """Sizes of the model and of a step; the numbers of one race are the same for every system.

    `validate_every` 0 means no evaluation. `codec` is the rung that farflung writes its links with; the
    baselines know of none. If `adapter_rank` is not 0, the model is frozen, and only LoRA adapters of that
    rank (arXiv 2106.09685) are trained: on every linear layer of the last `adapter_blocks` blocks. Farflung
    trains so many `replicas` of the model, with `sum_codec` on their sums of gradients; if `inner_steps` is
    not 0, they train apart and merge after so many steps. The learning rate rises over `warmup_steps` and
    stays; `clip` bounds the gradient's norm. `target` is a validation loss in nats a byte, 0: the race finds
    its own.
    """

    layers: int = 8
    width: int = 256
    heads: int = 8
    sequence: int = 256
    batch: int = 32
    microbatches: int = 8
    learning_rate: float = 1e-3
    seed: int = 0
    steps: int = 7
    validate_every: int = 0
    validation_batches: int = 16
    codec: str = "dense"
    adapter_rank: int = 0
    adapter_blocks: int = 0
    replicas: int = 1
    warmup_steps: int = 0
    clip: float | None = None
    target: float = 0.0
    sum_codec: str = "dense"
    inner_steps: int = 0

    @property
    def microbatch_size(self) -> int:
        """Samples of one microbatch."""
        return self.batch // self.microbatches

    @property
    def activation_bytes(self) -> int:
        """What one microbatch sends from a block to the next, float32."""
        return self.microbatch_size * self.sequence * self.width * 4

    def model(self) -> GPT:
        """The model as every system starts from it."""
        torch.manual_seed(self.seed)
        config = Config(sequence=self.sequence, layers=self.layers, heads=self.heads, width=self.width)
        model = GPT(config)
        if self.adapter_rank:
            self._adapt(model)
        return model

    def _adapt(self, model: GPT) -> None:
        """Freeze the model, and put PEFT's adapters into it."""
        from peft import LoraConfig, inject_adapter_in_model

        blocks = [f"blocks.{number}" for number in range(self.layers - self.adapter_blocks, self.layers)]
        names = ["attention.query_key_value", "attention.out", "widen", "narrow"]
        targets = [f"{block}.{name}" for block in blocks for name in names]
        inject_adapter_in_model(LoraConfig(r=self.adapter_rank, target_modules=targets), model)

    def optimizer(self) -> farflung.AdamW:
        """Declared once; the baselines build torch's own from it."""
        return farflung.AdamW(
            lr=self.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=0.1,
            schedule=Constant(self.warmup_steps),
        )

    def job(self, device: str = "cpu") -> farflung.Job:
        """The job that farflung trains."""
        with torch.device(device):
            model = self.model()
        return farflung.Job(
            model=model,
            data=farflung.data.text("train", sequence=self.sequence),
            validation=self._held_out() if self.validate_every else None,
            optimizer=self.optimizer(),
            batch=self.batch,
            microbatches=self.microbatches,
            steps=self.steps,
            seed=self.seed,
            codec=self.codec,
            sum_codec=self.sum_codec,
            sync=farflung.DiLoCo(inner_steps=self.inner_steps) if self.inner_steps else None,
            validate_every=self.validate_every or None,
            validation_batches=self.validation_batches,
            clip=self.clip,
            name="race",
        )

    def _held_out(self) -> farflung.data.TextDataset:
        return farflung.data.text("validation", sequence=self.sequence)


COURSE = Course(steps=360, validate_every=4, validation_batches=32, warmup_steps=20, clip=1.0, target=1.7)
"""The race's. A system that is not at the target after 360 steps, twice what the dense one takes, does not
reach it."""


class Batches:
    """The same samples in the same order as farflung's feeder sends them."""

    def __init__(self, course: Course, corpus: Corpus | None = None) -> None:
        self._course = course
        self._data = TextDataset(corpus or library(), "train", course.sequence)
        self._order = SampleOrder(len(self._data), course.batch, course.seed)

    def step(self, step: int) -> dict[str, Tensor]:
        """The whole batch of one step; microbatch m is its m-th slice."""
        return collate([self._data[index] for index in self._order.indices(step)])

    def held_out(self) -> list[dict[str, Tensor]]:
        """The microbatch-sized batches of one evaluation."""
        course = self._course
        data = farflung.data.text("validation", sequence=course.sequence)
        count = min(course.validation_batches, len(data) // course.microbatch_size)
        indices = spread_indices(len(data), count * course.microbatch_size)
        size = course.microbatch_size
        return [collate([data[i] for i in indices[n * size : (n + 1) * size]]) for n in range(count)]
