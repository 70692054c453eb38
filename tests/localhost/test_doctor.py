"""What `farflung doctor` says of this machine."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.localhost import doctor


@pytest.mark.parametrize(
    ("role", "id", "words"),
    [
        ("broker", "broker", "broker, good for 2.0 more days"),
        ("worker", "a", "worker a, good for 2.0 more days"),
    ],
)
def test_a_certificate_is_named_once(role: str, id: str, words: str) -> None:
    identity: Any = SimpleNamespace(role=role, id=id, expires_at=time.time() + 2 * 86_400)
    assert doctor._certificate(identity).found == words
