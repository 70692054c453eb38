"""The program of the 1.1-billion-parameter base, on a small shape: what was fetched, and who said what."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("peft")

from benchmarks.quantized_base import QUICK, WORKERS, Words, bare, job_of, measure, write_weights

from farflung.client.capture.check import capture_shapes
from farflung.client.run.base_transfer import LEAST_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.full]


def test_workers_fetch_a_quantized_base_and_say_what_they_need(tmp_path: Path) -> None:
    result = asyncio.run(measure(QUICK, "nf4", tmp_path))
    graph = capture_shapes(job_of(QUICK, "nf4", f"file://{tmp_path}/weights")).graph
    frozen = [graph.values[e.value].bytes(1) for e in graph.inputs_of("parameter") if not e.trainable]
    assert result.base_fetched_bytes == sum(size for size in frozen if size >= LEAST_BYTES)
    assert result.base_fetched_bytes < result.stored_bytes * 0.6
    assert len(result.losses) == 2 and all(7 < loss < 10 for loss in result.losses)
    assert len(result.workers) == WORKERS
    assert sum(one.said_bytes for one in result.workers) > sum(frozen)
    assert result.together_bytes > sum(one.peak_bytes + one.idle_bytes for one in result.workers)


def test_the_shape_is_tiny_llamas_and_the_weights_are_all_of_it(tmp_path: Path) -> None:
    model = bare(QUICK)
    assert write_weights(QUICK, tmp_path / "weights") == 2 * sum(one.numel() for one in model.parameters())
    assert len(list((tmp_path / "weights").glob("*.safetensors"))) == QUICK.layers + 3
    assert Words(QUICK)[0]["input_ids"].shape == (QUICK.tokens,)
