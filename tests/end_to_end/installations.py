"""Other farflungs: copies of our sources with something changed, for processes that are not ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.opset_tables import NEW_LINE

import farflung

TABLE = Path("opdag/opset_table.py")
BACKEND = Path("runtime/torch_backend/backend.py")
SEGMENT = Path("runtime/torch_backend/segment.py")

LACKING = """

_offer = TorchBackend.offer
TorchBackend.offer = lambda self: _offer(self)._replace(lacks=({op!r},))
"""

IN_FOURTH_STEP = """

_forward = TorchSegment._forward


def _changed(self, unit, microbatch, *given):
    if unit.train and unit.step == 3:
        {statement}
    return _forward(self, unit, microbatch, *given)


TorchSegment._forward = _changed
"""


def newer(text: str) -> str:
    """The table with an op of a version to come."""
    return text.replace('ELEMENTWISE = """\n', f'ELEMENTWISE = """\n{NEW_LINE}\n', 1)


def changed(text: str) -> str:
    """The table with another default in the same version."""
    return text.replace("start_dim=0", "start_dim=1", 1)


def lacking(op: str) -> Callable[[str], str]:
    """The torch backend, but it refuses an op."""
    return lambda text: text + LACKING.format(op=op)


def in_fourth_step(statement: str) -> dict[Path, Callable[[str], str]]:
    """The torch backend, but it runs a statement before each forward pass of the fourth step."""
    return {SEGMENT: lambda text: text + IN_FOURTH_STEP.format(statement=statement)}


def installation(folder: Path, changes: dict[Path, Callable[[str], str]]) -> Path:
    """Sources under `folder` with these files of the package changed; what PYTHONPATH must name."""
    ours = Path(farflung.__file__).parent
    shutil.copytree(ours, folder / "farflung")  # with its bytecode, or each copy would be compiled anew
    for file, change in changes.items():
        path = folder / "farflung" / file
        before = path.read_text()
        after = change(before)
        assert after != before, file
        path.write_text(after)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
    return folder
