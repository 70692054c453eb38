"""A process of its own for the accelerator that is not there.

Autograd counts a process's devices at its first backward pass, and a name is registered once a process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from tests.gpu.numbers_device import register

SECONDS = 240.0
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def there() -> Iterator[Ask]:
    """Calls a function where the accelerator is registered; returns what it returns, or raises."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=register) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result(SECONDS)
