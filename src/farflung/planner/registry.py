"""The schedulers by name, each imported when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from farflung.errors import PlanError
from farflung.planner.assignment import Options, Schedule, Scheduler
from farflung.plans import Topology
from farflung.plans.wishes import AUTO
from farflung.workload import Workload


@dataclass(frozen=True)
class _Lazily:
    """A scheduler that is where its name says."""

    module: str
    name: str

    def __call__(self, topology: Topology, workload: Workload, options: Options) -> Schedule:
        found: Scheduler = getattr(import_module(f"farflung.planner.{self.module}"), self.name)
        return found(topology, workload, options)


SCHEDULERS: Mapping[str, Scheduler] = {
    "equal-count": _Lazily("schedulers.baselines", "equal_count"),
    "equal-compute": _Lazily("schedulers.baselines", "equal_compute"),
    "op-fence": _Lazily("schedulers.opfence", "opfence"),
    "op-fence-plus": _Lazily("schedulers.opfence", "opfence_plus"),
    "evolutionary": _Lazily("schedulers.evolutionary", "evolutionary"),
    "exact": _Lazily("schedulers.exact", "exact"),
    AUTO: _Lazily("schedulers.auto", "auto"),
}


def scheduler(name: str) -> Scheduler:
    """The scheduler of this name; PlanError says which there are."""
    if name not in SCHEDULERS:
        close = get_close_matches(name, SCHEDULERS, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise PlanError(f"no scheduler is called {name[:60]!r}: {hint}there are {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name]
