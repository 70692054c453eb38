"""Segments written by hand, as somebody who wishes a worker ill would."""

from __future__ import annotations

from farflung.opdag import opset, wire
from farflung.opdag.graph import Argument, Input, Node, ValueType
from farflung.opdag.segment import Segment


def segment_of(
    inputs: list[ValueType], nodes: list[tuple[str, dict[str, Argument], list[int]]], made: list[ValueType]
) -> Segment:
    """A segment whose inputs are values 0, 1, ... and whose nodes make the values after them.

    It has passed `load_segment`; the last value is what it sends.
    """
    types = [*inputs, *made]
    segment = Segment(
        version=wire.FORMAT_VERSION,
        opset=opset.version(),
        number=0,
        values=dict(enumerate(types)),
        inputs=[Input(number, "input", f"input{number}") for number in range(len(inputs))],
        owned=[],
        receives=[],
        nodes=[
            Node(at, opset.full_name(op), arguments, outputs)
            for at, (op, arguments, outputs) in enumerate(nodes)
        ],
        sends=[len(types) - 1],
        differentiable=[],
        loss=None,
        mutations={},
        constants={},
    )
    return wire.load_segment(wire.dump(segment), 2)
