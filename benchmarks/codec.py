"""What codecs do to real activations and gradients, and how fast, beside memcpy, zstd and `torch.topk`.

    python benchmarks/codec.py [--folder runs/captured] [--sizes 1 4 16] [--json]

Tensors come from a GPT and a ResNet that this trains once (`benchmarks/captured.py`) and keeps in the
folder. One core; CPU time, of which the least of some repeats is told. Exits 1 if a limit of the project is
missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, whole
from benchmarks.captured import Captured, captured

from farflung.codec import (
    Axes,
    Bfloat16,
    Blocked,
    Codec,
    Context,
    Hadamard,
    Lossless,
    Mask,
    Masked,
    Recipe,
    Reference,
    ScalarQuantizer,
    TopK,
)

MILLION = 2**20
STEPS = 16
"""What is remembered is learned from so many pieces, of which the last is told."""
LEARNED = 2
"""Steps after which axes are in use."""

CODECS: dict[str, Codec] = {
    "bfloat16": Bfloat16(),
    "bfloat16, lossless": Lossless(Bfloat16()),
    "int8": Blocked(8),
    "int4": Blocked(4),
    "int4, stochastic": Blocked(4, stochastic=True),
    "hadamard 4, least error": Hadamard(4, fresh=False, unbiased=False),
    "hadamard 4": Hadamard(4),
    "hadamard 3": Hadamard(3),
    "hadamard 2": Hadamard(2),
    "hadamard 1": Hadamard(1),
    "even 30 %": ScalarQuantizer(0.3),
    "even 100 %, dithered": ScalarQuantizer(1.0, dithered=True),
    "topk 1 %": TopK(0.01),
    "topk 10 %": TopK(0.1),
    "topk 30 % of rows, int4": TopK(0.3, rows=True, values=Blocked(4)),
    "topk 20 % of rows, int4": TopK(0.2, rows=True, values=Blocked(4)),
}
MASKED = "masked 20 %, int4 stochastic"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One codec on one tensor; GB of float32 a CPU second. `index_bits`: of indices, over their entropy."""

    model: str
    tensor: str
    elements: int
    codec: str
    ratio: float
    relative_error: float
    cosine: float
    encode_gbps: float
    decode_gbps: float
    index_bits: float | None = None


@dataclass(frozen=True)
class Yardstick:
    """What others take for one tensor."""

    model: str
    tensor: str
    elements: int
    memcpy_gbps: float
    torch_topk_seconds: float
    our_topk_seconds: float
    zstd_ratio: float
    zstd_gbps: float


@dataclass(frozen=True)
class Goal:
    """A limit of the project: the worst of all tensors of the largest size."""

    name: str
    wanted: float
    found: float
    met: bool


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=folder_path, default=Path("runs/captured"))
    parser.add_argument("--sizes", type=whole, nargs="+", default=[1, 4, 16], metavar="MILLIONS")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    yardsticks: list[Yardstick] = []
    for model in captured(options.folder, max(options.sizes) * MILLION):
        for size in sorted(options.sizes):
            for row in _measured(model, size * MILLION):
                _tell(row, options.json)
                (rows if isinstance(row, Row) else yardsticks).append(row)  # type: ignore[attr-defined]
        for row in _learned(model):
            _tell(row, options.json)
            rows.append(row)
    goals = _goals(rows, yardsticks, max(options.sizes) * MILLION)
    if options.json:
        print(json.dumps({name: [asdict(one) for one in found] for name, found in (
            ("rows", rows), ("yardsticks", yardsticks), ("goals", goals)
        )}, indent=1))  # fmt: skip
    else:
        for goal in goals:
            print(
                f"{'met   ' if goal.met else 'MISSED'} {goal.name}: {goal.found:.3g}, wanted {goal.wanted:g}"
            )
    sys.exit(0 if all(goal.met for goal in goals) else 1)


