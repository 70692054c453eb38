"""Read and write plans as JSON files, such as the one in every run folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from farflung.errors import PlanError
from farflung.files import write_atomically
from farflung.plans.plan import Plan

MOST_BYTES = 64 * 1024 * 1024
NAME = "plan.json"
"""The file's name in a run folder."""
_HINT = "`farflung plan --save` and every run write one"


def read_plan(path: Path) -> Plan:
    """Read the plan in the file or run folder at `path`.

    Raises
    ------
    PlanError
        The file cannot be read, is larger than 64 MiB, is not JSON, or breaks a rule of `Plan`.
    """
    path = path / NAME if path.is_dir() else path
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise PlanError(f"{path} is not a plan: it has more than {MOST_BYTES} bytes")
    try:
        if _is_topology(data):
            raise PlanError(f"{path} is a topology, not a plan: {_HINT}")
        return msgspec.json.decode(data, type=Plan)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not a plan: {error} ({_HINT})") from None


def _is_topology(data: bytes) -> bool:
    document = msgspec.json.decode(data)
    return isinstance(document, dict) and {"workers", "bandwidth_mbps"} <= document.keys()


def write_plan(plan: Plan, path: Path) -> None:
    """Write `plan` to the file at `path`; raises PlanError if that fails."""
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
    except OSError as error:
        raise PlanError(f"cannot write the plan {path}: {error.strerror or error}") from None
