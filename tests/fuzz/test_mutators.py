from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.mutators import Mutator

CONTENT = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(CONTENT, st.binary(), st.integers())
def test_the_same_seed_does_the_same_damage(content: Any, data: bytes, seed: int) -> None:
    encoded = msgspec.msgpack.encode(content)

    def damages() -> list[bytes]:
        mutator = Mutator(Random(seed))
        return [mutator.bytes(data), mutator.values(encoded), mutator.fields(encoded)]

    assert damages() == damages()


@given(st.binary(), st.integers())
def test_damaged_bytes_are_others(data: bytes, seed: int) -> None:
    assert Mutator(Random(seed)).bytes(data) != data
