"""A worker that holds a quantized base is killed, and the run ends as if nothing had been."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.end_to_end.test_frozen_copies import JOB, files
from tests.support.processes import Machines, Run, eventually, machines, train

from farflung.quantization import quantized_bytes

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

STEPS, WIDTH = 24, 64
MATRICES = 2
"""Frozen ones of one worker."""

QUANTIZED_JOB = JOB.replace("Linear(32,", f"Linear({WIDTH},").replace(", 32", f", {WIDTH}")
QUANTIZED_JOB = QUANTIZED_JOB.replace("arange(32.0)", f"arange({WIDTH}.0)").replace("0.005", "0.02")


def start(on: Machines, name: str, *arguments: str) -> Run:
    words = ("--on", "a,b", "--workers", "0", "--steps", str(STEPS), "--set", "quantize=nf4")
    return train(on, name, *words, *arguments, job="quantized.py")


@pytest.mark.full
def test_a_killed_worker_goes_on_with_the_codes_and_scales_that_it_had(tmp_path: Path) -> None:
    codes = MATRICES * quantized_bytes(8192 * WIDTH, "nf4")
    with machines(tmp_path) as on:
        (tmp_path / "quantized.py").write_text(QUANTIZED_JOB)
        broker, token = on.broker(), on.token("worker", "--uses", "2")
        workers = {name: on.worker(name, token) for name in "ab"}
        for worker in workers.values():
            worker.says("idle in the backup pool")
        undisturbed = start(on, "undisturbed", "--token", on.token("submitter"), "--broker", on.address)
        assert undisturbed.command.code() == 0, undisturbed.command.err
        run = start(on, "disturbed")

        def both_have_copies() -> bool:
            """Of the base, and of a version after a step."""
            return all(
                len(files(on, name, "base-*.safetensors")) == 2
                and any(int(path.name.split("-")[1]) for path in files(on, name, "[0-9]*.safetensors"))
                for name in "ab"
            )

        eventually("copies after a step", both_have_copies)
        for base in (path for name in "ab" for path in files(on, name, "base-*.safetensors")):
            assert codes < base.stat().st_size < 1.1 * codes  # no float of the matrices is anywhere
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
