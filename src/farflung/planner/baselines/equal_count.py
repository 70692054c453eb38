"""Equal count: contiguous segments with the same number of operators on the workers in their order.

A baseline of FusionLLM's evaluation (arXiv 2410.12707). How the paper breaks ties, and what it does where
memory is short, could not be read; see `even_shares`.
"""

from __future__ import annotations

import numpy as np

from farflung.planner.assignment import Options, Schedule
from farflung.planner.baselines.even_shares import even_shares
from farflung.planner.cutting.positions import FINE
from farflung.planner.kept import once
from farflung.plans import Topology
from farflung.workload import Workload

ROUGH = 512
"""Of how many parts of a model `nearly_equal_count` keeps the cheapest cuts."""


def equal_count(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """The same number of operators for every worker, whatever they cost; see `even_shares`."""
    return _with_parts(topology, workload, options, FINE)


def nearly_equal_count(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """The same to within a 256th of the model, in a tenth of the time where there are 1,500 places to cut.

    For who plans again and again: where every operator counts alike no place to cut can be told from its
    neighbours, so `equal_count` looks at all of them, which takes longer than all other schedulers together.
    """
    return _with_parts(topology, workload, options, ROUGH)


def _with_parts(topology: Topology, workload: Workload, options: Options, parts: int) -> Schedule:
    return even_shares("equal-count", topology, workload, _counted(workload), options, parts)


@once
def _counted(workload: Workload) -> Workload:
    return workload.weighing(np.ones(len(workload)))
