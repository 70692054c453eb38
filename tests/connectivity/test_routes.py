from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.connectivity.advertised import advertised
from farflung.connectivity.routes import (
    HELPS,
    LONGEST_REASON,
    ROUTES,
    FailedRoute,
    Route,
    advice,
    describe_failures,
    route_order,
    split_failures,
)
from farflung.protocol.fields import MAXIMUM_ADDRESSES, TEXT_LENGTH
from farflung.transport.net.addresses import parse_address
from farflung.transport.security.names import MAXIMUM_ID_LENGTH


def test_a_peer_is_sought_directly_then_in_reverse_then_by_relay() -> None:
    assert route_order(None) == ("direct", "reverse", "relay")


@given(st.sampled_from(ROUTES))
def test_a_lost_link_is_tried_over_its_last_route_first_and_each_route_once(last: Route) -> None:
    routes = route_order(last)
    assert routes[0] == last and sorted(routes) == sorted(ROUTES)
    assert [route for route in routes if route != last] == [route for route in ROUTES if route != last]


@pytest.mark.slow
@given(st.lists(st.builds(FailedRoute, st.sampled_from(ROUTES), st.text(max_size=5000)), max_size=3))
def test_failed_routes_and_advice_fit_into_a_message(tried: list[FailedRoute]) -> None:
    assert (
        len(describe_failures(tried))
        + len(advice({"a" * MAXIMUM_ID_LENGTH: 65535, "b" * MAXIMUM_ID_LENGTH: 65535}))
        < TEXT_LENGTH
    )
    for one in tried:
        assert one.reason[:LONGEST_REASON] in describe_failures(tried)


def test_the_advice_names_the_machines_and_their_ports_where_they_are_known() -> None:
    assert "TCP port 7000 through to a or a TCP port through to b (" in advice({"a": 7000, "b": 0})
    assert "let a worker's TCP port through (" in advice({})


def test_a_description_of_failed_routes_can_be_split() -> None:
    tried = [
        FailedRoute("direct", "10.0.0.1:7 refused; 10.0.0.2:7: it is out"),
        FailedRoute("relay", "relay through a: full"),
    ]
    lines = ["dialled: 10.0.0.1:7 refused; 10.0.0.2:7: it is out", "over a relay: relay through a: full"]
    assert split_failures(describe_failures(tried)) == lines and split_failures("") == []
    assert split_failures(f"no route to worker b: {describe_failures(tried)}{HELPS}{advice({})}") == lines


HOSTS = ["127.0.0.1", "::1", "192.168.1.5", "172.17.0.1", "fe80::1%eth0", "fe80::2", "2001:db8::5"]


def test_a_listener_on_every_interface_is_found_at_all_of_them_and_where_the_broker_sees_it() -> None:
    found = advertised("[::]:7000", "172.17.0.1:51000", HOSTS)
    assert found == ["172.17.0.1:7000", "192.168.1.5:7000", "[2001:db8::5]:7000", "0.0.0.0:7000"]


def test_one_that_hears_ipv4_only_tells_no_ipv6_address() -> None:
    assert advertised("0.0.0.0:7000", "", HOSTS) == ["192.168.1.5:7000", "172.17.0.1:7000", "0.0.0.0:7000"]


def test_one_on_a_single_address_is_found_there_only() -> None:
    assert advertised("127.0.0.1:7000", "192.168.1.5:51000", HOSTS) == ["127.0.0.1:7000"]


@given(st.lists(st.ip_addresses().map(str), max_size=60), st.integers(1, 65535))
def test_descriptions_of_failed_routes_are_readable_and_bounded(hosts: list[str], port: int) -> None:
    found = advertised(f"[::]:{port}", f"[2001:db8::9]:{port}", hosts)
    assert len(found) == len(set(found)) <= MAXIMUM_ADDRESSES
    assert all(parse_address(address)[1] == port for address in found)
