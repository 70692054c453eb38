"""What a submitter gives a checker: the inputs of the units that it runs again, each of them once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.client.run.test_state_saver import job

from farflung.client.capture.check import capture_job
from farflung.client.capture.prepared import Prepared
from farflung.client.run.check_feed import CheckFeed
from farflung.client.run.start import Start
from farflung.client.run.state_collector import StateCollector, StateCollectors
from farflung.client.run.worker_session import WorkerRoutes
from farflung.errors import ProtocolError
from farflung.plans import FEEDER, Edge, Placement, Plan
from farflung.protocol.messages import FeedCheck, Planned


class Items:
    """Data that notes what is read of it."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self._counted = threading.Semaphore(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.read.append(index)
        self._counted.release()
        return {"x": torch.full((2,), float(index))}

    def forget(self) -> None:
        """Count from now on."""
        self.read.clear()
        self._counted = threading.Semaphore(0)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self._counted.acquire(timeout=30)


class Unreachable:
    """Routes over which the checker is never reached: what is fed to it stays in its session."""

    async def connect(self, *given: object) -> object:
        await asyncio.Event().wait()
        raise AssertionError


class Feeding:
    """The check of units 1 and 2 of a job of one segment, by the worker "c"."""

    def __init__(self) -> None:
        self.items = Items()
        made = job(data=self.items, validation=None, validate_every=None, keep_best=False, verify=1.0)
        prepared = Prepared(made, capture_job(made).graph, b"", made.model.state_dict(), ())
        (entry,) = prepared.graph.inputs_of("input")
        edge = Edge(entry.value, FEEDER, 0, 16, differentiable=False)
        plan = Plan([Placement(0, ["c"], 1, 8, 3)], [edge], microbatches=1, window=1)
        planned = Planned("job-1", 1, plan, [["layer.weight", "layer.bias"]], {})

        def collector() -> StateCollector:
            return StateCollector("job-1", 1, plan, [{}], lambda received, total: None)

        self.items.forget()
        self.feed = CheckFeed(
            prepared,
            planned,
            FeedCheck("job-1", 1, "c", plan, ["c.example:1"], first=1, over=3),
            Start.fresh(prepared, prepared.training),
            StateCollectors(collector(), collector),
            cast(WorkerRoutes, Unreachable()),
        )
        self.pull: Callable[[str, int], Any] = self.feed._pulled


def test_each_unit_is_read_once_however_often_a_checker_asks() -> None:
    async def asks() -> None:
        feeding = Feeding()
        for unit in (1, 2):
            feeding.pull("c", unit)
            with pytest.raises(ProtocolError, match=f"the inputs of unit {unit} twice"):
                feeding.pull("c", unit)
        with pytest.raises(ProtocolError, match="unit 3, which it does not check"):
            feeding.pull("c", 3)
        await asyncio.to_thread(feeding.items.wait_for, 4)
        await feeding.feed.close()
        assert len(feeding.items.read) == 4  # two samples of each unit

    asyncio.run(asyncio.wait_for(asks(), 60))
