"""What codecs write: payloads of every family by its name, and snapshots of the coders that remember."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from farflung.codec import Context, Feedback, Recipe, TopK
from farflung.codec.catalogue import EXAMPLES, recipe
from farflung.opdag import wire
from farflung.plans import LinkCodec, Plan
from farflung.plans.codec_pair import CODEC_FORMAT, codebook_of
from farflung.runtime.coding import Coding
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Parcel
from farflung.runtime.training import Training

FILE = "coders.json"

ROWS, WIDTH, BATCH = 24, 16, 2
NAMES = (
    *EXAMPLES, "dense", "bf16", "int8", "int4", "hadamard1", "hadamard2", "hadamard3", "eden1", "eden3",
    "eden4", "even30", "even50-dithered", "topk5-bf16", "row-topk10-int8", "masked20-bf16", "dense+zstd",
    "int8+zstd",
)  # fmt: skip
LEARNING = ("axes20", "axes100-dithered", "token-mean:hadamard4", "token-mean:axes30")
RUNG = "token-mean:axes30/axes100-dithered"
SEGMENT = Path(__file__).parent.parent / "opdag" / "golden" / "v2" / "gpt.segment.opdag"
WORKERS = ("a", "b", "c")


def rows(seed: int) -> np.ndarray:
    """The tensor of that number, float32; the same on every machine."""
    counted = np.arange(ROWS * WIDTH, dtype=np.float64) * 37 + seed * 11
    return (((counted % 101) - 50) / 8 + (counted % 7)).astype(np.float32).reshape(ROWS, WIDTH)


def context(seed: int) -> Context:
    """Where that tensor stands in a run, with a key for each row."""
    return Context(seed, keys=(np.arange(ROWS) * 5 + seed) % 19)


def recipe_called(name: str) -> Recipe:
    """A recipe by its codec's name; error feedback has none."""
    return Recipe(TopK(0.1), Feedback()) if name == "feedback" else recipe(name)


def made() -> dict[str, Any]:
    """Today's payloads and snapshots."""
    return {
        "codec_format": CODEC_FORMAT,
        "payloads": {name: _written(name, 0) for name in NAMES},
        "snapshots": {name: _written(name, 3) for name in (*LEARNING, "feedback")},
        "worker": _worker(),
    }


def _written(name: str, steps: int) -> dict[str, str]:
    """After so many steps: the snapshot, the next payload, and the numbers that are read from it."""
    writer, reader = recipe_called(name).coder(WIDTH), recipe_called(name).coder(WIDTH)
    for step in range(steps):
        payload = writer.encode(rows(step), context(step)).joined()
        reader.decode(payload, np.empty_like(rows(step)), context(step))
        writer.commit()
        reader.commit()
    found = {"writer": writer.snapshot().hex(), "reader": reader.snapshot().hex()} if steps else {}
    payload, read = writer.encode(rows(steps), context(steps)).joined(), np.empty_like(rows(steps))
    reader.decode(payload, read, context(steps))
    return found | {"payload": bytes(payload).hex(), "read": read.tobytes().hex()}


def _worker() -> dict[str, str]:
    """What the worker in the middle of a chain of three remembers of its links after two steps."""
    plan = _plan()
    coding = worker_coding(plan)
    for step in range(2):
        for microbatch in range(2):
            for edge in plan.edges:
                if edge.differentiable and edge.source == 1:
                    numbers = _numbers(edge.bytes, step + microbatch)
                    parcel = Parcel(step, microbatch, 1, edge.target, edge.value, False, memoryview(numbers))
                    coding.encode(parcel)
        coding.decided(step, True)
    return {"plan": msgspec.json.encode(plan).decode(), "snapshot": coding.snapshot().hex()}


def worker_coding(plan: Plan) -> Coding:
    """The codecs of worker b, which runs the segment that tests/opdag/golden keeps."""
    training = Training(9, 2, BATCH, SGD(0.1), seed=7, codecs=codebook_of([RUNG]))
    return Coding("b", plan, training, [wire.load_segment(SEGMENT.read_bytes(), BATCH)])


def _plan() -> Plan:
    from farflung.planner import plan_graph

    graph = wire.load_graph((SEGMENT.parent / "gpt.graph.opdag").read_bytes(), BATCH)
    planned = plan_graph(graph, 2, BATCH, list(WORKERS))
    assert planned.programs[1] == SEGMENT.read_bytes()
    codecs = [LinkCodec(a, b, RUNG, 1.0) for a, b in (("a", "b"), ("b", "c"), ("b", "a"), ("c", "b"))]
    return msgspec.structs.replace(planned.plan, codecs=codecs)


def _numbers(nbytes: int, seed: int) -> bytes:
    return ((np.arange(nbytes // 4) * 37 + seed) % 101 - 50).astype(np.float32).tobytes()
