"""`farflung export`: the newest weights of a run become a state dict that PyTorch takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.support.checkpoints import TIES, Tied, contents_of, record_of

from farflung.cli.main import run
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.weights import save_weights


@pytest.fixture
def gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder `runs/gpt` with checkpoints of steps 30 and 40."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/gpt")
    store = CheckpointStore.open(folder / "checkpoints")
    for step in (30, 40):
        store.save(record_of(step), contents_of(step))
    return folder


def end(folder: Path, step: int) -> None:
    """Write the weights of a run's end."""
    save_weights(folder / "model.safetensors", Tied(), contents_of(step).state, TIES, step)


def exported(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["export", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def step_of(file: str) -> float:
    """The step that `contents_of` filled the weights with, read into a new module as a user would."""
    state = torch.load(file, weights_only=True) if file.endswith(".pt") else load_file(file)
    module = Tied()
    module.load_state_dict(state)
    assert torch.equal(module.head.weight, module.symbol.weight)
    return float(module.symbol.weight.detach()[0, 0])


def test_the_newest_checkpoint_becomes_a_state_dict(gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(gpt)]) == 0
    assert capsys.readouterr().out.startswith("gpt-40.safetensors: 8 tensors, ")
    assert step_of("gpt-40.safetensors") == 40
    with safe_open("gpt-40.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # which Hugging Face's loaders ask for
    found = exported(capsys, str(gpt))
    assert found == {
        "file": "gpt-40.safetensors", "step": 40, "tensors": 8, "skipped": [],
        "bytes": Path("gpt-40.safetensors").stat().st_size, "source": "runs/gpt/checkpoints/40",
    }  # fmt: skip


def test_a_pt_file_is_for_torch_load(gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = exported(capsys, str(gpt), "--out", "weights.pt")
    assert step_of("weights.pt") == 40
    state = torch.load("weights.pt", weights_only=True)
    assert state["head.weight"].data_ptr() == state["symbol.weight"].data_ptr()
    assert found["file"] == "weights.pt" and sorted(path.name for path in Path().iterdir()) == [
        "runs",
        "weights.pt",
    ]


@pytest.mark.parametrize(("ended", "expected"), [(50, 50), (40, 40), (35, 40)])
def test_the_newer_of_checkpoint_and_end_is_taken(
    ended: int, expected: int, gpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(gpt, ended)
    found = exported(capsys, str(gpt), "--out", "a.safetensors")
    assert found["step"] == expected == step_of("a.safetensors")
    assert found["source"].endswith("model.safetensors") is (ended >= 40)


def test_a_step_is_taken_from_where_it_is(gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(gpt, 50)
    for step in (30, 40, 50):
        assert exported(capsys, str(gpt), "--step", str(step))["step"] == step
        assert step_of(f"gpt-{step}.safetensors") == step
    assert run(["export", str(gpt), "--step", "7"]) == 2
    assert "runs/gpt/checkpoints/7 has no checkpoint.json" in capsys.readouterr().err


def test_a_run_that_never_saved_a_checkpoint_has_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    end(tmp_path, 9)
    assert exported(capsys, ".", "--out", "a.pt")["step"] == 9 == step_of("a.pt")


def test_checkpoints_elsewhere_are_exported_from_there(gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(capsys, str(gpt / "checkpoints"))["step"] == 40
    url = f"memory://{uuid4().hex}/mine"
    CheckpointStore.open(url).save(record_of(3), contents_of(3))
    assert exported(capsys, url)["file"] == "mine-3.safetensors"


def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    gpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (gpt / "checkpoints/40/model.safetensors").write_bytes(b"x")
    assert run(["export", str(gpt)]) == 0
    printed = capsys.readouterr()
    assert "weights of step 30, from runs/gpt/checkpoints/30" in printed.out
    assert printed.err.startswith("warning: skipped: runs/gpt/checkpoints/40/model.safetensors has 1 bytes")


def test_a_damaged_checkpoint_gives_way_to_the_end_of_the_run(
    gpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its right size, so that only its digest tells; the checkpoint before is older than the end."""
    end(gpt, 35)
    path = gpt / "checkpoints/40/model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found = exported(capsys, str(gpt))
    assert found["step"] == 35 == step_of("gpt-35.safetensors")
    (line,) = found["skipped"]
    assert "checkpoints/40/model.safetensors is damaged" in line


def test_a_damaged_end_gives_way_to_the_newest_checkpoint(
    gpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (gpt / "model.safetensors").write_bytes(b"x")
    found = exported(capsys, str(gpt))
    assert found["step"] == 40 == step_of("gpt-40.safetensors")
    (line,) = found["skipped"]
    assert line.startswith("runs/gpt/model.safetensors cannot be read")


BAD = {
    "nothing there": (["nowhere"], "expected a run folder at nowhere, found nothing"),
    "a file": (["file"], "expected a run folder at file, found a file"),
    "no weights": (["empty"], "empty has no whole checkpoint: it is empty or missing"),
    "a run that lost its weights": (
        ["lost"],
        "ended before its weights were collected: its summary.json says",
    ),
    "another ending": (
        ["runs/gpt", "--out", "a.bin"],
        "--out must end in .safetensors or .pt, found 'a.bin'",
    ),
    "no such folder": (["runs/gpt", "--out", "no/a.pt"], "no/a.pt cannot be written"),
    "no folder for safetensors": (["runs/gpt", "--out", "no/a.safetensors"], "cannot be written"),
    "a damaged end": (["damaged"], "damaged/model.safetensors cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    Path("empty").mkdir()
    Path("lost").mkdir()
    Path("lost/summary.json").write_text("{}")
    Path("damaged").mkdir()
    Path("damaged/model.safetensors").write_bytes(b"x")
    arguments, words = BAD[case]
    assert run(["export", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and words in line
