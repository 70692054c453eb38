"""The model as data.

graph, segment, form
    The OP-DAG, a segment of it, and the shapes of tensors that cross between segments.
opset, opset_table
    The allow-list of ops with their schemas.
wire
    OP-DAGs and segments as bytes, and the checks of what is received.
capture
    Turn an `nn.Module` and its loss into an OP-DAG; needs torch.
analysis, partition
    Dependencies in a graph, and how it is cut into segments.
cost, storage, saved_tensors
    FLOPs, memory and saved tensors of nodes, from shapes alone.
"""

from farflung.opdag.graph import BatchSize, Constant, DType, Graph, Input, Node, Ref, ValueType

__all__ = ["BatchSize", "Constant", "DType", "Graph", "Input", "Node", "Ref", "ValueType"]
