"""Who is told where a worker says that it is."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farflung.broker.network.worker_addresses import WorkerAddresses, may_dial, worker_addresses
from farflung.errors import ProtocolError
from farflung.transport.net.addresses import format_address, parse_address

HOME, OTHER = "198.41.0.4", "199.9.14.201"
LAN, STRANGER = "192.168.1.5:7700", "192.33.4.12:22"


def test_an_address_without_a_host_is_where_the_broker_sees_the_worker() -> None:
    found = worker_addresses(
        ["0.0.0.0:7001", "[::]:7001", "lab.example:7002", STRANGER, "[2001:db8::7]:7001"],
        "[2001:db8::7]:50000",
    )
    assert found == WorkerAddresses(("[2001:db8::7]:7001",), ("lab.example:7002", STRANGER), "2001:db8::7")
    with pytest.raises(ProtocolError, match="a worker's address was refused"):
        worker_addresses(["nonsense:port"], "192.0.2.1:1")


def test_a_strangers_address_is_told_to_nobody_until_the_workers_key_answers_there() -> None:
    worker = worker_addresses(["0.0.0.0:7700", STRANGER, "lab.example:7700"], f"{HOME}:50000")
    assert worker.visible_to(HOME) == worker.visible_to(OTHER) == [f"{HOME}:7700"]
    verified = replace(worker, verified=(STRANGER,))
    assert verified.visible_to(OTHER) == [f"{HOME}:7700", STRANGER]


def test_a_home_network_is_told_to_whoever_is_seen_behind_the_same_address() -> None:
    worker = worker_addresses([LAN, "0.0.0.0:7700"], f"{HOME}:50000")
    assert worker.visible_to(HOME) == [LAN, f"{HOME}:7700"]
    assert worker.visible_to(OTHER) == [f"{HOME}:7700"]
    assert worker.visible_to("") == [f"{HOME}:7700"]


def test_an_ipv6_address_is_told_within_its_network() -> None:
    worker = worker_addresses(["[2600:1::5]:7700", LAN], f"{HOME}:50000")
    assert worker.visible_to("2600:1::9") == ["[2600:1::5]:7700"]
    assert worker.visible_to("2600:1:0:1::9") == []
    seen_over_ipv6 = worker_addresses([LAN], "[2600:1::5]:50000")
    assert seen_over_ipv6.visible_to("2600:1::9") == [LAN]


def test_a_loopback_is_told_on_one_machine_only() -> None:
    worker = worker_addresses(["127.0.0.1:7700", LAN], "127.0.0.1:50000")
    assert worker.visible_to("127.0.0.1") == worker.visible_to("::1") == [LAN, "127.0.0.1:7700"]
    assert worker.visible_to("192.168.1.9") == worker.visible_to(OTHER) == []
    behind_nat = worker_addresses(["127.0.0.1:22"], f"{HOME}:50000")
    assert behind_nat.visible_to(HOME) == []
    mapped = WorkerAddresses(claims=("[::ffff:127.0.0.1]:22",), seen=HOME)
    assert mapped.visible_to(HOME) == []


@pytest.mark.parametrize(
    ("host", "seen", "may"),
    [
        (OTHER, HOME, True),
        ("2600:1::5", HOME, True),
        ("192.168.1.5", HOME, False),  # nobody has a broker search its own network
        ("192.168.1.5", "192.168.7.9", True),
        ("192.168.1.5", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", False),
        ("::ffff:192.168.1.5", "192.168.7.9", True),
        (OTHER, f"::ffff:{HOME}", True),
        ("169.254.169.254", "10.0.0.1", False),
        ("224.0.0.1", HOME, False),
        ("0.0.0.0", HOME, False),
        ("lab.example", HOME, False),
    ],
)
def test_what_the_broker_itself_may_dial(host: str, seen: str, may: bool) -> None:
    assert may_dial(host, seen) == may


ANYWHERE = st.one_of(st.ip_addresses(), st.ip_addresses(network="192.168.1.0/28")).map(str)


@given(st.lists(ANYWHERE, max_size=8), ANYWHERE, ANYWHERE)
@example(hosts=["::ffff:1.0.0.0"], seen="192.168.1.0", reader="::ffff:1.0.0.0")
@example(hosts=["192.168.1.9"], seen="64:ff9b::", reader="64:ff9b::1")
@example(hosts=["::ffff:2.0.0.0"], seen="192.168.1.0", reader="::ffff:1.0.0.0")
def test_who_is_seen_elsewhere_is_told_of_the_workers_own_host_and_of_its_own_network_only(
    hosts: list[str], seen: str, reader: str
) -> None:
    worker = worker_addresses([format_address(host, 9) for host in hosts], format_address(seen, 50000))
    at, here = plain(reader), plain(worker.seen)
    there, is_one_home = {at, here}, at == here
    if at.version == 6 and at not in ipaddress.ip_network("64:ff9b::/96"):
        network = ipaddress.ip_network(f"{at}/64", strict=False)
        there |= {plain(host) for host in hosts if plain(host) in network}
        is_one_home = here in network
    told = {plain(parse_address(address)[0]) for address in worker.visible_to(reader)}
    assert told <= there or is_one_home or here.is_loopback


def plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address, that of IPv4 where it is written as one of IPv6."""
    address = ipaddress.ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address
