"""Equal compute: contiguous segments with the same estimated FLOPs on the workers in their order.

A baseline of FusionLLM's evaluation (arXiv 2410.12707). How the paper breaks ties, and what it does where
memory is short, could not be read; see `even_shares`.
"""

from __future__ import annotations

from farflung.planner.assignment import Options, Schedule
from farflung.planner.baselines.even_shares import even_shares
from farflung.plans import Topology
from farflung.workload import Workload


def equal_compute(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """Equal FLOPs for every worker, whatever its speed and its links; see `even_shares`."""
    return even_shares("equal-compute", topology, workload, workload, options)
