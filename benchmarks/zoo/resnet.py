"""A ResNet with BatchNorm, thin."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.zoo.batches import images
from benchmarks.zoo.case import Case, seeded
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """ResNet's: two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """ResNet-18's shape, thin: a strided stem, four stages of two blocks, a pooled classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=1, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        widths = (4, 4, 8, 8, 12, 12, 16, 16)
        strides = (1, 1, 2, 1, 2, 1, 2, 1)
        blocks, before = [], 4
        for width, stride in zip(widths, strides, strict=True):
            blocks.append(BasicBlock(before, width, stride))
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(before, 10)

    def forward(self, pixels: Tensor, classes: Tensor) -> Tensor:
        x = torch.flatten(self.pool(self.blocks(self.stem(pixels))), 1)
        return F.cross_entropy(self.fc(x), classes)


CASES = [Case("resnet", seeded(ResNet), images)]
