"""ResNets as published (with the stride of a bottleneck in its 3x3 convolution, as everybody has it)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.inner = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x) + self.shortcut(x))


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut: the block of ResNet-18 and ResNet-34."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """`blocks` in each of four stages; pictures are (batch, 3, side, side)."""

    def __init__(
        self,
        blocks: tuple[int, int, int, int],
        classes: int,
        width: int = 64,
        block: type[Bottleneck] | type[Basic] = Bottleneck,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        layers: list[nn.Module] = []
        before = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                layers.append(block(before, width << stage, stride))
                before = block.expansion * (width << stage)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(before, classes)

    def scores(self, pictures: Tensor) -> Tensor:
        """Of every class, (batch, classes)."""
        x = F.adaptive_avg_pool2d(self.layers(self.stem(pictures)), (1, 1))
        scores: Tensor = self.head(torch.flatten(x, 1))
        return scores

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(pictures), classes)
