"""A stream on real workers: the run of a map-style data set whose items come in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.localhost.test_averages import job, same
from tests.localhost.test_best_weights import items
from torch import Tensor
from torch.utils.data import IterableDataset

import farflung

pytestmark = pytest.mark.processes

ITEMS = items(1.0)  # two batches


class Stream(IterableDataset[dict[str, Tensor]]):
    """Gives the items, those of the second epoch backwards."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(ITEMS if self.epoch % 2 == 0 else ITEMS[::-1])


@pytest.mark.full
def test_a_stream_trains_and_resumes_like_items_in_its_order(tmp_path: Path) -> None:
    in_order = ITEMS + ITEMS[::-1] + ITEMS
    with farflung.local(2, device="cpu") as fleet:
        numbered = fleet.train(job(data=in_order, sampler=range(len(in_order))), out=tmp_path / "numbered")
        numbered.wait()
        fleet.train(
            job(data=Stream(), validation=Stream(), num_workers=3), out=tmp_path / "run", steps=3
        ).wait()
        run = fleet.train(
            job(data=Stream(), validation=Stream(), num_workers=3), resume=tmp_path / "run", steps=6
        )
        assert run.wait().steps == 6
        assert same(run.state_dict(), numbered.state_dict())
        assert torch.isfinite(torch.tensor(run.metrics.validations[-1].loss))


def test_a_fleet_on_this_machine_has_its_workers_whenever_they_are_asked_for() -> None:
    with farflung.local(2, device="cpu") as fleet:
        assert len(fleet.workers) == 2
