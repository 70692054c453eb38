"""Messages in the words of Python: `--checkpoint-every` is `checkpoint_every=` there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from farflung.errors import FarflungError

_OPTION = re.compile(r"--([a-z][a-z-]*)(?: (?=[0-9]))?")
_COMMAND = re.compile(r"(`[^`]*`)")


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
    """The same words, with arguments for options: `--workers 2` becomes `workers=2`; commands stay."""
    parts = _COMMAND.split(words)
    return "".join(
        part if part.startswith("`") else _OPTION.sub(lambda found: found[1].replace("-", "_") + "=", part)
        for part in parts
    )
