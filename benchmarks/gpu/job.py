"""GPT-2 with 124M parameters on random tokens: the job that `processes` trains for some steps."""

from __future__ import annotations

import torch
from benchmarks.gpu.runner import GPT2, model
from torch import Tensor

import farflung

STEPS, MICROBATCHES, SAMPLES = 24, 8, 16


class RandomTokens:
    """As many samples as a run of `STEPS` steps takes."""

    def __len__(self) -> int:
        return STEPS * MICROBATCHES * SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, GPT2.symbols, (GPT2.sequence,), generator=drawn)
        return {"input_ids": tokens, "labels": tokens}


def job() -> farflung.Job:
    """Trains in bfloat16 as under autocast, with AdamW."""
    return farflung.Job(
        model=model(GPT2),
        data=RandomTokens(),
        optimizer=farflung.AdamW(lr=1e-4),
        batch=SAMPLES * MICROBATCHES,
        microbatches=MICROBATCHES,
        steps=STEPS,
        precision="bfloat16",
    )
