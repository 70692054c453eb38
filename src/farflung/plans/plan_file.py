"""Plans in files: JSON, as every run folder has one; checked and bounded when read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from farflung.errors import PlanError
from farflung.files import write_atomically
from farflung.plans.plan import Plan

MOST_BYTES = 64 * 1024 * 1024
NAME = "plan.json"
"""What it is called in a run folder."""
_HINT = "`farflung plan --save` and every run write one"


def read_plan(path: Path) -> Plan:
    """The plan that the file at `path` holds, or the run folder there.

    Raises
    ------
    PlanError
        The file cannot be read, is larger than 64 MiB, is no JSON, or breaks a rule of `Plan`.
    """
    path = path / NAME if path.is_dir() else path
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise PlanError(f"{path} is no plan: it has more than {MOST_BYTES} bytes")
    try:
        if _is_topology(data):
            raise PlanError(f"{path} is a topology, not a plan: {_HINT}")
        return msgspec.json.decode(data, type=Plan)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is no plan: {error} ({_HINT})") from None


def _is_topology(data: bytes) -> bool:
    document = msgspec.json.decode(data)
    return isinstance(document, dict) and {"workers", "bandwidth_mbps"} <= document.keys()


def write_plan(plan: Plan, path: Path) -> None:
    """Write `plan` to the file at `path`; raises PlanError where that fails."""
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
    except OSError as error:
        raise PlanError(f"cannot write the plan {path}: {error.strerror or error}") from None
