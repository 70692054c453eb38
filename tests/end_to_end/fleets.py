"""A broker and workers as real processes for the tests of one module, and jobs run on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

import farflung
from farflung.client.output.progress import Observer
from farflung.client.output.records import Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.weights import load_weights
from farflung.client.run.checkpointing import Checkpointing
from farflung.client.run.submitter import train
from farflung.localhost.fleet import LocalFleet
from farflung.plans import NO_WISHES, Wishes
from farflung.transport.security.identity import Identity


class Fleet:
    """A running local fleet; `run` trains a job on it from this process."""

    def __init__(self, runner: asyncio.Runner, fleet: LocalFleet, identity: Identity, folder: Path) -> None:
        self._runner = runner
        self._identity = identity
        self._folder = folder
        self._runs = 0
        self.local = fleet

    def run(
        self,
        job: farflung.Job,
        workers: int,
        wishes: Wishes = NO_WISHES,
        on: Sequence[str] = (),
        observer: Observer | None = None,
        checkpointing: Checkpointing | None = None,
    ) -> tuple[Summary, list[dict[str, float]], Path]:
        """Train `job` on so many workers, or on those that `on` names: summary, rows and run folder."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        run = RunFolder.create(folder)
        try:
            work = train(job, self._identity, run, observer, workers, wishes, on, checkpointing)
            summary = self._runner.run(work)
        finally:
            run.close()
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return summary, [row for row in rows if "loss" in row], folder


@contextmanager
def running(workers: int, folder: Path, backends: Sequence[str] = ()) -> Iterator[Fleet]:
    """Start a fleet, and end it with the block."""
    with asyncio.Runner() as runner:
        local = LocalFleet(workers, folder / "logs", memory_bytes=2 * 10**9, backends=backends)
        runner.run(local.__aenter__())
        try:
            yield Fleet(runner, local, local.identity, folder)
        finally:
            runner.run(local.__aexit__(None, None, None))


def trained_state(folder: Path, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of a run, through the user's own module."""
    load_weights(folder / "model.safetensors", module)
    return module.state_dict()
