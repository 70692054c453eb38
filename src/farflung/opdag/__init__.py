"""The model as data: the OP-DAG, its opset, its wire format, how a module becomes one and how it is cut."""

from farflung.opdag.graph import BatchSize, Constant, DType, Graph, Input, Node, Ref, ValueType

__all__ = ["BatchSize", "Constant", "DType", "Graph", "Input", "Node", "Ref", "ValueType"]
