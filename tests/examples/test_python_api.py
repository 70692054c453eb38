"""The notebook and the how-to page on the Python API run as they are, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "python_api.ipynb"
PAGE = ROOT / "docs" / "how-to" / "use-from-python.md"


def run(code: str, folder: Path) -> str:
    """What a program prints that runs in that folder, without a screen."""
    (folder / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg", "FARFLUNG_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.full
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5 and not [cell for cell in cells if cell.get("outputs")]
    printed = run("\n".join(code), tmp_path)
    assert "step 200 is saved in" in printed and "the model says" in printed
    assert (tmp_path / "runs" / "sines" / "model.safetensors").exists()


@pytest.mark.full
def test_the_first_program_of_the_page_runs(tmp_path: Path) -> None:
    first = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert first is not None
    assert "done 20" in run(first[1], tmp_path)
