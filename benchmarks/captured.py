"""Real tensors for codecs: what crosses a boundary of a GPT and of a ResNet that were trained for a while.

The GPT reads the Python library's sources, the ResNet scikit-learn's scanned digits (both are on every
machine that can run this). Tensors are kept as `.npy` files under a folder, so that training happens once.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.models.resnet import ResNet
from examples.gpt import GPT, Config

import farflung
from farflung.files import write_atomically

BATCH = 16
GPT_CONFIG = Config(width=256)
GPT_STEPS, RESNET_STEPS = 120, 120
PICTURES, SIDE = 64, 64
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Captured:
    """An activation, its gradient, and of a language model the token of each row."""

    model: str
    activation: np.ndarray
    gradient: np.ndarray
    keys: np.ndarray | None


def captured(folder: Path, elements: int) -> list[Captured]:
    """At least so many elements of each; trained and kept under `folder` if they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_kept(folder, name, make, elements) for name, make in (("gpt", _gpt), ("resnet", _resnet))]


def _kept(folder: Path, name: str, make: Callable[[int], Captured], elements: int) -> Captured:
    paths = {part: folder / f"{name}-{elements}-{part}.npy" for part in ("activation", "gradient", "keys")}
    if not (paths["activation"].exists() and paths["gradient"].exists()):
        print(f"training {name} once, for {folder}", file=sys.stderr)
        made = make(elements)
        for part in ("keys", "gradient", "activation"):
            if (array := getattr(made, part)) is not None:
                _write(paths[part], array)
    keys = np.load(paths["keys"]) if paths["keys"].exists() else None
    return Captured(name, np.load(paths["activation"]), np.load(paths["gradient"]), keys)


def _write(path: Path, array: np.ndarray) -> None:
    written = io.BytesIO()
    np.save(written, array)
    write_atomically(path, written.getvalue())


def _gpt(elements: int) -> Captured:
    torch.manual_seed(0)
    model = GPT(GPT_CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
    text = farflung.data.text("train", sequence=GPT_CONFIG.sequence)
    batches = _text_batches(text)
    _train(model, optimizer, batches, GPT_STEPS)
    per_batch = BATCH * GPT_CONFIG.sequence * GPT_CONFIG.width
    boundary = model.blocks[GPT_CONFIG.layers // 2 - 1]
    return _capture("gpt", model, boundary, batches, -(-elements // per_batch), keys=True)


def _resnet(elements: int) -> Captured:
    torch.manual_seed(0)
    model = ResNet((2, 2, 2, 2), classes=10, width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = _digit_batches()
    _train(model, optimizer, batches, RESNET_STEPS)
    per_batch = PICTURES * 64 * (SIDE // 4) ** 2
    return _capture("resnet", model, model.layers[1], batches, -(-elements // per_batch), keys=False)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Batch], steps: int) -> None:
    for step in range(steps):
        loss = model(*next(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"  step {step}: loss {loss.item():.3f}", file=sys.stderr)


def _capture(
    name: str, model: nn.Module, boundary: nn.Module, batches: Iterator[Batch], count: int, keys: bool
) -> Captured:
    """Outputs of `boundary`, and their gradients, for `count` more batches."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        outputs.append(output)

    activations, gradients, tokens = [], [], []
    handle = boundary.register_forward_hook(keep)
    for _ in range(count):
        batch = next(batches)
        model(*batch).backward()
        output = outputs.pop()
        activations.append(output.detach().numpy())
        gradients.append(output.grad.numpy())  # type: ignore[union-attr]
        tokens.append(batch[0].numpy())
    handle.remove()
    return Captured(
        name, np.concatenate(activations), np.concatenate(gradients), np.concatenate(tokens) if keys else None
    )


def _text_batches(text: farflung.data.TextDataset) -> Iterator[Batch]:
    random = np.random.default_rng(0)
    while True:
        items = [text[int(index)] for index in random.integers(0, len(text), BATCH)]
        yield (
            torch.stack([item["tokens"] for item in items]),
            torch.stack([item["targets"] for item in items]),
        )


def _digit_batches() -> Iterator[Batch]:
    """Digits of 8 x 8 enlarged, in three equal colours."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("the ResNet trains on scikit-learn's digits: pip install scikit-learn")
    digits = load_digits()
    pictures = torch.from_numpy(digits.images.astype(np.float32))[:, None] / 8 - 1
    classes = torch.from_numpy(digits.target.astype(np.int64))
    random = np.random.default_rng(0)
    while True:
        chosen = torch.from_numpy(random.integers(0, len(classes), PICTURES))
        large = F.interpolate(pictures[chosen], size=(SIDE, SIDE), mode="bilinear")
        yield large.expand(-1, 3, -1, -1).contiguous(), classes[chosen]
