"""A worker's process ends with its own code, also while a thread of it is in a framework's code."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, threading, time
from farflung.cli import main

main.LAST_TASK_SECONDS = 0.2
atexit.register(lambda: print("tidied up", flush=True))
threading.Thread(target=time.sleep, args=({seconds},), name="{name}", daemon=True).start()
print("leaving", end=" ")
main.leave(7)
"""


@pytest.mark.parametrize(
    ("name", "seconds"), [("farflung-compute", 0.01), ("farflung-compute", 600), ("farflung-parent", 600)]
)
def test_a_thread_that_computes_does_not_change_the_exit_code(name: str, seconds: float) -> None:
    program = PROGRAM.format(name=name, seconds=seconds)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "leaving tidied up\n", "")
