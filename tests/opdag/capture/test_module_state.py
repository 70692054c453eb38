"""Models larger than memory: captured, planned and reported from shapes alone, in less than 1 GB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.zoo import CASES, Case, case
from tests.support.memory import ROOT
from torch import Tensor, nn

from farflung.opdag.capture import capture

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
MOST_BYTES = 10**9


def built_on_meta(entry: Case) -> nn.Module:
    with torch.device("meta"):
        return entry.build()


@pytest.mark.cases(3)
@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_the_graph_is_that_of_the_model_with_values(entry: Case) -> None:
    batch = entry.batch(2, 1)
    without = built_on_meta(entry)
    assert capture(without, batch).graph == capture(entry.build(), batch).graph
    assert all(tensor.is_meta for tensor in without.parameters())


def test_buffers_may_have_values_where_parameters_have_none() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16, device="meta")
            self.register_buffer("mask", torch.ones(16))
            self.scales = torch.tensor([2.0])  # no buffer: a constant of the graph

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return ((self.layer(x) * self.mask * self.scales - y) ** 2).mean()

    graph = capture(Masked(), case("chain").batch(2, 1)).graph
    (constant,) = graph.constants.values()
    assert torch.frombuffer(bytearray(constant.data), dtype=torch.float32).tolist() == [2.0]


JOB = """
import torch, farflung, transformers

class Tokens:
    def __len__(self):
        return 16
    def __getitem__(self, index):
        tokens = torch.full(({length},), index)
        return {{"input_ids": tokens, "labels": tokens.clone()}}

def job():
    configuration = transformers.{configuration}(use_cache=False, attn_implementation="sdpa", {settings})
    with torch.device("meta"):
        model = transformers.{model}(configuration)
    return farflung.Job(model=model, data=Tokens(), optimizer=farflung.AdamW(lr=1e-4),
                        batch=8, microbatches=4, steps=10, precision="bfloat16")
"""
MEASURED = """
import sys
from tests.support.memory import peak_bytes
from farflung.cli.main import run
code = run(["capture", sys.argv[1], "--report", "--json"])
print(peak_bytes())
sys.exit(code)
"""
SIZES = {
    "gpt2-xl": (
        {
            "configuration": "GPT2Config",
            "settings": "n_embd=1600, n_layer=48, n_head=25",
            "model": "GPT2LMHeadModel",
            "length": 1024,
        },
        1_557_611_200,
    ),
    "llama-7b": (
        {"configuration": "LlamaConfig", "settings": "", "model": "LlamaForCausalLM", "length": 2048},
        6_738_415_616,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b"])
def test_models_larger_than_memory_are_reported_in_less_than_1_gb(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    fields, parameters = SIZES[name]
    (tmp_path / "job.py").write_text(JOB.format(**fields))
    argv = [sys.executable, "-c", MEASURED, str(tmp_path / "job.py")]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    document, peak = done.stdout.splitlines()
    report = json.loads(document)
    assert report["parameters"] == parameters
    outcomes = {verdict["lint"]: (verdict["outcome"], verdict["words"]) for verdict in report["verdicts"]}
    assert outcomes["self-check"] == ("not checked", "no weights")
    assert {d["segments"] for d in report["divisions"]} == {2, 4, 8}
    assert int(peak) < MOST_BYTES
