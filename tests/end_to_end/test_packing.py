"""Packed rows on real workers: one process's losses and weights, also of a stream, and after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import packed_models
from tests.support.one_process import in_one_process
from tests.support.packed_models import sentences
from torch import Tensor
from torch.utils.data import IterableDataset

import farflung
from farflung.data import Pack, PackStream

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, STOPPED = 6, 3


class Stream(IterableDataset[dict[str, Tensor]]):
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(sentences())


def job(kind: str) -> farflung.Job:
    rows: Any = Pack(sentences(), 24) if kind == "data set" else PackStream(Stream(), 24, open_rows=4)
    return farflung.Job(
        model=packed_models.llama(),
        data=rows,
        optimizer=farflung.AdamW(lr=3e-3),
        counted="labels",
        batch=4,
        microbatches=2,
        steps=STEPS,
        clip=1.0,
        name="packed",
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", ["data set", "stream"])
def test_a_run_of_packed_rows_equals_one_process_bit_for_bit_and_goes_on(tmp_path: Path, kind: str) -> None:
    torch.set_num_threads(1)
    losses, module, _ = in_one_process(job(kind))
    with farflung.local(2, device="cpu") as fleet:
        fleet.train(job(kind), out=tmp_path / "run", steps=STOPPED).wait()
        run = fleet.train(job(kind), resume=tmp_path / "run", steps=STEPS)
        assert run.wait().steps == STEPS
        assert [row.loss for row in run.metrics.rows][-(STEPS - STOPPED) :] == losses[STOPPED:]
        trained = run.state_dict()
    expected = module.state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in expected.items() if name in trained)
    assert trained.keys() >= {name for name, _ in module.named_parameters()}
