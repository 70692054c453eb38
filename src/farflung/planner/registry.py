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
class _ImportedOnUse:
    """A scheduler that is imported when it is first called."""

    module: str
    name: str

    def __call__(self, topology: Topology, workload: Workload, options: Options) -> Schedule:
        function: Scheduler = getattr(import_module(f"farflung.planner.{self.module}"), self.name)
        return function(topology, workload, options)


SCHEDULERS: Mapping[str, Scheduler] = {
    "equal-count": _ImportedOnUse("schedulers.baselines", "equal_count"),
    "equal-compute": _ImportedOnUse("schedulers.baselines", "equal_compute"),
    "op-fence": _ImportedOnUse("schedulers.opfence", "opfence"),
    "op-fence-plus": _ImportedOnUse("schedulers.opfence", "opfence_plus"),
    "evolutionary": _ImportedOnUse("schedulers.evolutionary", "evolutionary"),
    "exact": _ImportedOnUse("schedulers.exact", "exact"),
    AUTO: _ImportedOnUse("schedulers.auto", "auto"),
}


def scheduler(name: str) -> Scheduler:
    """The scheduler of this name; if there is none, PlanError lists those that exist."""
    if name not in SCHEDULERS:
        close = get_close_matches(name, SCHEDULERS, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise PlanError(f"no scheduler {name[:60]!r}: {hint}the schedulers are {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name]
