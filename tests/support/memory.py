"""How much memory this process has taken at its worst."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Where `python -c` finds this module."""

STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """Bytes resident at the highest point since this program began.

    On Linux not `ru_maxrss`: a new program inherits there the peak of the process that started it.
    """
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
