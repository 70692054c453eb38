"""Models by name, captured on the meta device and kept as graphs under `runs/graphs`.

A capture takes seconds (`python -m benchmarks.models.library` times each and says how much memory it took), a
kept graph 0.1. What is kept belongs to one opset and one version of the module's source.
"""

from __future__ import annotations

import hashlib
import inspect
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from benchmarks.models import bert, gpt, resnet, vit
from torch import Tensor, nn

from farflung.files import write_atomically
from farflung.opdag import opset, wire
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.workload import Workload, workload_of

FOLDER = Path("runs/graphs")


@dataclass(frozen=True)
class Entry:
    """A model: `build()` makes it, `example(samples)` a batch for it; `precise` says what it is."""

    precise: str
    build: Callable[[], nn.Module]
    example: Callable[[int], dict[str, Tensor]]

    def source(self) -> str:
        """The text that makes the module, to know when a kept graph is old."""
        return repr(self.precise) + "".join(inspect.getsource(part) for part in (bert, gpt, resnet, vit))


def tokens(sequence: int, symbols: int) -> Callable[[int], dict[str, Tensor]]:
    """Random symbols and targets."""

    def example(samples: int) -> dict[str, Tensor]:
        drawn = torch.randint(0, symbols, (2, samples, sequence))
        return {"tokens": drawn[0].clone(), "targets": drawn[1].clone()}

    return example


def pictures(side: int, classes: int) -> Callable[[int], dict[str, Tensor]]:
    """Random pictures and their classes."""

    def example(samples: int) -> dict[str, Tensor]:
        return {
            "pictures": torch.randn(samples, 3, side, side),
            "classes": torch.randint(0, classes, (samples,)),
        }

    return example


def _sentences(sequence: int, symbols: int) -> Callable[[int], dict[str, Tensor]]:
    def example(samples: int) -> dict[str, Tensor]:
        return tokens(sequence, symbols)(samples) | {"sentences": torch.zeros(samples, sequence).long()}

    return example


def _gpt(precise: str, layers: int, width: int, heads: int, sequence: int, symbols: int = 50_257) -> Entry:
    sizes = gpt.Sizes(layers, width, heads, sequence, symbols)
    return Entry(precise, lambda: gpt.GPT(sizes), tokens(sequence, symbols))


def _bert(precise: str, sizes: bert.Sizes) -> Entry:
    return Entry(precise, lambda: bert.BERT(sizes), _sentences(sizes.sequence, sizes.symbols))


MODELS = {
    "gpt2-small": _gpt("GPT-2 124M, 1,024 symbols", 12, 768, 12, 1024),
    "gpt2-medium": _gpt("GPT-2 355M, 1,024 symbols", 24, 1024, 16, 1024),
    "gpt2-xl": _gpt("GPT-2 XL 1.56B, 1,024 symbols", 48, 1600, 25, 1024),
    "gpt-86": _gpt("a GPT of 86 layers of 1,024: 1.1B, 1,024 symbols", 86, 1024, 16, 1024),
    "gpt3-24": _gpt("GPT-3 XL 1.3B (24 layers of 2,048), 2,048 symbols", 24, 2048, 16, 2048),
    "bert-large": _bert("BERT-large 336M, 512 words", bert.Sizes(24, 1024, 16, 512)),
    "resnet-101": Entry(
        "ResNet-101 44.5M, 224 x 224",
        lambda: resnet.ResNet((3, 4, 23, 3), 1000),
        pictures(224, 1000),
    ),
    "vit-base": Entry(
        "ViT-B/16 86M, 224 x 224",
        lambda: vit.ViT(vit.Sizes(12, 768, 12, 224, 16)),
        pictures(224, 1000),
    ),
}


@cache
def graph_of(name: str) -> Graph:
    """The graph of the model called `name`: the kept one, or captured now."""
    entry = MODELS[name]
    text = f"{entry.source()}{wire.FORMAT_VERSION}{opset.schema_hash(opset.version())}{torch.__version__}"
    kept = FOLDER / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.msgpack"
    if kept.exists():
        return wire.load_graph(kept.read_bytes(), 2)
    with torch.device("meta"):
        module = entry.build()
        example = {name: tensor.to("meta") for name, tensor in entry.example(2).items()}
        graph = capture(module, example).graph
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, wire.dump(graph))
    return graph


def workload(name: str, microbatches: int, microbatch_size: int) -> Workload:
    """The workload of the model called `name`."""
    return workload_of(graph_of(name), microbatches, microbatch_size, name)


def main() -> None:
    """Capture every model anew and say what it took."""
    for name, entry in MODELS.items():
        for kept in FOLDER.glob(f"{name}-*.msgpack"):
            kept.unlink()
        begin = time.process_time()
        made = workload(name, 1, 1)
        seconds = time.process_time() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"{name:12s} {entry.precise:50s} {len(made):5d} nodes {made.parameter_bytes.sum() / 4e6:8.1f} M "
            f"parameters {made.flops.sum() / 1e9:8.1f} GFLOP forward a sample, captured in {seconds:4.1f} "
            f"CPU seconds, peak {peak:.0f} MB so far"
        )


if __name__ == "__main__":
    main()
