"""The example's GPT with its lower half frozen."""

from __future__ import annotations

from benchmarks.zoo.batches import tokens
from benchmarks.zoo.case import Case, seeded
from benchmarks.zoo.gpt import config
from examples.gpt import GPT

BLOCKS, FROZEN = 4, 2


def _model() -> GPT:
    model = GPT(config(layers=BLOCKS))
    model.symbol.requires_grad_(False)
    model.blocks[:FROZEN].requires_grad_(False)
    return model


HALF_FROZEN = Case("gpt-half-frozen", seeded(_model), tokens)
