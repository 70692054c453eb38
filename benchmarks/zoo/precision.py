"""A model that computes in bfloat16 where its author said so: the casts are nodes of the graph."""

from __future__ import annotations

import torch
from benchmarks.zoo.batches import tokens
from benchmarks.zoo.case import Case, seeded
from benchmarks.zoo.gpt import config
from examples.gpt import GPT
from torch import Tensor


class AutocastGPT(GPT):
    """The example's GPT under autocast; the loss is computed in float32."""

    def logits(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = super().logits(tokens)
        return scores.float()


CASES = [
    Case(
        "gpt-autocast",
        seeded(lambda: AutocastGPT(config())),
        tokens,
        tolerance=2e-2,
        notes="bfloat16 under autocast, parameters in float32: crossing values have half the bytes.",
    )
]
