"""What must answer fast loads none of the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "networkx", "fastapi", "safetensors", "pandas"}


def loaded(program: str) -> set[str]:
    code = f"{program}\nimport sys\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "program",
    [
        "import farflung",
        "import farflung; farflung.AdamW(lr=0.1); farflung.data",
        "from farflung.cli.main import run; run(['--help'])",
        "from farflung.cli.main import run; run(['status', '--help'])",
        "from farflung.cli.main import run; run(['train', '--help'])",
        "from farflung.cli.main import run; run(['export', '--help'])",
        "from farflung.cli.main import run; run(['status', '--folder', '/nonexistent'])",
        "from farflung.cli.main import run; run(['lab', 'list'])",
        "from farflung.cli.main import run; run(['topology', 'show', 'lan'])",
        "from farflung.cli.main import run; run(['launch', 'slurm', 'h', '--workers', '1', '--memory', '1'])",
        # A mistyped token is told before a framework is imported.
        "from farflung.cli.main import run; run(['join', '127.0.0.1:7', '--token', 'bogus'])",
        "import farflung.client.run.broker_client",
        "import farflung.broker.service",
        # A worker needs the framework of its backend only.
        "import farflung.worker.service, farflung.runtime.emulated.backend",
    ],
)
def test_nothing_heavy_is_imported(program: str) -> None:
    assert not loaded(program) & HEAVY


def test_the_public_names_are_handed_out_lazily() -> None:
    import farflung

    assert set(farflung.__all__) <= set(dir(farflung))
    for name in farflung.__all__:
        assert getattr(farflung, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = farflung.nonsense
