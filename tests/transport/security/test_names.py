from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import IdentityError
from farflung.transport.security.names import (
    MAXIMUM_ID_LENGTH,
    ROLES,
    check_id,
    default_id,
    holder_name,
    parse_holder_name,
)


@settings(max_examples=50)
@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True), st.sampled_from(ROLES))
def test_a_name_gives_back_its_id_and_role(id: str, role: str) -> None:
    assert parse_holder_name(holder_name(id, role)) == (id, role)


@pytest.mark.parametrize("id", ["", "-a", "a-", "A", "a.b", "a_b", "a b", "a\n", "é", "a" * 41, "*"])
def test_an_id_must_be_one_dns_label(id: str) -> None:
    with pytest.raises(IdentityError, match="cannot be an id"):
        check_id(id)


@pytest.mark.parametrize(
    "name",
    [
        "a.worker.farflung.internal.evil",
        "a.worker.example.org",
        "worker.farflung.internal",
        "a.root.farflung.internal",
        "a.b.worker.farflung.internal",
        "*.worker.farflung.internal",
        "",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(IdentityError):
        parse_holder_name(name)


@settings(max_examples=100)
@given(st.text(max_size=80), st.binary(min_size=1, max_size=90))
def test_every_host_has_a_default_id(host: str, key: bytes) -> None:
    id = default_id(host, key)
    assert check_id(id) == id
    assert id == default_id(host, key)
    assert len(id) <= MAXIMUM_ID_LENGTH


def test_the_default_id_begins_with_the_host_and_differs_by_key() -> None:
    assert default_id("Lab_Box.example.org", b"1").startswith("lab-box-")
    assert default_id("lab", b"1") != default_id("lab", b"2")
