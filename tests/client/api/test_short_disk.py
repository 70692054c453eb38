"""What a run says before it begins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from farflung.client.api.fleet import warn_if_disk_is_short
from farflung.client.api.frontend import Frontend
from farflung.runtime.optimizers.declared import SGD


class Tied(nn.Module):
    """An embedding that is the head too, a layer with statistics, a parameter that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.symbol.weight
        self.unused = nn.Parameter(torch.ones(2))


def test_weights_that_will_not_fit_are_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """15 + 2 + 12 numbers of four bytes, and a count of eight: what is tied counts once."""
    prepared = SimpleNamespace(
        emulated=False, adapter=None, job=SimpleNamespace(model=Tied(), optimizer=SGD(lr=0.1))
    )
    for free, words in [(124, ""), (123, "warning: the weights need 124 B, but ")]:
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        caplog.clear()
        warn_if_disk_is_short(prepared, tmp_path, Frontend())  # type: ignore[arg-type]
        said = " ".join(caplog.messages)
        assert said.startswith(words) and bool(said) == bool(words)
    assert "has 123 B free" in said
