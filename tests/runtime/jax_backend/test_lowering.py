from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from farflung.opdag import opset
from farflung.opdag.opset_table import GROUPS
from farflung.runtime.jax_backend import lowering

LINES = {
    opset.full_name(line.split("(", 1)[0]): line
    for text in GROUPS.values()
    for line in text.split("\n")
    if line
}
OPS = sorted(lowering.table())


def test_every_op_is_lowered_or_refused_with_a_reason() -> None:
    assert set(lowering.lacks()) == set(lowering.REFUSED)
    assert all(lowering.REFUSED.values())


def test_nothing_is_lowered_that_the_opset_lacks() -> None:
    assert lowering.table().keys() <= opset.table().keys()


@pytest.mark.parametrize("name", OPS)
def test_arguments_and_defaults_are_the_tables(name: str) -> None:
    parameters = inspect.signature(lowering.table()[name]).parameters
    positional = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    op = opset.table()[name]
    assert {"random_key"} & set(parameters) == ({"random_key"} if op.random else set())
    for parameter in op.parameters.values():
        ours = next((p for p in positional if p.name == parameter.name), None)
        assert ours is not None, parameter.name
        assert parameter.required <= (ours.default is ours.empty or parameter.optional), parameter.name
        if not parameter.required:
            assert _text(ours.default) == _stated(LINES[name], parameter.name), parameter.name


def _text(default: object) -> str:
    """A default as the table writes it, with lists of one number repeated written as the table does."""
    if isinstance(default, tuple | list):
        return f"[{', '.join(str(element) for element in default)}]"
    return str(float(default)) if isinstance(default, float) else str(default)


def _stated(line: str, name: str) -> str:
    start = line.index(f" {name}=") + len(name) + 2
    end = start
    depth = 0
    while depth or line[end] not in ",)":
        depth += {"[": 1, "]": -1}.get(line[end], 0)
        end += 1
    text = line[start:end]
    try:
        return str(float(text)) if "." in text or "e-" in text else text
    except ValueError:
        return text


def test_no_torch_is_imported() -> None:
    """A worker on JAX needs none: the import is made to fail."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from farflung.runtime.jax_backend.backend import JaxBackend\n"
        "backend = JaxBackend()\n"
        "print(backend.offer().framework, len(backend.kernel_digest()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("jax ") and done.stdout.endswith(" 32\n")
