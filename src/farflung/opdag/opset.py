"""The opset as objects: schemas parsed from the table, and the check of a node's arguments against them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from farflung.errors import GraphError
from farflung.opdag.graph import MOST_RANK, Argument, BatchSize, DType, Node, Ref
from farflung.opdag.opset_table import GROUPS

MANY = -1  # the op returns a list
LONGEST_LIST = 4096
LONGEST_OF_NUMBERS = 2 * MOST_RANK
"""Two for each dimension; torch takes half a second for a `roll` by 1,000 shifts, for example."""


@dataclass(frozen=True)
class Parameter:
    """One argument of a schema: base type, list and optional markers, allowed words or the largest number."""

    name: str
    base: str
    is_list: bool
    optional: bool
    words: frozenset[str]
    required: bool
    most: int | None = None

    @property
    def longest(self) -> int:
        """The largest number of elements, if it is a list."""
        return LONGEST_LIST if self.name in ("tensors", "split_sizes") else LONGEST_OF_NUMBERS

    def admits(self, argument: Argument) -> bool:
        """Whether `argument` has the type of the schema."""
        if argument is None:
            return self.optional
        if self.is_list:
            if not isinstance(argument, list) or len(argument) > self.longest:
                return False
            inner = self.base.rstrip("?")
            return all(
                self._admits_one(e, inner) or (e is None and self.base.endswith("?")) for e in argument
            )
        return not isinstance(argument, list) and self._admits_one(argument, self.base)

    def _admits_one(self, argument: object, base: str) -> bool:
        if base == "Tensor":
            return isinstance(argument, Ref)
        if base == "Operand" and isinstance(argument, Ref):
            return True
        if base == "ScalarType":
            return isinstance(argument, DType)
        if base == "bool":
            return isinstance(argument, bool)
        if base == "str":
            return isinstance(argument, str) and argument in self.words
        if base == "int" and self.most is not None:
            return isinstance(argument, int) and not isinstance(argument, bool) and argument <= self.most
        if base == "int":
            return isinstance(argument, int | BatchSize) and not isinstance(argument, bool)
        if base == "float":
            return isinstance(argument, int | float) and not isinstance(argument, bool)
        return isinstance(argument, bool | int | float | BatchSize)


@dataclass(frozen=True)
class Op:
    """One op of the table. `results` is a count or `MANY`; `random` ops draw from the node's seed.

    `since` is the opset version that introduced it.
    """

    name: str
    group: str
    parameters: dict[str, Parameter]
    results: int
    random: bool
    since: int = 1

    def draws(self, node: Node) -> bool:
        """Whether this node draws random numbers (attention with dropout 0 does not)."""
        if not self.random:
            return False
        if self.name == "aten.native_dropout.default":
            return node.arguments.get("train") is not False and node.arguments.get("p", 0.0) != 0.0
        if self.name == "aten.scaled_dot_product_attention.default":
            return node.arguments.get("dropout_p", 0.0) != 0.0
        return True


_LINE = re.compile(
    r"(?P<name>[\w.]+)\((?P<arguments>.*)\) -> (?P<results>\*|\d)(?P<random> random)?(?: since \d+)?"
)
_SINCE = re.compile(r" since (\d+)$")
_ARGUMENT = re.compile(
    r"(?P<base>Tensor\??(?=\[\])|\w+)(?:\((?P<words>[\w|]+)\))?(?P<list>\[\])?(?P<optional>\?)? "
    r"(?P<name>\w+)(?:=(?P<default>.+))?$"
)


def full_name(name: str) -> str:
    """An op's name with its namespace, which the table leaves out where it is torch's own."""
    return name if name.count(".") == 2 else f"aten.{name}"


def _parameter(text: str) -> Parameter:
    match = _ARGUMENT.fullmatch(text)
    assert match, f"opset table: {text!r}"
    return Parameter(
        name=match["name"],
        base=match["base"],
        is_list=bool(match["list"]),
        optional=bool(match["optional"]),
        words=frozenset((match["words"] or "").split("|")),
        required=match["default"] is None,
        most=int(match["words"]) if match["words"] and match["base"] == "int" else None,
    )


def _since(line: str) -> int:
    found = _SINCE.search(line)
    return int(found[1]) if found else 1


def _op(line: str, group: str) -> Op:
    match = _LINE.fullmatch(line)
    assert match, f"opset table: {line!r}"
    parameters = [_parameter(p) for p in re.split(r", (?![^\[]*\])", match["arguments"]) if p]
    return Op(
        name=full_name(match["name"]),
        group=group,
        parameters={p.name: p for p in parameters},
        results=MANY if match["results"] == "*" else int(match["results"]),
        random=bool(match["random"]),
        since=_since(line),
    )


@cache
def table() -> dict[str, Op]:
    """Every op by name."""
    ops = [_op(line, group) for group, text in GROUPS.items() for line in text.split("\n") if line]
    return {op.name: op for op in ops}


@cache
def version() -> int:
    """The newest version in the table."""
    return max(op.since for op in table().values())


def needed_version(ops: Iterable[str]) -> int:
    """The lowest version whose table holds all of these ops.

    Raises
    ------
    GraphError
        The opset has no such op.
    """
    return max((lookup(op).since for op in ops), default=1)


@cache
def schema_hash(version: int) -> str:
    """A short hash of all lines of the table up to `version`, by which two machines compare their opsets."""
    kept = {
        group: [line for line in text.split("\n") if not line or _since(line) <= version]
        for group, text in GROUPS.items()
    }
    text = "\n".join(f"{group}\n" + "\n".join(lines) for group, lines in kept.items() if any(lines))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def conflict(version_there: int, hash_there: str) -> str | None:
    """Why the opset of a peer with this version and hash is incompatible with ours; None if it is compatible.

    A newer version than ours is accepted without a check, because tables only grow.
    """
    if version_there > version() or hash_there == schema_hash(version_there):
        return None
    return (
        f"its opset version {version_there} has the schema hash {hash_there}, here it has "
        f"{schema_hash(version_there)}: somebody changed the table, install the same farflung on both"
    )


def lookup(name: str) -> Op:
    """The op called `name`.

    Raises
    ------
    GraphError
        The opset has no such op.
    """
    op = table().get(name)
    if op is None:
        raise GraphError(f"op {name[:80]!r} is not in the opset (version {version()})")
    return op


def check_arguments(node: Node) -> Op:
    """Check a node's op, argument names and argument types against the table.

    Raises
    ------
    GraphError
        An unknown op or argument, a missing one, one of the wrong type, or the wrong number of results.
    """
    op = lookup(node.op)
    where = f"node {node.number} ({node.op})"
    for name, argument in node.arguments.items():
        parameter = op.parameters.get(name)
        if parameter is None:
            raise GraphError(f"{where}: the opset's schema has no argument {name[:40]!r}")
        if not parameter.admits(argument):
            kind = parameter.base + (f"[] of at most {parameter.longest}" if parameter.is_list else "")
            kind += "?" if parameter.optional else ""
            kind += "" if parameter.most is None else f" of at most {parameter.most}"
            raise GraphError(f"{where}: argument {name!r} must be {kind}, found {str(argument)[:60]!r}")
    missing = [p.name for p in op.parameters.values() if p.required and p.name not in node.arguments]
    if missing:
        raise GraphError(f"{where}: argument {missing[0]!r} is missing")
    if op.results not in (MANY, len(node.outputs)):
        raise GraphError(f"{where}: the op has {op.results} results, found {len(node.outputs)}")
    return op
