"""What a model costs: an OP-DAG as arrays over its nodes, and what a range of them asks of a device."""

from farflung.workload.from_graph import workload_of
from farflung.workload.workload import BACKWARD_FACTOR, Feed, Live, Repeat, Span, Workload

__all__ = ["BACKWARD_FACTOR", "Feed", "Live", "Repeat", "Span", "Workload", "workload_of"]
