"""A GPT for trying fleets: 48 blocks on the meta device, so it has shapes and not one weight.

`farflung lab run examples/fleet.py --topology fusionllm-48 --emulate-devices` sends what 48 workers would
send and takes the time that they would take. Nothing is learned: only emulated devices can run it.
"""

from __future__ import annotations

import torch
from torch import Tensor

import farflung
from gpt import GPT, Config

CONFIG = Config(symbols=50_257, sequence=256, layers=48, heads=12, width=768)


class Tokens:
    """Numbers that look like a text's: what they are does not matter, nothing is learned."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        text = (torch.arange(CONFIG.sequence + 1) * 7919 + index) % CONFIG.symbols
        return {"tokens": text[:-1], "targets": text[1:]}


def job() -> farflung.Job:
    """What `farflung lab run` captures and emulates: 417 million parameters, 8 microbatches of one sample."""
    with torch.device("meta"):
        model = GPT(CONFIG)
    return farflung.Job(
        model=model, data=Tokens(), optimizer=farflung.AdamW(lr=3e-4), batch=8, microbatches=8, steps=5
    )
