"""A Llama of 1.1 billion parameters with a base of 4 bits, fine-tuned with LoRA by four local workers.

The shape is TinyLlama's. Its weights are random: they are written in bfloat16, shard by shard, and no process
ever holds the whole model. Workers fetch the slices of their own segments by URL, quantize them as they come,
and train the adapter. For each worker the peak of its process stands beside what it said that its part of the
plan needs. What the process held before, when it had trained a tiny model of the same kind, does not count.
Exits 1 if a worker is more than 10 % off, or all processes together took more than 20 GiB.

    python -m benchmarks.quantized_base [--json] [--quick] [--layers 22] [--quantize int8|nf4] [--folder F]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, whole

import farflung
from farflung.client.capture.prepared import prepare
from farflung.client.output.progress import Observer
from farflung.client.output.run_folder import RunFolder
from farflung.client.run.broker_client import ask_status
from farflung.client.run.submitter import Submitter
from farflung.localhost.fleet import LocalFleet
from farflung.weights.files import INDEX

WORKERS = 4
MOST_BYTES = 20 * 2**30
MOST_OFF = 0.10
BLOCK = 2**20
SHARD = "model-{:05d}.safetensors"
_NEEDS = re.compile(r"this worker's part needs ([\d,]+) bytes")


@dataclass(frozen=True)
class Shape:
    """A Llama, and the batches that it is trained on: of `batch` texts, one a microbatch."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    tokens: int
    batch: int = 4

    def config(self) -> LlamaConfig:
        """As transformers has it."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            use_cache=False,
        )


TINY_LLAMA = Shape(22, 2048, 5632, 32, 4, 32_000, 256)
QUICK = Shape(4, 512, 1408, 8, 2, 4_000, 128)
WARM = Shape(4, 128, 192, 4, 2, 64, 16)


class Words:
    """Texts of random words."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        words = torch.randint(self._shape.vocabulary, (self._shape.tokens,), generator=generator)
        return {"input_ids": words, "labels": words}


def bare(shape: Shape) -> Any:
    """The model on the meta device, but for its rotary table, which is in no file."""
    with torch.device("meta"):
        model = LlamaForCausalLM(shape.config())
    model.model.rotary_emb = type(model.model.rotary_emb)(shape.config())
    return model


