"""Pythons that have no torch: one that sees everything else installed here, and one of a fresh install."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_TORCH = {"torch", "torchgen", "functorch"}
UNREACHABLE = ("No matching distribution", "Could not fetch", "Failed to establish", "Max retries")


@dataclass(frozen=True)
class Python:
    """How to start one, and what its environment needs."""

    command: tuple[str, ...]
    environment: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        environment = {**os.environ, **self.environment}
        return subprocess.run([*self.command, *arguments], env=environment, capture_output=True, text=True)


def beside(folder: Path) -> Python:
    """This Python without its site-packages, and links to all that these hold but torch."""
    links = folder / "site"
    links.mkdir()
    for place in map(Path, site.getsitepackages()):
        for entry in place.iterdir() if place.is_dir() else ():
            name = entry.name.split("-")[0].split(".")[0]
            if name not in OF_TORCH and entry.suffix != ".pth" and not (links / entry.name).exists():
                (links / entry.name).symlink_to(entry)
    path = os.pathsep.join([str(ROOT / "src"), str(links)])
    return Python((sys.executable, "-S"), {"PYTHONPATH": path})


def installed(folder: Path) -> Python:
    """A virtual environment with `farflung[jax]` as its users install it, at the locked versions."""
    venv.create(folder)
    python = Python((str(folder / "bin" / "python"),), {"PYTHONPATH": ""})
    # By the pip that is here, and without compiling the thousands of files of which a worker imports some.
    here = Python((sys.executable,), python.environment)
    pip = ["-m", "pip", "--python", *python.command, "install", "--no-compile"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    lock = ["--constraint", str(ROOT / "requirements.lock")]
    done = here.run(*pip, *quiet, *lock, f"{ROOT}[jax]")
    if done.returncode and any(words in done.stderr for words in UNREACHABLE):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return python
