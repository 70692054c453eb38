from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import ConnectionFailed
from farflung.transport.net.addresses import format_address, parse_address, parse_addresses


@given(st.ip_addresses().map(str), st.integers(0, 65535))
@settings(max_examples=50)
def test_addresses_survive_writing_and_reading(host: str, port: int) -> None:
    written = format_address(host, port)
    again = parse_address(written)
    assert format_address(*again) == written
    assert again[1] == port


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("broker.example:80", ("broker.example", 80)),
        ("broker.example", ("broker.example", 7700)),
        ("[::]:7700", ("::", 7700)),
        ("[2001:db8::1]", ("2001:db8::1", 7700)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
    ],
)
def test_ports_may_be_left_out(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", ":80", "a:b", "a:-1", "::1:80", "[::1", "[a]:80", "a:٣"])
def test_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ConnectionFailed, match="expected HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("text", ["[::]:79999", "a:65536", "a:" + "9" * 5000])
def test_a_port_that_cannot_be_is_not_called_a_wrong_form(text: str) -> None:
    with pytest.raises(
        ConnectionFailed, match=r"must be 1 to 65535 \(to listen also 0, which picks a free one"
    ):
        parse_address(text)


def test_ipv4_seen_through_an_ipv6_socket_keeps_its_own_form() -> None:
    assert format_address("::ffff:10.0.0.1", 7700) == "10.0.0.1:7700"
    assert format_address("fe80::1%eth0", 1) == "[fe80::1%eth0]:1"
    assert format_address("broker.example", 7700) == "broker.example:7700"


def test_a_broker_may_have_several_addresses() -> None:
    assert parse_addresses("broker.example") == ["broker.example:7700"]
    several = "a:1, [::1]:2,b,a:1"
    assert parse_addresses(several) == ["a:1", "[::1]:2", "b:7700"]


@pytest.mark.parametrize("text", ["", "a:1,", "a:1;b:2", ",".join("abcdefghi")])
def test_addresses_that_are_none_or_too_many_are_refused(text: str) -> None:
    with pytest.raises(ConnectionFailed, match="expected"):
        parse_addresses(text)
