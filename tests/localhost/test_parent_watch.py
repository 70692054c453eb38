"""What a process leaves behind whose parent is gone: nothing, whatever it was at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import atexit, pathlib, sys, threading, time
from farflung.localhost.parent_watch import stop_with_parent

atexit.register(time.sleep, 2)  # the first is run last: the end of a process takes a while
folder = pathlib.Path(sys.argv[1])
stop_with_parent(folder)
begin = threading.Thread._bootstrap_inner


def begin_late(thread):
    print(flush=True)
    time.sleep(1)
    begin(thread)


threading.Thread._bootstrap_inner = begin_late
threading.Thread(target=lambda: (folder / "worker").mkdir(parents=True)).start()
"""


def test_a_starting_thread_leaves_no_folder_behind(tmp_path: Path) -> None:
    folder = tmp_path / "family"
    folder.mkdir()
    argv = [sys.executable, "-c", PROGRAM, str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(60) == 143
    assert not folder.exists()
