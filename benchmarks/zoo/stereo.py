"""Depth from two pictures (after GC-Net and PSMNet): shared features, a cost volume, 3D convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.zoo.case import Batch, Case, RealSize, seeded
from torch import Tensor, nn


def views(samples: int, seed: int, height: int = 16, width: int = 24, disparities: int = 8) -> Batch:
    """Two pictures, (samples, 3, height, width), and how far each point moved between them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, 3, height, width)
    return {
        "left": torch.randn(shape, generator=generator),
        "right": torch.randn(shape, generator=generator),
        "disparity": (disparities - 1) * torch.rand(samples, height, width, generator=generator),
    }


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3D convolution with BatchNorm."""
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm3d(outputs), nn.ReLU()
    )


class Hourglass(nn.Module):
    """Down to half in all three dimensions and up again, beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = convolution(width, 2 * width, stride=2)
        self.middle = convolution(2 * width, 2 * width)
        self.up = nn.ConvTranspose3d(
            2 * width, width, 3, stride=2, padding=1, output_padding=1, bias=False
        )  # fmt: skip
        self.norm = nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.up(self.middle(self.down(x)))) + x)


class Stereo(nn.Module):
    """Two inputs through shared layers, two estimates out: before the hourglasses and behind them."""

    def __init__(self, width: int, disparities: int, hourglasses: int) -> None:
        super().__init__()
        self.disparities = disparities // 2  # at half the resolution
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )  # fmt: skip
        self.entry = convolution(2 * width, width)
        self.hourglasses = nn.ModuleList(Hourglass(width) for _ in range(hourglasses))
        self.scores = nn.ModuleList(nn.Conv3d(width, 1, 3, padding=1) for _ in range(2))

    def _volume(self, left: Tensor, right: Tensor) -> Tensor:
        """(samples, 2 channels, disparities, height, width): the pictures shifted against each other."""
        shifted = []
        for by in range(self.disparities):
            moved = F.pad(right[..., : right.shape[-1] - by], (by, 0))
            shifted.append(torch.cat([left, moved], dim=1))
        return torch.stack(shifted, dim=2)

    def _estimate(self, volume: Tensor, scores: nn.Module) -> Tensor:
        found = F.interpolate(scores(volume), scale_factor=2, mode="trilinear", align_corners=False)
        weights = F.softmax(found.squeeze(1), dim=1)
        steps = torch.arange(2 * self.disparities, dtype=weights.dtype, device=weights.device)
        return (weights * steps.view(1, -1, 1, 1)).sum(dim=1)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        volume = self.entry(self._volume(self.features(left), self.features(right)))
        first = self._estimate(volume, self.scores[0])
        for hourglass in self.hourglasses:
            volume = hourglass(volume)
        return first, self._estimate(volume, self.scores[1])


def both(outputs: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """The refined estimate counts twice as much as the first one."""
    first, refined = (F.smooth_l1_loss(output, batch["disparity"]) for output in outputs)
    return (first + 2 * refined) / 3


CASES = [
    Case(
        "stereo",
        seeded(lambda: Stereo(4, 8, hourglasses=2)),
        views,
        loss=both,
        tolerance=1e-5,
        notes="Two inputs, two outputs, 3D convolutions; its feature layers are used twice.",
        real=RealSize(
            "a stereo network (32 channels, 64 disparities, 3 hourglasses), 256 x 512",
            lambda: Stereo(32, 64, hourglasses=3),
            lambda samples, seed: views(samples, seed, 256, 512, 64),
        ),
    )
]
