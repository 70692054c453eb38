"""What a quantized base does to the loss of a real model: SmolLM2-135M-Instruct, fine-tuned with LoRA.

The job is `examples/finetune_smollm2.py`. It trains in one process, once on each base: in float32 (the model
as the example has it), in bfloat16 (what `.to(torch.bfloat16)` makes of it), and with the matrices that
`Job(quantize=)` would quantize replaced by what their codes stand for, as workers compute with them. The
loss is that of the held-out set, or of its first `--items`, over the answers alone. Exits 1 if a quantized
base ends more than 1 % above bfloat16.

    python -m benchmarks.quantized_loss [--json] [--steps 20] [--items 88] [--bases NAME ...]
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import whole

from farflung.client.api.job import Job
from farflung.client.api.load import load_job
from farflung.client.capture.check import capture_shapes
from farflung.client.capture.quantizing import dequantized_copy, quantized_matrices
from farflung.client.run.microbatches import Microbatches
from farflung.opdag.graph import Graph
from farflung.quantization import FORMATS
from farflung.runtime.parity.eager import Reference

EXAMPLE = Path(__file__).parents[1] / "examples/finetune_smollm2.py"
BASES = ("float32", "bfloat16", *FORMATS)
MOST_ABOVE = 0.01
NOT_COUNTED = -100
AT_ONCE = 22


@dataclass(frozen=True)
class Row:
    """The held-out loss on one base before and after training, and how long a step took."""

    base: str
    before: float
    after: float
    seconds_per_step: float


def with_base(job: Job, base: str) -> nn.Module:
    """A copy of the job's model on that base."""
    if base in FORMATS:
        quantization = capture_shapes(replace(job, quantize=base)).quantization  # type: ignore[arg-type]
        return dequantized_copy(job.model, quantized_matrices(job.model, quantization), quantization)
    module = copy.deepcopy(job.model)
    for parameter in module.parameters():
        if base == "bfloat16" and not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    return module


def held_out_loss(module: nn.Module, items: Any) -> float:
    """The mean loss of all counted tokens."""
    module.eval()
    total, counted = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(items), AT_ONCE):
            part = [items[at] for at in range(start, min(start + AT_ONCE, len(items)))]
            batch = {name: torch.stack([item[name] for item in part]) for name in part[0]}
            count = int((batch["labels"][:, 1:] != NOT_COUNTED).sum())
            total += float(module(**batch).loss) * count
            counted += count
    module.train()
    return total / counted


def measure(job: Job, graph: Graph, base: str, held_out: Sequence[Any]) -> Row:
    """Train on one base, with the same batches as on any other."""
    module = with_base(job, base)
    loss_of: Callable[[Any], Tensor] = lambda batch: module(**batch).loss  # noqa: E731
    before = held_out_loss(module, held_out)
    reference, loader = Reference(module, loss_of, graph, job.training()), Microbatches(job, graph)
    units = [unit for unit in job.training().units() if unit.train]
    began = time.process_time()
    for unit in units:
        reference.accumulate([microbatch.tensors for microbatch in loader.load_unit(unit)])
        reference.apply()
    seconds = (time.process_time() - began) / max(1, len(units))
    return Row(base, before, held_out_loss(module, held_out), seconds)


def lines(rows: list[Row]) -> Iterator[str]:
    """For people."""
    (half,) = (row for row in rows if row.base == "bfloat16")
    for row in rows:
        before, after = row.before / half.before - 1, row.after / half.after - 1
        yield (
            f"{row.base:9s} held-out loss {row.before:.4f} ({before:+.2%}), after training {row.after:.4f}"
            f" ({after:+.2%}); {row.seconds_per_step:.1f} s of CPU a step"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=whole, default=20)
    parser.add_argument("--items", type=whole, help="of the held-out set; all by default")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=BASES, help="bfloat16 is always there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = replace(load_job(EXAMPLE), steps=options.steps)
    graph = capture_shapes(job).graph
    held_out: Any = job.validation
    held_out = [held_out[at] for at in range(min(len(held_out), options.items or len(held_out)))]
    rows = []
    for base in (base for base in BASES if base in ("bfloat16", *options.bases)):
        rows.append(measure(job, graph, base, held_out))
        print(rows[-1], file=sys.stderr, flush=True)
    (half,) = (row for row in rows if row.base == "bfloat16")
    quantized = [row for row in rows if row.base in FORMATS]
    ok = all(row.after <= half.after * (1 + MOST_ABOVE) for row in quantized)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "ok": ok}))
    else:
        print("\n".join(lines(rows)))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
