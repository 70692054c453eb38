from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.runtime.jax_backend import backend

PROGRAM = """
import sys, jax, jax.numpy as jnp
from pathlib import Path
from farflung.runtime.jax_backend import backend
backend.WORTH_SECONDS = 0.0
backend.use_cache(Path(sys.argv[1]))
print(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8)))[0, 0])
"""


@pytest.mark.slow
def test_a_process_finds_programs_that_another_one_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "xla"
    told, listed = [], []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True
        )
        told.append(done.stdout)
        listed.append(sorted(path.name for path in folder.iterdir() if path.suffix != "-atime"))
    assert told[0] == told[1] != ""
    assert listed[0] == listed[1] != []
    assert folder.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "xla"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout


@pytest.mark.parametrize(("most", "left"), [(30, {"0", "1", "2"}), (29, {"1", "2"}), (10, {"2"}), (0, set())])
def test_the_oldest_files_are_removed_first(tmp_path: Path, most: int, left: set[str]) -> None:
    for at in range(3):
        (tmp_path / str(at)).write_bytes(bytes(10))
        os.utime(tmp_path / str(at), (at, at))
    backend.prune(tmp_path, most)
    assert {path.name for path in tmp_path.iterdir()} == left
    backend.prune(tmp_path / "absent", most)
