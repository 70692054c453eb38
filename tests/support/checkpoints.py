"""Small checkpoints for tests: a module with a tie and all kinds of tensors, its optimizer, its record."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor, nn

import farflung
from farflung.client.output.checkpoints.contents import Contents
from farflung.client.output.checkpoints.record import (
    CheckpointRecord,
    CutSegment,
    DataIdentity,
    ModelIdentity,
    RunIdentity,
    Versions,
)
from farflung.runtime.training import Training

TIES = {"head.weight": "symbol.weight"}
IDENTITY = RunIdentity(
    ModelIdentity("a" * 64, 30),
    Training(steps=100, microbatches=4, microbatch_size=2, optimizer=farflung.AdamW(lr=0.001)),
    DataIdentity(1000, ["b" * 64] * 8, True),
)


class Tied(nn.Module):
    """An embedding that is the head too, BatchNorm statistics, an unread parameter, an unsaved buffer."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.symbol = nn.Embedding(5, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 5, bias=False)
        self.head.weight = self.symbol.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("positions", torch.arange(4), persistent=False)


def record_of(step: int, run: str = "r1", identity: RunIdentity = IDENTITY) -> CheckpointRecord:
    """The record of a checkpoint before it is saved."""
    return CheckpointRecord(
        run=run, job="gpt", step=step, attempt=1, loss=1.5, identity=identity,
        versions=Versions("0.1.0", "2.13.0"), cut=[CutSegment(0, ["a"], ["symbol.weight"])],
    )  # fmt: skip


def contents_of(step: int, numbers: int = 3, coders: Mapping[str, bytes] | None = None) -> Contents:
    """Contents that tell their step: every tensor is filled with it."""
    state = {
        "symbol.weight": torch.full((5, numbers), float(step)),
        "norm.running_mean": torch.full((numbers,), float(step)),
        "norm.num_batches_tracked": torch.tensor(step),
        "positions": torch.arange(4) + step,
    }
    slots = {
        "symbol.weight": {
            "exp_avg": torch.full((5, numbers), step / 2),
            "exp_avg_sq": torch.full((5, numbers), step / 4),
            "step": torch.tensor(step),
        }
    }
    return Contents(Tied(numbers), state, TIES, slots, {"a>b": b"\0\1"} if coders is None else coders)


def is_of_step(state: Mapping[str, Tensor], step: int) -> bool:
    """Whether the state is that of `contents_of`, for this step, with the tie under both names."""
    return (
        bool((state["symbol.weight"] == step).all())
        and state["head.weight"] is state["symbol.weight"]
        and int(state["norm.num_batches_tracked"]) == step
    )


def encoded(record: CheckpointRecord) -> bytes:
    """As in `checkpoint.json`."""
    return msgspec.json.encode(record)
