"""`benchmarks.gpu` runs from end to end on the CPU: what it would print on a GPU, without the meaning."""

from __future__ import annotations

import json

import pytest
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import clock, codecs, overlap, parity, runner
from benchmarks.zoo import case

from farflung.runtime.torch_backend.profiling import rates


@pytest.mark.full
def test_all_sections_run_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    monkeypatch.setattr(codecs, "ELEMENTS", 2**17)
    monkeypatch.setattr(rates, "SIZES", (16, 32))
    monkeypatch.setattr(parity, "CASES", [case("chain")])
    monkeypatch.setattr(parity, "MODELS", [])
    monkeypatch.setattr(runner, "ROUNDS", 1)
    monkeypatch.setattr(overlap, "STEPS", 1)
    monkeypatch.setattr(runner, "SIZES", [runner.Size("tiny", 16, 1, 2, 8, 2)])
    assert gpu.main(["--device", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == "cpu"
    assert report["rates"]["found"][0]["float32_tflops"] > 0
    (chain,) = report["parity"]["found"]
    assert chain.pop("model") == "chain" and chain.pop("ok") and chain.pop("repeats")
    assert set(chain.values()) == {0.0}
    assert report["runner"]["found"][0]["ours_over_eager"] > 0
    assert report["memory"]["found"] == report["processes"]["found"] == []
    assert (
        report["overlap"]["found"][0]["ratio"] > 0 and report["overlap"]["found"][0]["loss_difference"] == 0
    )
    assert [row["codec"] for row in report["codecs"]["found"]] == list(codecs.NAMES)


def test_a_section_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: object) -> None:
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setitem(gpu.SECTIONS, "rates", broken)
    assert gpu.main(["--device", "cpu", "--sections", "rates"]) == 1
    assert "error RuntimeError: no such kernel\n" in capsys.readouterr().out
