import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from farflung.errors import LabError
from farflung.lab import spec
from farflung.lab.spec import HOME_LAN, LabSpec, LinkSettings, Node
from farflung.lab.switch.fabric import Fabric
from farflung.lab.switch.shaper import Channel

SPEC = LabSpec(
    (Node("a", up_mbps=8, down_mbps=50), Node("b"), Node("broker", shares_line_with="a")),
    {("a", "b"): LinkSettings(100, 20), ("b", "a"): LinkSettings(None, 30)},
)


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def route(fabric: Fabric, source: str, target: str) -> Channel:
    number = fabric.numbers[fabric.port(target)]
    found = fabric.route(fabric.port(source), packed(spec.ipv4(number)))
    assert found is not None
    assert found is fabric.route(fabric.port(source), packed(spec.ipv6(number)))
    return found


def test_nodes_that_share_an_access_line_share_pipes_and_paths() -> None:
    fabric = Fabric(SPEC)
    own, shared = route(fabric, "a", "b"), route(fabric, "broker", "b")
    assert own.up is shared.up
    assert own.path is shared.path
    assert route(fabric, "b", "a").down is route(fabric, "b", "broker").down
    assert own is not shared


def test_traffic_within_a_home_uses_no_access_line() -> None:
    channel = route(Fabric(SPEC), "broker", "a")
    assert (channel.up, channel.down) == (None, None)
    assert channel.path.settings == HOME_LAN


def test_a_named_pair_keeps_its_own_settings_in_a_shared_home() -> None:
    own = LinkSettings(5, 7)
    fabric = Fabric(LabSpec(SPEC.nodes, {**SPEC.links, ("broker", "b"): own}))
    assert route(fabric, "broker", "b").path.settings == own
    assert route(fabric, "a", "b").path.settings == LinkSettings(100, 20)


def test_unknown_and_own_addresses_have_no_route() -> None:
    fabric = Fabric(SPEC)
    for address in ("10.99.0.1", "10.99.0.200", "8.8.8.8", "ff02::1"):
        assert fabric.route(0, packed(address)) is None


def test_new_addresses_replace_the_old_ones_for_everyone() -> None:
    fabric = Fabric(SPEC)
    before = route(fabric, "a", "b")
    assert fabric.renumber("b") == 4
    assert fabric.routes[0].get(packed(spec.ipv4(2))) is None
    assert fabric.route(0, packed(spec.ipv4(2))) is None
    assert route(fabric, "a", "b") is before
    for _ in range(spec.LAST_NUMBER - 4):
        fabric.renumber("b")
    with pytest.raises(LabError, match="all 4094 addresses of this lab have been used"):
        fabric.renumber("b")


def test_the_shortest_latency_follows_changes() -> None:
    fabric = Fabric(SPEC)
    assert fabric.shortest_latency == 0.02
    fabric.set_link("b", "a", LinkSettings(None, 5))
    assert fabric.settings("b", "broker") == LinkSettings(None, 5)
    assert fabric.shortest_latency == 0.005


def test_an_access_line_changes_for_all_nodes_that_share_it() -> None:
    fabric = Fabric(SPEC)
    fabric.set_line(replace(fabric.line("broker"), up_mbps=16))
    up = route(fabric, "a", "b").up
    assert up is not None
    assert up.seconds_per_byte == pytest.approx(8e-6 / 16)
    assert fabric.line("a") == Node("a", up_mbps=16, down_mbps=50)


@pytest.mark.parametrize("change", [lambda f: f.cut("a", "a", True), lambda f: f.settings("a", "a")])
def test_a_node_has_no_link_to_itself(change: Callable[[Fabric], object]) -> None:
    with pytest.raises(LabError, match="from one node of the lab to another, found a -> a"):
        change(Fabric(SPEC))
