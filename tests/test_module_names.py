"""Module names in strings: no import or type checker sees them, so each is looked up here.

Found by reading every Python file: a string such as `farflung.cli.main` or `farflung.cli.main.run`, the
imports of a program that stands in a string, and the module before the braces of an f-string.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

import farflung
from farflung.broker.planning import client
from farflung.opdag.quantized import QUANTIZED_EMBEDDING, QUANTIZED_LINEAR
from farflung.planner.codecs.ladder import losses
from farflung.planner.registry import SCHEDULERS

ROOT = Path(__file__).parent.parent
ROOMS = ("src", "tests", "benchmarks", "examples")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))

_NAME = re.compile(r"(farflung|tests|benchmarks|examples)(\.[A-Za-z_]\w*)+")
_BEFORE_BRACES = re.compile(r"((?:farflung|tests|benchmarks)(?:\.[A-Za-z_]\w*)*)\.(?:\w*)")
NO_MODULES = {
    "farflung.internal",
    "farflung.there_is_none",
    "farflung.example",
    "farflung.svg",
    QUANTIZED_EMBEDDING,
    QUANTIZED_LINEAR,
}
"""A domain, one that a test wants to be missing, files, and ops."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def names_in(path: Path) -> Iterator[str]:
    """Dotted names in the strings of a Python file."""
    tree = ast.parse(path.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and isinstance(first := node.values[0], ast.Constant):
            if len(node.values) > 1 and (found := _BEFORE_BRACES.fullmatch(str(first.value))):
                yield found[1]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            if _NAME.fullmatch(node.value):
                yield node.value
            elif "import " in node.value and "farflung" in node.value:
                yield from _imported(node.value)


def _imported(text: str) -> Iterator[str]:
    """What a program imports of ours; nothing where the text is none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        yield from (name for name in names if name.partition(".")[0] in ("farflung", "tests", "benchmarks"))


@cache
def is_there(name: str) -> bool:
    """Whether a module of that name exists, or an attribute of one."""
    module, _, attribute = name.rpartition(".")
    try:
        if find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    if not module:
        return False
    try:
        if find_spec(module) is not None:
            return hasattr(import_module(module), attribute)
    except ModuleNotFoundError:
        pass
    owner, _, kind = module.rpartition(".")
    return is_there(module) and hasattr(getattr(import_module(owner), kind), attribute)


def test_every_module_that_a_string_names_is_there() -> None:
    found = {path: sorted(set(names_in(path)) - NO_MODULES) for path in FILES}
    assert sum(map(len, found.values())) > 60
    missing = {str(path): [name for name in names if not is_there(name)] for path, names in found.items()}
    assert {path: names for path, names in missing.items() if names} == {}


@pytest.mark.parametrize("name", farflung.__all__)
def test_every_public_name_is_found_where_it_is_said_to_be(name: str) -> None:
    assert getattr(farflung, name) is not None


@pytest.mark.parametrize("name", [client.PROGRAM, client.STEERING])
def test_what_the_broker_starts_or_imports_later_is_there(name: str) -> None:
    assert import_module(name)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_is_found_where_it_is_said_to_be(name: str) -> None:
    with pytest.raises(Exception) as caught:  # it is given nothing, and may fail at anything
        SCHEDULERS[name](None, None, None)  # type: ignore[arg-type]
    assert not isinstance(caught.value, ImportError)
    assert Path(caught.traceback[-1].path).name != "schedulers.py"


def test_the_table_that_ships_beside_a_module_is_found() -> None:
    assert losses()


def test_the_command_is_found_where_the_installation_looks() -> None:
    for target in PROJECT["project"]["scripts"].values():
        module, function = target.split(":")
        assert callable(getattr(import_module(module), function))


def test_every_module_of_a_contract_exists() -> None:
    named: set[str] = set()
    for contract in PROJECT["tool"]["importlinter"]["contracts"]:
        layers = [
            name.strip(" ()") for layer in contract.get("layers", ()) for name in re.split(r"[|:]", layer)
        ]
        ours = [*contract.get("source_modules", ()), *contract.get("forbidden_modules", ()), *layers]
        named |= {name.removesuffix(".**").removesuffix(".*") for name in ours}
        for edge in contract.get("ignore_imports", ()):
            named |= {end.strip().removesuffix(".**").removesuffix(".*") for end in edge.split("->")}
    assert [name for name in sorted(named) if find_spec(name) is None] == []
    assert len(named) > 20


def test_every_program_of_the_makefile_is_there() -> None:
    words = shlex.split((ROOT / "Makefile").read_text(), comments=True)
    named = [word for before, word in pairwise(words) if before == "-m" and "." in word]
    assert named and all(find_spec(name) for name in named)
