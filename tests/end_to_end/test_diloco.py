"""Replicas that train apart, on worker processes over TLS."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.end_to_end.fleets import Fleet, running, trained_state
from tests.end_to_end.zoo_jobs import job_of
from tests.runtime.test_diloco import parameters_of, pipeline_of, run

import farflung
from farflung.plans import Wishes, read_plan

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(4, tmp_path_factory.mktemp("fleet")) as started:
        yield started


@pytest.mark.parametrize("codec", ["dense", "int8"])
def test_worker_processes_have_the_bits_of_one_process(fleet: Fleet, codec: str) -> None:
    sync = farflung.DiLoCo(inner_steps=3, warmup=2)
    job = replace(job_of("gpt", 10, farflung.AdamW(lr=3e-3), clip=0.5), sync=sync, sum_codec=codec)
    summary, rows, folder = fleet.run(job, 4, Wishes(replicas=2))
    assert (summary.state, len(read_plan(folder).pipelines)) == ("done", 2)
    pipeline = pipeline_of(job, 2, codec)
    assert [row["loss"] for row in rows] == run(pipeline, job)
    first, second = parameters_of(pipeline, 2)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[name], first[name]) for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)
