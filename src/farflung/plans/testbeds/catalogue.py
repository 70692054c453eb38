"""Find a topology by the name of a shipped testbed or by a file's path."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from farflung.errors import TopologyError
from farflung.plans.topology import Topology
from farflung.plans.topology_file import read_topology

TESTBEDS = (
    "four-homes",
    "two-sites",
    "three-sites",
    "good-wan",
    "lan",
    "eight-homes",
    "dtfm-cities",
    "fusionllm-48",
    "nanogpt-200",
    "nat",
)

FOLDER = Path(__file__).parent


def find_topology(name_or_path: str) -> Topology:
    """The shipped testbed of this name, else the topology in the file at this path.

    Raises TopologyError if it is neither.
    """
    if name_or_path in TESTBEDS:
        return load_testbed(name_or_path)
    if not name_or_path or not Path(name_or_path).exists():
        close = get_close_matches(name_or_path[:100], TESTBEDS, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise TopologyError(
            f"{name_or_path[:100]!r} is neither a file nor a testbed: {hint}the testbeds are"
            f" {', '.join(TESTBEDS)}"
        )
    return read_topology(Path(name_or_path))


def load_testbed(name: str) -> Topology:
    """The shipped testbed called `name`, one of TESTBEDS."""
    return read_topology(FOLDER / f"{name}.json")
