"""The costs of a model: an OP-DAG as arrays over its nodes, and the time and memory that a range needs."""

from farflung.workload.from_graph import workload_of
from farflung.workload.workload import BACKWARD_FACTOR, Feed, Live, Repeat, Span, Workload

__all__ = ["BACKWARD_FACTOR", "Feed", "Live", "Repeat", "Span", "Workload", "workload_of"]
