"""That tests are spread over processes as conftest.py says: pytest does not tell if they are not."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(5))
def test_where(number):
    with Path("where").open("a") as file:
        path = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
        print(path, os.environ["PYTEST_XDIST_WORKER"], file=file)
    time.sleep(0.05)
"""
LABS = ["tests/lab/test_one.py", "tests/lab/test_two.py", "tests/cli/commands/test_lab_run.py"]
FILES = [*LABS, "tests/a.py", "tests/b.py"]


def test_labs_share_one_process_and_files_stay_whole(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TESTS)
    root = Path(__file__).parents[1]
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-n",
        "2",
        "--import-mode=importlib",
        *FILES,
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": f"{root}{os.pathsep}{environment.get('PYTHONPATH', '')}"}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    where = [line.split() for line in (tmp_path / "where").read_text().splitlines()]
    assert len(where) == 25
    processes = {name: {process for path, process in where if path == name} for name in FILES}
    assert all(len(of_file) == 1 for of_file in processes.values()), processes
    assert len(set.union(*(processes[name] for name in LABS))) == 1
    assert len({process for _, process in where}) == 2
