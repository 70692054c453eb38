"""Examples as modules, without calling their `job()`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module_of(example: Path) -> ModuleType:
    """A new module of an example's file; each test may change its settings."""
    spec = importlib.util.spec_from_file_location(example.stem, example)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
