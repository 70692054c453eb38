"""A U-Net: what goes down is read again on the way up, so skips pass over every cut between."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from benchmarks.zoo.case import Batch, Case, RealSize, seeded
from torch import Tensor, nn

KINDS = 4


def scenes(samples: int, seed: int, side: int = 16) -> Batch:
    """Pictures, (samples, 3, side, side), and the kind of thing that each of their points shows."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "pictures": torch.randn(samples, 3, side, side, generator=generator),
        "kinds": torch.randint(0, KINDS, (samples, side, side), generator=generator),
    }


class Double(nn.Module):
    """Two 3x3 convolutions, each normed over groups."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class UNet(nn.Module):
    """Halves the picture at each level down; goes up by transposed convolutions, or by interpolation."""

    def __init__(self, width: int, levels: int, interpolate: bool) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.first = Double(3, width)
        self.down = nn.ModuleList(Double(a, b) for a, b in pairwise(widths))
        self.raise_ = nn.ModuleList(
            nn.Conv2d(b, a, 1) if interpolate else nn.ConvTranspose2d(b, a, 2, stride=2)
            for a, b in pairwise(widths)
        )
        self.up = nn.ModuleList(Double(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(width, KINDS, 1)
        self.interpolate = interpolate

    def forward(self, pictures: Tensor, kinds: Tensor) -> Tensor:
        skips = [self.first(pictures)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for rise, up in zip(reversed(self.raise_), reversed(self.up), strict=True):
            if self.interpolate:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = up(torch.cat([rise(x), skips.pop()], dim=1))
        return F.cross_entropy(self.last(x), kinds)


CASES = [
    Case(
        "unet",
        seeded(lambda: UNet(4, 3, interpolate=False)),
        scenes,
        notes="Skips between all levels; transposed convolutions.",
        real=RealSize(
            "U-Net 31M (64 to 1,024 channels), 256 x 256",
            lambda: UNet(64, 4, interpolate=False),
            lambda samples, seed: scenes(samples, seed, 256),
        ),
    ),
    Case(
        "unet-bilinear",
        seeded(lambda: UNet(4, 2, interpolate=True)),
        scenes,
        notes="Goes up by interpolation.",
    ),
]
