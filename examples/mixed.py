"""One model on two frameworks: some of its segments run on PyTorch, the others on JAX.

`farflung train examples/mixed.py --local 4 --backends torch,jax` trains the small GPT of `gpt.py` on four
workers, every other one on JAX. `python examples/mixed.py` trains it twice, on torch alone and on both, and
prints how far the losses are apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import farflung
from gpt import GPT, Config

CONFIG = Config(sequence=64, layers=4, width=64)
STEPS = 100
WORKERS = 4


def job() -> farflung.Job:
    """What `farflung train` runs."""
    torch.manual_seed(0)
    return farflung.Job(
        model=GPT(CONFIG),
        data=farflung.data.text("train", sequence=CONFIG.sequence),
        # At 3e-3 rounding is magnified: torch alone, with weights moved by 1e-7 of themselves, is 4e-2 apart.
        optimizer=farflung.AdamW(lr=1e-3),
        batch=16,
        microbatches=4,
        steps=STEPS,
    )


def losses(backends: str, folder: Path) -> list[float]:
    """The loss of every step of a run on local workers with these backends."""
    command = ["train", __file__, "--local", str(WORKERS), "--backends", backends, "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "farflung", *command], check=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def main() -> None:
    """Train twice and compare."""
    with tempfile.TemporaryDirectory() as folder:
        alone = losses("torch", Path(folder, "torch"))
        mixed = losses("torch,jax", Path(folder, "mixed"))
    print("step   torch    torch and JAX   apart (relative)")
    apart = [abs(a - b) / b for a, b in zip(mixed, alone, strict=True)]
    for step in sorted({1, *range(STEPS // 5, STEPS, STEPS // 5), STEPS}):
        print(f"{step:4d}   {alone[step - 1]:.5f}  {mixed[step - 1]:.5f}         {apart[step - 1]:.1e}")
    print(f"the farthest apart of {STEPS} steps: {max(apart):.1e}")


if __name__ == "__main__":
    main()
