"""What models may take and give: keywords, integers, booleans, several losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from benchmarks.zoo.batches import SEQUENCE, WIDTH
from benchmarks.zoo.case import Batch, Case, seeded
from torch import Tensor, nn

PLACES = 7


def visits(samples: int, seed: int) -> Batch:
    """One input of each element type, in several shapes; the targets of three losses."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "history": torch.randn(samples, SEQUENCE, WIDTH, generator=generator),
        "places": torch.randint(0, PLACES, (samples, SEQUENCE), generator=generator),
        "hour": torch.randint(0, 24, (samples,), generator=generator).to(torch.int32),
        "weekday": torch.randint(0, 7, (samples,), generator=generator).to(torch.uint8),
        "seen": torch.rand(samples, SEQUENCE, generator=generator) < 0.8,
        "next_place": torch.randint(0, PLACES, (samples,), generator=generator),
        "duration": torch.rand(samples, generator=generator),
        "returns": torch.rand(samples, generator=generator) < 0.5,
    }


@dataclass
class Answer:
    """As libraries give it: the loss beside the scores."""

    loss: Tensor
    scores: Tensor


class Visits(nn.Module):
    """Takes keywords only, some with defaults; three losses and a penalty make one."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Embedding(PLACES, WIDTH)
        self.hour = nn.Embedding(24, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.next = nn.Linear(WIDTH, PLACES)
        self.duration = nn.Linear(WIDTH, 1)
        self.returns = nn.Linear(WIDTH, 1)

    def forward(
        self,
        *,
        history: Tensor,
        places: Tensor,
        hour: Tensor,
        weekday: Tensor,
        seen: Tensor,
        next_place: Tensor,
        duration: Tensor,
        returns: Tensor,
        weights: tuple[float, float, float] = (1.0, 0.5, 0.25),
        penalty: float | None = 1e-3,
    ) -> Answer:
        weekend = (weekday.long() >= 5) & (hour > 6)
        x = torch.where(seen.unsqueeze(-1), history + self.place(places), torch.zeros_like(history))
        x = x + (self.hour(hour) * weekend.unsqueeze(-1)).unsqueeze(1)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        x = x.sum(dim=1) / seen.sum(dim=1, keepdim=True).clamp(min=1)
        scores = self.next(x)
        losses = (
            F.cross_entropy(scores, next_place, label_smoothing=0.1),
            F.mse_loss(self.duration(x).squeeze(-1), duration),
            F.binary_cross_entropy_with_logits(self.returns(x).squeeze(-1), returns.to(x.dtype)),
        )
        loss = torch.stack([weight * part for weight, part in zip(weights, losses, strict=True)]).sum()
        if penalty is not None:
            loss = loss + penalty * x.square().mean()
        return Answer(loss, scores)


CASES = [
    Case(
        "several-losses",
        seeded(Visits),
        visits,
        tolerance=1e-5,
        notes="Keywords only; integers of three widths, booleans; three losses and a penalty.",
    )
]
