"""`farflung capture --report`: verdicts, cut candidates and their picture; a refusal names its lint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farflung.cli.main import run

JOB = """
import torch, farflung
from torch import nn

class Items:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "y": torch.zeros(8)}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(9) for layer in (nn.Linear(8, 8), nn.Tanh())])
    def forward(self, x, y):
        z = self.layers(x)
        BODY
        return ((z - y) ** 2).mean()

def job():
    torch.manual_seed(0)
    return farflung.Job(model=Model(), data=Items(), optimizer=farflung.SGD(lr=0.1),
                        batch=8, microbatches=2, steps=3)
"""


def job_file(folder: Path, body: str = "pass") -> str:
    path = folder / "job.py"
    path.write_text(JOB.replace("BODY", body))
    return str(path)


def test_a_report_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "depth.svg"
    assert run(["capture", job_file(tmp_path), "--report", "--picture", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert "self-check: 18 gradients compared on 4 samples" in out
    assert out.count("  ok ") == 15
    assert "places to cut; 128 B to " in out and "▁" in out
    assert "in 2 parts 128 B cross, cut in layers." in out
    assert "the picture is in" in err
    assert "layers.4" in picture.read_text()
    assert max(map(len, out.splitlines())) <= 110


def test_a_report_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", job_file(tmp_path), "--report", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {verdict["outcome"] for verdict in report["verdicts"]} == {"ok"}
    assert [division["segments"] for division in report["divisions"]] == [2, 4, 8]
    assert all(cut["forward_bytes"] > 0 for cut in report["cuts"])
    assert report["precision"] == "float32" and report["parameters"] == 9 * 72


def test_a_refusal_names_its_lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file(tmp_path, "z = z * z.mean().item()")
    assert run(["capture", path, "--report", "--json"]) == 2
    out, err = capsys.readouterr()
    refused = json.loads(out)
    assert [(v["lint"], v["outcome"]) for v in refused["verdicts"]] == [("control-flow", "refused")]
    assert refused["error"] in err and "job.py:17" in err
    assert run(["capture", path, "--report"]) == 2
    out, err = capsys.readouterr()
    assert "refused" in out and "control-flow: the rule is: nothing but" in out and "item" not in out
    reading, progress, error = err.splitlines()
    assert reading == f"reading {path}"
    assert progress == "capturing the model" and error.startswith("error: `.item()`")


def test_the_precision_may_be_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file(tmp_path)
    assert run(["capture", path, "--json", "--precision", "bfloat16"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["precision"] == "bfloat16" and made["operators"]["aten._to_copy.default"] > 0
