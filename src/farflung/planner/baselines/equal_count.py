"""Equal count: contiguous segments with the same number of operators on the workers in their order.

A baseline of FusionLLM's evaluation (arXiv 2410.12707). How the paper breaks ties, and what it does where
memory is short, could not be read; see `even_shares`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from farflung.plan import Topology
from farflung.planner.assignment import Options, Schedule
from farflung.planner.baselines.even_shares import even_shares
from farflung.workload import Workload


def equal_count(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """The same number of operators for every worker, whatever they cost; see `even_shares`."""
    counted = replace(workload, flops=np.ones(len(workload)))
    return even_shares("equal-count", topology, workload, counted, options)