def write_weights(shape: Shape, folder: Path) -> int:
    """Write random weights as Hugging Face saves them, a shard for each layer; returns their bytes."""
    folder.mkdir(parents=True)
    block = (torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    listed: dict[str, str] = {}
    size = 0
    for number, names in enumerate(_shards(bare(shape))):
        tensors = {
            name: torch.ones(kind, dtype=torch.bfloat16)
            if len(kind) == 1
            else _matrix(block.roll(101 * len(listed) + at), kind)
            for at, (name, kind) in enumerate(names.items())
        }
        save_file(tensors, folder / SHARD.format(number))
        listed |= dict.fromkeys(names, SHARD.format(number))
        size += sum(one.nbytes for one in tensors.values())
    (folder / INDEX).write_text(json.dumps({"weight_map": listed}))
    return size


def _matrix(block: Tensor, kind: torch.Size) -> Tensor:
    """The same random values again and again: a matrix of new ones takes minutes on a busy machine."""
    return block.repeat(-(-kind.numel() // len(block)))[: kind.numel()].view(kind)


def _shards(model: nn.Module) -> Iterator[dict[str, torch.Size]]:
    """Names and shapes of the parameters, by layer."""
    found: dict[str, dict[str, torch.Size]] = {}
    for name, parameter in model.named_parameters():
        layer = ".".join(name.split(".")[:3])
        found.setdefault(layer, {})[name] = parameter.shape
    yield from found.values()


def adapted(shape: Shape) -> Any:
    """The bare model with an adapter that has values."""
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(bare(shape), config)
    torch.manual_seed(0)
    for name, parameter in list(model.named_parameters()):
        if parameter.requires_grad:
            values = torch.zeros if "lora_B" in name else lambda kind: torch.randn(kind) * 0.02
            layer = model.get_submodule(name.rpartition(".")[0])
            layer.weight = nn.Parameter(values(tuple(parameter.shape)))
    return model


def job_of(shape: Shape, quantize: str, url: str, steps: int = 2) -> farflung.Job:
    """Train the adapter for a few steps."""
    return farflung.Job(
        model=adapted(shape),
        data=Words(shape),
        optimizer=farflung.AdamW(lr=1e-4),
        batch=shape.batch,
        microbatches=shape.batch,
        steps=steps,
        weights=url,
        quantize=quantize,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class WorkerMemory:
    """Bytes of one worker: what it said that its part needs, what its process took, and held idle before."""

    worker: str
    said_bytes: int
    peak_bytes: int
    idle_bytes: int

    @property
    def off(self) -> float:
        """How far what it said is from what it took."""
        return self.said_bytes / self.peak_bytes - 1


@dataclass(frozen=True)
class Result:
    """One run. `together_bytes` are the peaks of all processes, the submitter's included, idle parts too."""

    quantize: str
    parameters: int
    stored_bytes: int
    base_fetched_bytes: int
    loading_bytes: int
    loading_seconds: float
    step_seconds: float
    losses: list[float]
    together_bytes: int
    submitter_bytes: int
    workers: list[WorkerMemory]

    @property
    def is_ok(self) -> bool:
        """Whether it is what this program is to show."""
        return self.together_bytes <= MOST_BYTES and all(abs(one.off) <= MOST_OFF for one in self.workers)


async def measure(shape: Shape, quantize: str, folder: Path, steps: int = 2) -> Result:
    """Write both models, start a fleet, train the tiny one and then the other."""
    warm, weights = folder / "warm", folder / "weights"
    write_weights(WARM, warm)
    stored = write_weights(shape, weights)
    mine = psutil.Process()
    _forget_peak(mine)
    logs = folder / "logs"
    memory, bases = MOST_BYTES // WORKERS, [f"file://{folder}"]
    async with LocalFleet(WORKERS, logs, memory, bases=bases) as fleet:
        await _registered(fleet)
        processes = [psutil.Process(await child.process_id()) for child in fleet.workers]
        await _train(fleet, job_of(WARM, quantize, f"file://{warm}"), folder / "warm-run")
        await asyncio.sleep(1.0)
        for process in processes:
            _forget_peak(process)
        idle = [process.memory_info().rss for process in processes]
        job = job_of(shape, quantize, f"file://{weights}", steps)
        summary, rows, running = await _train(fleet, job, folder / "run")
        peaks = [_peak(process) for process in processes]
    said = [_said(logs / f"worker-{number}.log") for number in range(WORKERS)]
    return Result(
        quantize=quantize,
        parameters=sum(one.numel() for one in job.model.parameters()),
        stored_bytes=stored,
        base_fetched_bytes=running["base_fetched_bytes"],
        loading_bytes=summary["loading_bytes"],
        loading_seconds=summary["loading_seconds"],
        step_seconds=statistics.median(row["seconds"] for row in rows),
        losses=[row["loss"] for row in rows],
        together_bytes=sum(peaks) + _peak(mine),
        submitter_bytes=_peak(mine),
        workers=[
            WorkerMemory(f"worker-{number}", said[number], peaks[number] - idle[number], idle[number])
            for number in range(WORKERS)
        ],
    )


async def _registered(fleet: LocalFleet) -> None:
    for _ in range(300):
        if len((await ask_status(fleet.identity)).workers) == WORKERS:
            return
        await asyncio.sleep(0.5)
    raise SystemExit(f"not all workers registered: see {fleet.logs}")


async def _train(fleet: LocalFleet, job: farflung.Job, folder: Path) -> tuple[Any, list[Any], Any]:
    """Run a job on all workers: its summary, its rows, and the event with which it began to run."""
    run = RunFolder.create(folder)
    prepared = await asyncio.to_thread(prepare, job)
    try:
        await Submitter(prepared, fleet.identity, run, Observer(), WORKERS).run()
    finally:
        run.close()
    rows, events = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "events.jsonl")
    )
    running = [event for event in events if event.get("event") == "running"]
    return json.loads((folder / "summary.json").read_text()), rows, running[0]


def _said(log: Path) -> int:
    """What a worker said last that its part needs."""
    return int(_NEEDS.findall(log.read_text())[-1].replace(",", ""))


def _forget_peak(process: psutil.Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _peak(process: psutil.Process) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def lines(result: Result) -> Iterator[str]:
    """For people."""
    yield (
        f"{result.parameters / 1e6:,.0f} M parameters, {result.stored_bytes / 1e9:.2f} GB stored,"
        f" {result.quantize}: workers fetched {result.base_fetched_bytes / 1e6:,.0f} MB of codes,"
        f" {result.loading_bytes / 1e6:,.0f} MB came from here, in {result.loading_seconds:.0f} s"
    )
    yield f"{result.step_seconds:.0f} s a step, losses {', '.join(f'{one:.4f}' for one in result.losses)}"
    for one in result.workers:
        yield (
            f"{one.worker}: said {one.said_bytes / 1e6:,.0f} MB, took {one.peak_bytes / 1e6:,.0f} MB"
            f" ({one.off:+.1%}) beside {one.idle_bytes / 1e6:,.0f} MB idle"
        )
    yield (
        f"all processes {result.together_bytes / 2**30:.2f} GiB, of which here"
        f" {result.submitter_bytes / 2**30:.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a shape of 15 million parameters")
    parser.add_argument(
        "--layers", type=whole, default=TINY_LLAMA.layers, help="fewer take a small machine less"
    )
    parser.add_argument("--quantize", choices=("int8", "nf4"), default="nf4")
    parser.add_argument("--folder", type=folder_path, help="where 2.2 GB of weights go for a while")
    parser.add_argument("--steps", type=whole, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = QUICK if options.quick else replace(TINY_LLAMA, layers=options.layers)
    with tempfile.TemporaryDirectory(prefix="farflung-bench-", dir=options.folder) as name:
        result = asyncio.run(measure(shape, options.quantize, Path(name), options.steps))
    if options.json:
        rows = [{**asdict(one), "off": one.off} for one in result.workers]
        print(json.dumps({**asdict(result), "workers": rows, "ok": result.is_ok}))
    else:
        print("\n".join(lines(result)))
    return 0 if result.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
