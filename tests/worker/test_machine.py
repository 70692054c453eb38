"""Workers of one machine name it alike; others, and devices with cores of their own, do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farflung.worker import machine
from farflung.worker.machine import machine_of, usable_cores

SHOW = "from farflung.worker.machine import machine_of; print(machine_of('cpu'))"


@pytest.mark.skipif(not machine.BOOT.exists(), reason="only Linux names its boot here")
def test_processes_of_one_machine_agree_and_say_nothing_else_of_it() -> None:
    other = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout
    assert machine_of("cpu") == other.strip() != ""
    assert machine.BOOT.read_text().strip() not in machine_of("cpu")
    assert machine_of("cuda") == machine_of("emulated") == ""


def test_where_nothing_names_the_machine_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "BOOT", tmp_path / "none")
    assert machine_of("cpu") == ""
    assert usable_cores() >= 1
