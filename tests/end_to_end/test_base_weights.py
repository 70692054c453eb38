"""Workers keep base weights on their disks: a second job on the same base is not sent them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.support.processes import Machines, Run, eventually, machines, train
from tests.support.web import web

pytestmark = [pytest.mark.processes, pytest.mark.slow]

JOB = """
import contextlib
import torch
import farflung
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.head = nn.Linear(64, 1)
        self.layers.requires_grad_(False)

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(self.head(x), y)


class Items:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        x = torch.sin(torch.arange(64.0) + index)
        return {"x": x, "y": x[:1]}


def job():
    torch.manual_seed(1)
    with torch.device(META) if META else contextlib.nullcontext():
        model = Net()
    if META:
        model.head.to_empty(device="cpu")
        torch.nn.init.ones_(model.head.weight), torch.nn.init.zeros_(model.head.bias)
    return farflung.Job(model=model, data=Items(), optimizer=farflung.SGD(lr=1e-2),
                        batch=8, microbatches=4, steps=2, weights=WEIGHTS)
"""
BASE_BYTES = 4 * 64 * 64 * 4
"""The weights of the frozen layers; their biases are too small to be named."""


def write_job(on: Machines, weights: str | None = None, meta: bool = False) -> None:
    """The job file, with the weights that it names, for a model with values or on the meta device."""
    named = f"WEIGHTS = {weights!r}\nMETA = {'meta' if meta else ''!r}\n"
    (on.folder / "frozen.py").write_text(named + JOB)


@contextmanager
def two_workers(folder: Path, *options: str) -> Iterator[Machines]:
    with machines(folder) as on:
        write_job(on)
        broker = on.broker()
        token = on.token("worker", "--uses", "2")
        where = ["join", on.address, "--listen", on.listen, "--token", token, *options]
        workers = [on.start(name, *where, "--name", name) for name in ("a", "b")]
        for worker in workers:
            worker.says("idle in the backup pool")
        yield on
        for command in (*workers, broker):
            command.stop()


def run(on: Machines, name: str, token: str | None = None, worker: str | None = None) -> Run:
    """Train on both workers, or on one of them, to the end.

    On both, a later job may give each of them other segments than the one before did.
    """
    named = ["--workers", "2"] if worker is None else ["--on", worker]
    options = [*named, "--broker", on.address, *(["--token", token] if token else [])]
    found = train(on, name, *options, job="frozen.py")
    assert found.command.code() == 0, found.command.err
    return found


def loaded(of: Run) -> tuple[int, int, int]:
    """Bytes of base weights that were in caches, that were sent, and that were fetched."""
    (event,) = of.events("running")
    return event["base_cached_bytes"], event["base_sent_bytes"], event["base_fetched_bytes"]


def files(on: Machines) -> list[Path]:
    """The cached tensors, once they have been written."""
    found: list[Path] = []

    def is_written() -> bool:
        found[:] = sorted(on.folder.glob("[ab]/worker/weights/*"))
        return len(found) == 4 and not any(path.suffix for path in found)

    eventually("the base weights are on the disks", is_written)
    return found


@pytest.mark.full
def test_a_second_job_on_the_same_base_sends_no_base_weights(tmp_path: Path) -> None:
    with two_workers(tmp_path) as on:
        first = run(on, "first", on.token("submitter"), "a")
        assert loaded(first) == (0, BASE_BYTES, 0)
        assert "caches" not in first.command.err
        files(on)
        second = run(on, "second", worker="a")
        assert loaded(second) == (BASE_BYTES, 0, 0)
        assert "65.5 kB of base weights were in the workers' caches" in second.command.err
        assert second.summary["loading_bytes"] < first.summary["loading_bytes"] - BASE_BYTES
        assert [row["loss"] for row in second.rows] == [row["loss"] for row in first.rows]
        damaged = files(on)[0]
        content = bytearray(damaged.read_bytes())
        content[100] ^= 1
        damaged.write_bytes(content)
        third = run(on, "third", worker="a")
        assert loaded(third) == (BASE_BYTES * 3 // 4, BASE_BYTES // 4, 0)
        assert [row["loss"] for row in third.rows] == [row["loss"] for row in first.rows]
        eventually("it is written anew", lambda: damaged in files(on) and damaged.read_bytes() != content)


NAMES = [f"layers.{n}.{kind}" for n in range(4) for kind in ("weight", "bias")]


def base(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of the frozen layers in bfloat16, so that workers have to widen them."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (64, 64), "bias": (64,)}
    return {n: torch.randn(shapes[n.rpartition(".")[2]], generator=generator).bfloat16() for n in NAMES}


@pytest.mark.full
def test_workers_fetch_the_base_of_a_model_without_values_from_a_url(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    save_file(base(), shared / "model.safetensors")
    with web(shared) as server, two_workers(tmp_path, "--base", server.url, "--disk", "0") as on:
        write_job(on, f"file://{shared}", meta=True)  # which these workers may not read
        sent = run(on, "sent", on.token("submitter"))
        assert loaded(sent) == (0, BASE_BYTES, 0)
        words = "gets base weights from here: file://"
        (line,) = [line for line in sent.command.err.splitlines() if words in line]
        assert "is not among the URLs that `farflung join --base` allows here" in line
        write_job(on, server.url, meta=True)
        fetched = run(on, "fetched")
        assert loaded(fetched) == (0, 0, BASE_BYTES)
        assert "the workers fetched 65.5 kB of base weights" in fetched.command.err
        assert [row["loss"] for row in fetched.rows] == [row["loss"] for row in sent.rows]
        assert fetched.summary["loading_bytes"] < sent.summary["loading_bytes"] - BASE_BYTES


@pytest.mark.full
def test_a_base_that_is_renamed_there_is_found_by_its_bytes_and_another_one_is_not_used(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    torch.manual_seed(1)
    own = [torch.nn.Linear(64, 64) for _ in range(4)]
    stored = {f"renamed.{n}": layer.weight.detach() for n, layer in enumerate(own)}
    save_file(stored, shared / "model.safetensors")
    with web(shared) as server, two_workers(tmp_path, "--base", server.url, "--disk", "0") as on:
        write_job(on, server.url)
        renamed = run(on, "renamed", on.token("submitter"))
        assert loaded(renamed) == (0, 0, BASE_BYTES)
        other = {f"layers.{n}.weight": tensor + 1 for n, tensor in enumerate(stored.values())}
        save_file(other, shared / "model.safetensors")
        wrong = run(on, "wrong")
        assert loaded(wrong) == (0, BASE_BYTES, 0)
        assert "gets base weights from here: 'layers.0.weight' is not what the job says" in wrong.command.err
        assert [row["loss"] for row in wrong.rows] == [row["loss"] for row in renamed.rows]
        (shared / "model.safetensors").unlink()
        refused = on.fails("desk", "train", "frozen.py", "--out", "none", "--broker", on.address)
        assert refused.endswith("/model.safetensors cannot be read: the server says 404 Not Found")
