"""The program that measures coverage: its rule for configurations, its sample, its outcomes, its page."""

from __future__ import annotations

import json
import types
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from benchmarks.coverage import Result, checked, chosen, read
from benchmarks.coverage_cases.case import Batch, Case, Subject, square_of_first
from benchmarks.coverage_cases.shrinking import shrink
from torch import Tensor, nn

from benchmarks import coverage_page

pytestmark = pytest.mark.slow


class Configuration(types.SimpleNamespace):
    """As transformers' are: fields, and configurations inside."""

    model_type = "test"

    def to_dict(self) -> dict[str, object]:
        return vars(self)


def test_heads_keep_their_width_and_inner_configurations_shrink_too() -> None:
    inner = Configuration(hidden_size=512, num_attention_heads=8, vocab_size=99, pad_token_id=0)
    outer = Configuration(
        hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, num_hidden_layers=40, vocab_size=50_000, eos_token_id=49_999, num_local_experts=64,
        num_experts_per_tok=6, layer_types=["slide"] * 3 + ["full"] + ["slide"] * 36, text_config=inner,
    )  # fmt: skip
    shrink(outer, widths=True, images=True)
    assert (outer.hidden_size, outer.num_attention_heads, outer.head_dim) == (256, 2, 128)
    assert outer.num_key_value_heads == 1 and outer.vocab_size == 256 and outer.eos_token_id == 255
    assert outer.num_local_experts == 4 and outer.num_experts_per_tok == 2
    assert outer.num_hidden_layers == len(outer.layer_types) == 4, "each kind of layer must be there"
    assert (inner.hidden_size, inner.num_attention_heads, inner.vocab_size) == (128, 2, 99)


def row(key: str, outcome: str, reason: str = "") -> dict[str, object]:
    return {"key": key, "outcome": outcome, "reason": reason}


def test_the_page_counts_what_holds_of_what_was_built_and_lists_the_rest() -> None:
    rows = [
        row("timm/image/a", "holds"),
        row("timm/image/b", "refused", "op | missing (/home/me/lib/timm/models/b.py:7)"),
        row("timm/image/c", "not built", "no size"),
    ]
    page = Path("docs/reference/coverage.md").read_text()
    made = coverage_page.page_of(page, rows, 9, {"torch": "2.0"})
    assert "torch 2.0; 3 of 9 cases run." in made
    assert "| timm | image | 3 | 1 | 1 | 0 | 0 | 1 | 50 % |" in made
    assert "| `timm/image/b` | refused | op \\| missing (timm/models/b.py:7) |" in made
    assert made.index("`timm/image/c`") > made.index("## Not built")
    assert coverage_page.page_of(made, rows, 9, {"torch": "2.0"}) == made


class Layers(nn.Module):
    """Six layers of one width."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Unknown(Layers):
    """Ends in an op that no worker has."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.lgamma(super().forward(x))


def inputs(samples: int) -> Batch:
    return {"x": torch.randn(samples, 8, generator=torch.Generator().manual_seed(samples))}


def test_a_model_holds_or_is_refused_with_the_lint() -> None:
    asked = Result("own/test/layers", "layers", "not built")
    held = checked(Subject(Layers(), inputs, square_of_first, "six layers"), asked)
    assert held.outcome == "holds" and held.gradient_difference == 0.0
    refused = checked(Subject(Unknown(), inputs, square_of_first, "six layers"), asked)
    assert refused.outcome == "refused" and refused.lint == "opset" and "aten.lgamma" in refused.reason


def test_results_are_resumed_and_samples_are_of_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for outcome in ("over", "holds"):
        with path.open("a") as file:
            file.write(json.dumps(asdict(Result("a/b/c", "c", outcome))) + "\n")
    assert read(path)["a/b/c"].outcome == "holds", "the newest counts"
    cases = [Case("timm", "image", f"m{number}", "m") for number in range(30)]
    assert [case.name for case in chosen(cases, ["/m7", "/m12"], None, 0)] == ["m7", "m12"]
    first, again = (chosen(cases, ["m1"], 4, 5) for _ in range(2))
    assert first == again and len(first) == 4 and all("m1" in case.key for case in first)
