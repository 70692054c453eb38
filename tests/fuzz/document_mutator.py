"""Damage to an OP-DAG by somebody who knows the format: other ops, arguments, sizes, references, orders.

Documents are what msgpack says of a graph or a segment: lists and dicts. A damaged one shares with its sample
all that was left alone, so that a document of any size costs the same.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.mutators import INTEGERS, NUMBERS, TEXTS

from farflung.opdag import opset
from farflung.opdag.graph import ITEM_BYTES

Document = dict[str, Any]

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 16, -1, -2, -9, 64, 4096, 2**31 - 1, 2**31, 2**40, -(2**40), 2**63 - 1]
DTYPES = sorted(ITEM_BYTES)
OPS = sorted(opset.table())
OUTSIDE = ["aten.from_file.default", "aten.set_.source_Storage", "os.system.default", "aten.add", "prims.x.y"]
JUNK = [None, True, -1, 0.5, "", [], {}, [[]], b"x", 2**63, {"k": "v", "id": 0}, {"k": "?"}, [None] * 40]


class DocumentMutator:
    """Damages documents; two with the same seed do the same damage."""

    def __init__(self, random: Random) -> None:
        self._random = random
        edits: dict[Callable[[Document], None], int] = {
            self._argument: 8, self._op: 3, self._type: 5, self._outputs: 1, self._less: 1, self._order: 2,
            self._input: 2, self._field: 2, self._constant: 1,
        }  # fmt: skip
        self._edits, self._weights = list(edits), list(edits.values())

    def damaged(self, document: Document) -> Document:
        """Another document, one to three places of which differ from `document`."""
        made = dict(document)
        for edit in self._random.choices(self._edits, self._weights, k=self._random.choice([1, 1, 1, 2, 3])):
            edit(made)
        return made

    def argument(self, parameter: opset.Parameter, values: int) -> Any:
        """Something that a parameter of a schema mostly admits; references are to `values` values."""
        if parameter.optional and self._random.random() < 0.2:
            return None
        if not parameter.is_list:
            return self._one(parameter.base, parameter, values)
        count = self._random.choice([0, 1, 1, 2, 2, 2, 3, 4, 5, 9])
        count = 4000 if self._random.random() < 0.002 else count
        return [self._one(parameter.base, parameter, values) for _ in range(count)]

    def size(self) -> Any:
        """A size, mostly a small one, that may follow the batch."""
        random = self._random
        if random.random() < 0.1:
            return {"k": "b", "factor": random.choice(SIZES[:12]), "offset": random.choice(SIZES[:12])}
        return random.choice(SIZES[: random.choice([5, 8, 13, len(SIZES)])])

    def type(self) -> list[Any]:
        """An element type and a shape."""
        rank = self._random.choice([0, 1, 1, 2, 2, 3, 4, 5, 8, 9])
        return [self._dtype(), [self.size() for _ in range(rank)]]

    def _dtype(self) -> str:
        return self._random.choice(["float32", "int64", "bool", *DTYPES])

    def _one(self, base: str, parameter: opset.Parameter, values: int) -> Any:
        random = self._random
        if base == "Tensor?" and random.random() < 0.3:
            return None
        if base.startswith("Tensor") or (base == "Operand" and random.random() < 0.6):
            return {"k": "v", "id": random.randrange(max(values, 1))}
        if base == "ScalarType":
            return {"k": "t", "name": random.choice(DTYPES)}
        if base == "str":
            return random.choice([*parameter.words, random.choice(TEXTS)])
        if base == "bool":
            return random.random() < 0.5
        if base == "int":
            return self.size()
        number = random.choice([0.0, 0.5, 1.0, 1e-5, -1.0, 2, -100, random.choice(NUMBERS), self.size()])
        return number if base != "float" or isinstance(number, float) else 0.1

    def _node(self, document: Document) -> list[Any]:
        """A node of the document that may be changed without harm to its sample."""
        nodes = document["nodes"] = list(_list(document.get("nodes")))
        at = self._random.randrange(len(nodes)) if nodes else 0
        if not nodes or not isinstance(nodes[at], list) or len(nodes[at]) != 4:
            nodes.append([len(nodes), "aten.relu.default", {}, [0]])
            at = len(nodes) - 1
        node = nodes[at] = list(nodes[at])
        node[2], node[3] = dict(_dict(node[2])), list(_list(node[3]))
        return node

    def _argument(self, document: Document) -> None:
        node = self._node(document)
        op = opset.table().get(node[1])
        names = [*(op.parameters if op else ()), *node[2]]
        name = self._random.choice(names or ["self"])
        draw = self._random.random()
        if draw < 0.08 or op is None or name not in op.parameters:
            node[2][name] = self._random.choice(JUNK)
        elif draw < 0.12:
            node[2][self._random.choice(TEXTS)] = 1
        else:
            values = len(document["values"]) if isinstance(document.get("values"), list | dict) else 1
            node[2][name] = self.argument(op.parameters[name], values + 2)

    def _op(self, document: Document) -> None:
        self._node(document)[1] = self._random.choice([*OPS, *OUTSIDE, *TEXTS])

    def _type(self, document: Document) -> None:
        values = document.get("values")
        if isinstance(values, list) and values:
            document["values"] = values = list(values)
            at = self._random.randrange(len(values))
        elif isinstance(values, dict) and values:
            document["values"] = values = dict(values)
            at = self._random.choice(list(values))
        else:
            return
        found = values[at]
        if self._random.random() < 0.5 or len(_list(found)) != 2 or not _list(found[1]):
            values[at] = self.type()
            return
        shape = list(found[1])
        shape[self._random.randrange(len(shape))] = self.size()
        values[at] = [found[0] if self._random.random() < 0.7 else self._dtype(), shape]

    def _outputs(self, document: Document) -> None:
        outputs = self._node(document)[3]
        action = self._random.random()
        if action < 0.4 or not outputs:
            outputs.append(self._random.choice([-1, 0, 1, 2, len(_list(document.get("values"))), 10**6]))
        elif action < 0.7:
            outputs.pop()
        else:
            outputs[self._random.randrange(len(outputs))] = self._random.choice([-1, 0, 1, -2, 2**31])

    def _less(self, document: Document) -> None:
        arguments = self._node(document)[2]
        if arguments:
            del arguments[self._random.choice(list(arguments))]

    def _order(self, document: Document) -> None:
        nodes = document["nodes"] = list(_list(document.get("nodes")))
        if len(nodes) < 2:
            return
        a, b = (self._random.randrange(len(nodes)) for _ in range(2))
        action = self._random.random()
        if action < 0.4:
            nodes[a], nodes[b] = nodes[b], nodes[a]
        elif action < 0.7:
            del nodes[a]
        else:
            nodes.insert(b, nodes[a])

    def _input(self, document: Document) -> None:
        inputs = document["inputs"] = list(_list(document.get("inputs")))
        if not inputs or not _list(inputs[0]):
            return
        at = self._random.randrange(len(inputs))
        entry = inputs[at] = list(_list(inputs[at])) or [0, "input", "x", False]
        kinds = ["input", "parameter", "buffer", "constant", *TEXTS]
        drawn = [
            self._random.choice([0, 1, 2, 10**6, -1]), self._random.choice(kinds),
            self._random.choice([str(entry[2]) + "x", *TEXTS]), self._random.random() < 0.5,
        ]  # fmt: skip
        field = self._random.randrange(len(entry))
        entry[field] = drawn[field]

    def _field(self, document: Document) -> None:
        names = [*document, "surprise"]
        name = self._random.choice(names)
        found = document.get(name)
        if isinstance(found, list) and found and self._random.random() < 0.6:
            document[name] = self._random.choice([found[:-1], found * 2, found[::-1], [*found, found[0]]])
        elif isinstance(found, dict) and found and self._random.random() < 0.6:
            gone = self._random.choice(list(found))
            document[name] = {key: value for key, value in found.items() if key != gone}
        elif isinstance(found, int):
            document[name] = self._random.choice([found + 1, *INTEGERS])
        else:
            document[name] = self._random.choice(JUNK)

    def _constant(self, document: Document) -> None:
        constants = document["constants"] = dict(_dict(document.get("constants")))
        name = self._random.choice([*constants, "k"])
        constant = dict(_dict(constants.get(name)) or {"dtype": "float32", "shape": [2], "data": bytes(8)})
        data = constant.get("data")
        drawn = {
            "dtype": self._random.choice(DTYPES), "shape": [self.size() for _ in range(2)],
            "data": (data if isinstance(data, bytes) else b"") + b"\0",
        }  # fmt: skip
        field = self._random.choice(list(drawn))
        constants[name] = {**constant, field: drawn[field]}


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _dict(found: Any) -> dict[Any, Any]:
    return found if isinstance(found, dict) else {}
