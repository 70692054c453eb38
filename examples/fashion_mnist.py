"""ResNet-101, from transformers as it is and untrained, learns to tell ten kinds of clothes apart.

    apt-get install dataset-fashion-mnist && pip install transformers
    farflung train examples/fashion_mnist.py --local 4

Needs no network: Debian's package has the 60,000 training and 10,000 test pictures of Fashion-MNIST (MIT
licence). `accuracy` is that on 1,920 of the test pictures, which are never trained on; guessing gives 0.1.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import ResNetConfig, ResNetForImageClassification

import farflung

FOLDER = Path("/usr/share/datasets/fashion-mnist")
STEPS = 200
MEAN, DEVIATION = 0.286, 0.353
"""Of the pixels of the training pictures, from 0 to 1."""


def read(name: str) -> Tensor:
    """An array of bytes in the format of MNIST (IDX): four bytes of kind and rank, then each extent in four.

    Raises
    ------
    FileNotFoundError
        Fashion-MNIST is not installed.
    """
    file = FOLDER / f"{name}-ubyte.gz"
    if not file.exists():
        raise FileNotFoundError(
            f"this example needs Fashion-MNIST, expected {file}: apt-get install dataset-fashion-mnist"
        )
    content = gzip.decompress(file.read_bytes())
    rank = content[3]
    shape = np.frombuffer(content, ">u4", rank, offset=4)
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape).copy())


class Clothes:
    """Pictures (1, 28, 28) of float32, mean 0 and deviation 1, and what they show, a number below 10."""

    def __init__(self, part: str) -> None:
        self._pictures = read(f"{part}-images-idx3")
        self._labels = read(f"{part}-labels-idx1").long()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        picture = (self._pictures[index][None].float() / 255 - MEAN) / DEVIATION
        return {"pixel_values": picture, "labels": self._labels[index]}


def build(config: ResNetConfig) -> farflung.Job:
    """The job of a ResNet of any size."""
    torch.manual_seed(0)
    return farflung.Job(
        model=ResNetForImageClassification(config),
        data=Clothes("train"),
        validation=Clothes("t10k"),
        optimizer=farflung.AdamW(
            lr=1e-3, weight_decay=0.05, schedule=farflung.WarmupCosine(warmup_steps=20, total_steps=STEPS)
        ),
        batch=64,
        microbatches=2,  # of 32 pictures, over which BatchNorm takes its means
        steps=STEPS,
        clip=1.0,
        validate_every=50,
        validation_batches=60,
        metrics={"accuracy": farflung.metrics.accuracy},
    )


def job() -> farflung.Job:
    """What `farflung train` runs."""
    return build(ResNetConfig(depths=[3, 4, 23, 3], num_channels=1, num_labels=10))
