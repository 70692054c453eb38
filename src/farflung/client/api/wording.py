"""Messages in the words of Python: `--checkpoint-every` is `checkpoint_every=` there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from farflung.errors import FarflungError

_ALIKE = (
    "steps", "out", "workers", "on", "codec", "sum-codec", "checkpoint-every", "checkpoint-to", "resume",
    "precision",
    "scheduler", "topology", "efficiency", "recompute", "replicas",
    "patience", "broker", "token", "folder", "device",
    "backends", "segments", "home",
)  # fmt: skip
ARGUMENTS = {
    **{option: f"{option.replace('-', '_')}={{}}" for option in _ALIKE},
    "local": "farflung.local({})",
    "wait": "wait_for_workers=True",
}
"""How Python says each option that it has, with its value for {}; other options stay as they are."""

_WORDS = re.compile(
    r"`[^`]*`"  # a command
    r"|(?<!\w)'[^']*'(?!\w)"  # what was found
    r"|(?<![\w-])--(?P<option>[a-z][a-z-]*)"
    r"(?: (?P<value>\d\w*(?:\.\w+)*|[A-Z][A-Z:]*\b|(?P<name>auto|always|never)\b|'[^']*'))?"
)


@contextmanager
def in_python_words(is_python: bool = True) -> Iterator[None]:
    """Say the options in a `FarflungError` of this block as arguments of a Python call."""
    try:
        yield
    except FarflungError as error:
        if is_python and error.args:
            error.args = (python_words(str(error)), *error.args[1:])
        raise


def python_words(words: str) -> str:
    """The same words, with arguments for options: `--workers 2` becomes `workers=2`.

    Commands, what stands in quotes, and options that Python has not stay.
    """
    return _WORDS.sub(_in_python, words)


def _in_python(found: re.Match[str]) -> str:
    option = found["option"]
    if option is None or option not in ARGUMENTS:
        return found[0]
    return ARGUMENTS[option].format(repr(found["name"]) if found["name"] else found["value"] or "")
