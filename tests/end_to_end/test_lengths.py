"""Texts of mixed lengths on real workers: the bits of one process, and fewer bytes; a kill changes none."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.end_to_end.test_frozen_copies import files
from tests.support.lengths import LENGTHS, classifier, language
from tests.support.one_process import equal_on_four_workers, in_one_process
from tests.support.processes import Machines, Run, eventually, machines, train

import farflung

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def bytes_of(job: farflung.Job, out: Path) -> int:
    """The bytes on links of a run on two local workers."""
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(job, out=out)
        run.wait()
        return sum(row.bytes_on_wire for row in run.metrics.rows)


@pytest.mark.full
@pytest.mark.parametrize("kind", [language, classifier], ids=["gpt", "bert"])
def test_a_run_equals_one_process_bit_for_bit(kind: Callable[..., farflung.Job], tmp_path: Path) -> None:
    equal_on_four_workers(kind(), tmp_path / "run")


@pytest.mark.full
def test_shorter_batches_send_fewer_bytes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    several = bytes_of(language(), tmp_path / "several")
    longest = bytes_of(language(lengths=LENGTHS[-1]), tmp_path / "longest")
    assert several < 0.8 * longest


@pytest.mark.full
def test_replicas_train_on_batches_of_different_lengths(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    losses, _, _ = in_one_process(language())
    with farflung.local(2, device="cpu") as fleet:
        run = fleet.train(language(), out=tmp_path / "run", replicas=2)
        run.wait()
        assert len(run.plan.pipelines) == 2
        assert [row.loss for row in run.metrics.rows] == pytest.approx(losses, rel=1e-5)


JOB = """
import time
import torch
import farflung
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.head = nn.Linear(32, 50)

    def forward(self, input_ids, labels):
        x = self.symbols(input_ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x)).cumsum(1) / input_ids.shape[1]
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Texts:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.02)
        length = 4 + index % 5 if index % 4 else 40
        symbols = (torch.arange(length) * (index + 1)) % 50
        return {"input_ids": symbols, "labels": symbols.roll(-1)}


def job():
    torch.manual_seed(1)
    return farflung.Job(model=Net(), data=Texts(), optimizer=farflung.AdamW(lr=1e-2), counted="labels",
                        collate=farflung.data.Pad([8, 48]), batch=8, microbatches=4, steps=1_000_000)
"""
STEPS = 24


def start(on: Machines, name: str, *arguments: str) -> Run:
    words = ("--on", "a,b", "--workers", "0", "--steps", str(STEPS))
    return train(on, name, *words, *arguments, job="texts.py")


@pytest.mark.full
@pytest.mark.faults
def test_a_killed_worker_replays_batches_of_their_lengths(tmp_path: Path) -> None:
    with machines(tmp_path) as on:
        (tmp_path / "texts.py").write_text(JOB)
        broker, token = on.broker(), on.token("worker", "--uses", "2")
        workers = {name: on.worker(name, token) for name in "ab"}
        for worker in workers.values():
            worker.says("idle in the backup pool")
        undisturbed = start(on, "undisturbed", "--token", on.token("submitter"), "--broker", on.address)
        assert undisturbed.command.code() == 0, undisturbed.command.err
        run = start(on, "disturbed")

        def both_have_copies() -> bool:
            found = [files(on, name, "[0-9]*.safetensors") for name in "ab"]
            return all(any(int(path.name.split("-")[1]) for path in paths) for paths in found)

        eventually("copies after a step", both_have_copies)
        workers["b"].signal(signal.SIGKILL)
        workers["b"].code()
        workers["b"] = on.worker("b")
        assert run.command.code() == 0, run.command.err
        assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
        assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
        (taken,) = run.events("regrouping")
        assert taken["replayers"] == ["b"] and not run.events("rolled back")
        results = [each.folder / "model.safetensors" for each in (run, undisturbed)]
        assert results[0].read_bytes() == results[1].read_bytes()
        for command in (*workers.values(), broker):
            command.stop()
