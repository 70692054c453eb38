"""Plans and topologies as data: the workers and links of a fleet, and which worker runs which segment."""

from farflung.plans.connected import connected_part, subtopology, why_left_out
from farflung.plans.holders import holders_of
from farflung.plans.pipelines import Pipeline, Sum, dealt
from farflung.plans.plan import (
    FEEDER,
    FP32_BYTES,
    CodecFindings,
    Edge,
    LaterCodecs,
    LinkCodec,
    Placement,
    Plan,
)
from farflung.plans.plan_file import read_plan, write_plan
from farflung.plans.rates import Rates, arithmetic_of
from farflung.plans.seating import renamed_codecs, seated
from farflung.plans.topology import Link, Scale, Topology, WorkerSpec
from farflung.plans.topology_file import encode_topology, read_topology, write_topology
from farflung.plans.unfolding import folded, side_by_side, single_pipelines, unfolded
from farflung.plans.wishes import NO_WISHES, CodecWishes, LinkWish, Prediction, Recompute, Wishes

__all__ = [
    "FEEDER",
    "FP32_BYTES",
    "NO_WISHES",
    "CodecFindings",
    "CodecWishes",
    "Edge",
    "LaterCodecs",
    "Link",
    "LinkCodec",
    "LinkWish",
    "Pipeline",
    "Placement",
    "Plan",
    "Prediction",
    "Rates",
    "Recompute",
    "Scale",
    "Sum",
    "Topology",
    "Wishes",
    "WorkerSpec",
    "arithmetic_of",
    "encode_topology",
    "connected_part",
    "dealt",
    "holders_of",
    "renamed_codecs",
    "seated",
    "side_by_side",
    "single_pipelines",
    "subtopology",
    "folded",
    "unfolded",
    "read_plan",
    "read_topology",
    "why_left_out",
    "write_plan",
    "write_topology",
]
