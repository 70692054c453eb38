"""What codecs do to the hidden states of a pretrained model: SmolLM2-135M, frozen, cut behind two blocks.

    python benchmarks/pretrained_codecs.py bf16 int8 axes10

Needs what `examples/finetune_smollm2.py` needs. Two boundaries write activations, as where four workers train
adapters of the upper half alone; nothing is trained here. Codecs that learn see `LEARNED` batches first. Told
are the bits of an element and the relative error at each boundary, the loss of the answers, and by how much a
row's log-likelihood changes, which is what DPO compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.finetune_smollm2 import Answers, lessons, pretrained
from torch import Tensor, nn

from farflung.codec import Coder, Context
from farflung.codec.catalogue import recipe
from farflung.objectives.log_likelihood import log_likelihoods

BLOCKS = (7, 15)
"""The blocks behind whose output is cut, of 30."""
LEARNED, MEASURED, ROWS = 2, 3, 8
"""Batches before those that are measured, batches that are, and rows of each."""


@dataclass
class Boundary:
    """Both ends of a link, and what it wrote since measuring began."""

    value: int
    writer: Coder
    reader: Coder
    bits: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def carry(self, hidden: Tensor, step: int) -> Tensor:
        """What the other end reads."""
        sent = hidden.contiguous().numpy()
        context = Context.at(0, step, 0, self.value, train=True, gradient=False, target=1)
        payload, read = self.writer.encode(sent, context).joined(), np.empty_like(sent)
        self.reader.decode(payload, read, context)
        self.writer.commit()
        self.reader.commit()
        if step >= LEARNED:
            self.bits.append(8 * len(payload) / sent.size)
            self.errors.append(float(np.linalg.norm(read - sent) / np.linalg.norm(sent)))
        return torch.from_numpy(read)


@contextmanager
def crossing(blocks: nn.ModuleList, carry: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Give on what `carry` makes of a block's output."""

    def behind(number: int) -> Callable[[nn.Module, Any, Any], Any]:
        return lambda block, given, made: (
            (carry(number, made[0]), *made[1:]) if isinstance(made, tuple) else carry(number, made)
        )

    handles = [blocks[number].register_forward_hook(behind(number)) for number in BLOCKS]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def batch(answers: Answers, number: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of one batch, int64 (rows, length)."""
    items = [answers[number * ROWS + at] for at in range(ROWS)]
    tokens, labels = (torch.stack([item[name] for item in items]) for name in ("input_ids", "labels"))
    return tokens, labels


@torch.no_grad()
def likelihoods(model: Any, tokens: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """The log-likelihood of each row's answer, in nats, and the number of their tokens."""
    return log_likelihoods(model(input_ids=tokens).logits, labels), int((labels[:, 1:] >= 0).sum())


def main(names: list[str]) -> None:
    """Print one line for each codec."""
    torch.set_num_threads(1)
    model, tokenizer = pretrained()
    model.eval()
    answers = Answers(tokenizer, list(lessons().items()))
    batches = [batch(answers, number) for number in range(LEARNED + MEASURED)]
    exact = [likelihoods(model, *one) for one in batches[LEARNED:]]
    counted = sum(count for _, count in exact)
    dense = torch.cat([found for found, _ in exact])
    tell("dense", dense, counted, f"{-float(dense.mean()):.1f} nats a row")
    for name in names:
        found, ends = coded(model, batches, name)
        change = f"{float((found - dense).abs().mean()):.3f} nats a row"
        written = (f"{np.mean(end.bits):.2f} bits, error {np.mean(end.errors):.4f}" for end in ends)
        tell(name, found, counted, ", ".join([change, *written]))


def coded(model: Any, batches: list[tuple[Tensor, Tensor]], name: str) -> tuple[Tensor, list[Boundary]]:
    """The likelihoods of the measured rows with a codec, and the boundaries."""
    chosen, width = recipe(name), model.config.hidden_size
    ends = {block: Boundary(block, chosen.coder(width), chosen.coder(width)) for block in BLOCKS}
    rows = []
    for step, one in enumerate(batches):
        with crossing(model.model.layers, lambda block, hidden, at=step: ends[block].carry(hidden, at)):
            rows.append(likelihoods(model, *one)[0])
    return torch.cat(rows[LEARNED:]), list(ends.values())


def tell(name: str, found: Tensor, counted: int, more: str) -> None:
    """One line, with the mean loss of the answers' tokens."""
    print(f"{name}: loss {-float(found.sum()) / counted:.4f}, {more}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
