"""A farflung whose workers strike themselves in the middle of a sum of gradients, when they are asked to.

A process that is killed or frozen from outside is hit anywhere. So these workers look for a file while they
add up gradients: when it is there and so many messages of sums have come or gone since, they send themselves
the signal that it names.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import farflung

ORDER, STRUCK = "strike-in-sum", "struck-in-sum"
EXECUTOR = Path("runtime/executor.py")
STRIKING = f"""

import os
import signal
import time
from pathlib import Path

_post_sums = Executor._post_sums
_left = None


def _striking(self, state, messages):
    global _left
    _post_sums(self, state, messages)
    order = Path(os.environ["FARFLUNG_HOME"]) / "{ORDER}"
    if state.sums.is_done or not order.exists():
        return
    name, after = order.read_text().split()
    _left = int(after) if _left is None else _left - 1
    if _left <= 0:
        _left = None
        order.unlink()
        order.with_name("{STRUCK}").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.Signals[name])


Executor._post_sums = _striking
"""


def striking_sources(folder: Path) -> Path:
    """Our sources, changed so; what PYTHONPATH must name."""
    shutil.copytree(Path(farflung.__file__).parent, folder / "farflung")
    path = folder / "farflung" / EXECUTOR
    path.write_text(path.read_text() + STRIKING)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
    return folder


def order_strike(home: Path, by: signal.Signals, after: int) -> None:
    """Let the worker with this FARFLUNG_HOME be struck in a sum, `after` so many of its messages."""
    (home / STRUCK).unlink(missing_ok=True)
    unfinished = home / f"{ORDER}.new"
    unfinished.write_text(f"{by.name} {after}")
    unfinished.rename(home / ORDER)


def struck_at(home: Path) -> float | None:
    """When it was struck (`time.monotonic()`, which all processes of a machine share); None: not yet."""
    try:
        return float((home / STRUCK).read_text())
    except (OSError, ValueError):
        return None