def _measured(model: Captured, elements: int) -> Iterator[Row | Yardstick]:
    whole = {"activation": model.activation, "gradient": model.gradient}
    tensors = {name: _first(array, elements) for name, array in whole.items()}
    for name, tensor in tensors.items():
        yield _yardstick(model.model, name, tensor)
        for codec_name, codec in CODECS.items():
            yield _row(model.model, name, codec_name, codec, tensor, Context(seed=1))
    mask = CODECS["topk 20 % of rows, int4"].encode(tensors["activation"], Context(seed=1)).mask
    masked = Masked(0.2, Blocked(4, stochastic=True))
    yield _row(model.model, "gradient", MASKED, masked, tensors["gradient"], Context(seed=2, mask=mask))


def _first(array: np.ndarray, elements: int) -> np.ndarray:
    """Whole samples of about so many elements."""
    return array[: max(1, elements // array[0].size)]


def _row(model: str, name: str, codec_name: str, codec: Codec, tensor: np.ndarray, context: Context) -> Row:
    encoding, encoded = _least(lambda: codec.encode(tensor, context))
    payload, read = encoded.joined(), np.empty_like(tensor)
    decoding, _ = _least(lambda: codec.decode(payload, read, context))
    error, cosine = _quality(tensor, read)
    index_bits = _index_bits(codec, len(payload), encoded.mask) if isinstance(codec, TopK) else None
    gigabytes = tensor.nbytes / 1e9
    return Row(
        model, name, tensor.size, codec_name, tensor.nbytes / len(payload), error, cosine,
        gigabytes / encoding, gigabytes / decoding, index_bits,
    )  # fmt: skip


def _quality(tensor: np.ndarray, read: np.ndarray) -> tuple[float, float]:
    """Relative error and cosine, added up in float64."""
    given, got = tensor.reshape(-1).astype(np.float64), read.reshape(-1).astype(np.float64)
    sizes = np.linalg.norm(given), np.linalg.norm(got)
    return float(np.linalg.norm(got - given) / sizes[0]), float(given @ got / (sizes[0] * sizes[1]))


def _index_bits(codec: TopK, payload: int, mask: Mask | None) -> float | None:
    """Bits of indices over the entropy of so many places drawn at random."""
    if mask is None:
        return None
    values = codec.values.encode(np.ones(mask.count, np.float32)).nbytes
    share = mask.count / mask.elements
    entropy = -mask.elements * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return float(8 * (payload - values) / entropy)


def _yardstick(model: str, name: str, tensor: np.ndarray) -> Yardstick:
    flat = torch.from_numpy(tensor.reshape(-1))
    count, copy, gigabytes = tensor.size // 100, np.empty_like(tensor), tensor.nbytes / 1e9
    copying, _ = _least(lambda: np.copyto(copy, tensor))
    selecting, _ = _least(lambda: torch.topk(flat.abs(), count), repeats=2)
    ours, _ = _least(lambda: CODECS["topk 1 %"].encode(tensor))
    pressing, compress = _least(lambda: zstandard.ZstdCompressor(level=1).compress(tensor.data), repeats=2)
    return Yardstick(
        model, name, tensor.size, gigabytes / copying, selecting, ours, tensor.nbytes / len(compress),
        gigabytes / pressing,
    )  # fmt: skip


def _learned(model: Captured) -> Iterator[Row]:
    """Recipes that remember, on a million elements after the `STEPS` million before (of four, in turn)."""
    width, hadamard = model.activation.shape[-1], CODECS["hadamard 4, least error"]
    if model.keys is not None:
        mean = Recipe(hadamard, Reference(256, width))  # type: ignore[arg-type]
        yield _after_steps(model, "activation", "token mean, hadamard 4, least error", mean)
        for step in (0.1, 0.3):
            both = Recipe(ScalarQuantizer(step), Reference(256, width), Axes())
            yield _after_steps(model, "activation", f"token mean, axes {step * 100:.0f} %", both)
    for step in (0.1, 0.3):
        yield _after_steps(
            model, "activation", f"axes {step * 100:.0f} %", Recipe(ScalarQuantizer(step), axes=Axes())
        )
    for step in (0.5, 1.0):
        recipe = Recipe(ScalarQuantizer(step, dithered=True), axes=Axes())
        yield _after_steps(model, "gradient", f"axes {step * 100:.0f} %, dithered", recipe)


def _after_steps(model: Captured, name: str, codec: str, recipe: Recipe) -> Row:
    whole = getattr(model, name)
    writer, reader = recipe.coder(), recipe.coder()
    samples = max(1, MILLION // whole[0].size)
    encodings, decodings = [], []
    for step in range(STEPS):
        first = step % max(1, len(whole) // samples) * samples
        at = slice(first, first + samples)
        tensor, keys = whole[at], model.keys[at] if model.keys is not None else None
        context, read = Context(seed=step, keys=keys), np.empty_like(tensor)
        encoding, encoded = _least(lambda t=tensor, c=context: writer.encode(t, c), repeats=1)
        payload = encoded.joined()
        decoding, _ = _least(lambda p=payload, r=read, c=context: reader.decode(p, r, c), repeats=1)
        if step >= LEARNED:
            encodings.append(encoding)
            decodings.append(decoding)
        writer.commit()
        reader.commit()
    error, cosine = _quality(tensor, read)
    gigabytes = tensor.nbytes / 1e9
    return Row(
        model.model, name, tensor.size, codec, tensor.nbytes / len(payload), error, cosine,
        gigabytes / min(encodings), gigabytes / min(decodings),
    )  # fmt: skip


def _least(work: Callable[[], Result], repeats: int = 4) -> tuple[float, Result]:
    """The least CPU seconds that it took, and what it gave last."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return max(min(seconds), 1e-9), result


def _goals(rows: Sequence[Row], yardsticks: Sequence[Yardstick], elements: int) -> list[Goal]:
    large = [row for row in rows if row.elements > 0.9 * elements]
    speeds = {
        name: min(min(row.encode_gbps, row.decode_gbps) for row in large if row.codec == name)
        for name in ("int8", "hadamard 4")
    }
    faster = min(y.torch_topk_seconds / y.our_topk_seconds for y in yardsticks if y.elements > 0.9 * elements)
    index_bits = max(row.index_bits for row in large if row.index_bits is not None)
    return [
        Goal("int8, GB/s", 3.0, speeds["int8"], speeds["int8"] >= 3.0),
        Goal("hadamard 4, GB/s", 1.0, speeds["hadamard 4"], speeds["hadamard 4"] >= 1.0),
        Goal("topk 1 % encoded, times as fast as torch.topk", 10.0, faster, faster >= 10.0),
        Goal("bits of indices over their entropy, at most", 1.05, index_bits, index_bits <= 1.05),
    ]


def _tell(row: Row | Yardstick, quiet: bool) -> None:
    where = f"{row.model:6s} {row.tensor:10s} {row.elements / MILLION:4.0f}M"
    if isinstance(row, Row):
        bits = f"  indices {row.index_bits:.3f}" if row.index_bits else ""
        text = (
            f"{row.codec:36s} ratio {row.ratio:6.2f}  error {row.relative_error:.4f}  cosine {row.cosine:.4f}"
            f"  encode {row.encode_gbps:5.2f}  decode {row.decode_gbps:5.2f} GB/s{bits}"
        )
    else:
        text = (
            f"memcpy {row.memcpy_gbps:.1f} GB/s, torch.topk {row.torch_topk_seconds * 1e3:.0f} ms, "
            f"ours encoded {row.our_topk_seconds * 1e3:.1f} ms, "
            f"zstd {row.zstd_ratio:.2f}x at {row.zstd_gbps:.2f} GB/s"
        )
    print(f"{where} {text}", file=sys.stderr if quiet else sys.stdout, flush=True)


if __name__ == "__main__":
    main()
