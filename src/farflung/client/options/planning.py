"""How to plan, as options say it: topology, efficiency of devices, recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

from farflung.errors import PlanError, TooFewCuts

if TYPE_CHECKING:
    from farflung.plans import Recompute, Topology

MOST_REPLICAS = 1000


def load_topology(name_or_path: str) -> Topology:
    """The topology of that testbed or file."""
    from farflung.plans.testbeds.catalogue import find_topology

    return find_topology(name_or_path)


def parse_recompute(given: str) -> Recompute:
    """Parse `--recompute`; raises PlanError if there is no such choice."""
    from farflung.plans import Recompute

    for word in get_args(Recompute):
        if given == word:
            return word
    raise PlanError(f"--recompute must be auto, always or never, found {given!r}")


def parse_replicas(given: str) -> int:
    """Parse `--replicas`, 0 for auto; raises PlanError if it is no number of replicas."""
    if given == "auto":
        return 0
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= MOST_REPLICAS:
        raise PlanError(
            f"--replicas must be auto or a number from 1 to {MOST_REPLICAS}, found {given[:40]!r}"
        )
    return int(given)


def parse_efficiency(given: float | None, measured: bool = False) -> float:
    """The fraction of rated or `measured` TFLOP/s that devices sustain; PlanError if out of range."""
    from farflung.plans.wishes import DATA_SHEET_EFFICIENCY, MEASURED_EFFICIENCY

    if given is not None and not 0 < given <= 1:
        raise PlanError(f"--efficiency must be above 0 and at most 1, found {given:g}")
    usual = MEASURED_EFFICIENCY if measured else DATA_SHEET_EFFICIENCY
    return usual if given is None else given


@contextmanager
def fewer_workers_advice(option: str, connected: int | None = None) -> Iterator[None]:
    """Say in a `PlanError` of this block which option asked for too many workers, and its largest value.

    So many workers are `connected` now; None if that is not known.
    """
    try:
        yield
    except TooFewCuts as error:
        raise PlanError(f"{error.found}: {_cure(option, error.most, connected)}") from None


def _cure(option: str, most: int, connected: int | None) -> str:
    if option == "--on":
        return f"name at most {most} with --on"
    if option != "--workers" or most == 1:
        return f"use {option} {most}"
    if connected is None or connected >= most:
        return f"use {option} {most} or fewer"
    if connected == 0:
        return f"use {option} {most} or fewer once workers have joined (none is connected)"
    return f"use {option} {connected}, as many as are connected, or up to {most} once more have joined"
