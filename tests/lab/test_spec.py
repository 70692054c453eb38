import pytest

from farflung.errors import LabError
from farflung.lab.spec import MAX_NODES, LabSpec, LinkSettings, Node


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bandwidth_mbps": 0}, "bandwidth_mbps must be from 0.001 to 100000 Mbit/s, found 0"),
        ({"bandwidth_mbps": -8}, "bandwidth_mbps must be from 0.001"),
        ({"bandwidth_mbps": 1e-300}, "bandwidth_mbps must be from 0.001"),
        ({"bandwidth_mbps": float("nan")}, "bandwidth_mbps must be from 0.001"),
        ({"bandwidth_mbps": 1e9}, "to 100000 Mbit/s, found 1e\\+09"),
        ({"latency_ms": -1}, "latency_ms must be from 0"),
        ({"latency_ms": float("inf")}, "latency_ms must be from 0"),
        ({"jitter_ms": 1e6}, "jitter_ms must be from 0 to 10000"),
        ({"loss": 1.5}, "loss must be from 0 to 1, found 1.5"),
        ({"queue_ms": 0}, "queue_ms must be above 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(LabError, match=words):
        LinkSettings(**settings)


@pytest.mark.parametrize("name", ["", "a b", "../x", "a+router", "-a", "n" * 64, "näh"])
def test_an_invalid_node_name_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="cannot name a node"):
        Node(name)


def test_an_impossible_access_line_is_refused() -> None:
    with pytest.raises(LabError, match="up_mbps of a must be from 0"):
        Node("a", up_mbps=0)


def test_names_that_collide_are_refused() -> None:
    with pytest.raises(LabError, match="two nodes are called b"):
        LabSpec((Node("a"), Node("b"), Node("b")))


def test_more_nodes_than_addresses_are_refused() -> None:
    with pytest.raises(LabError, match="addresses for 4094 nodes, 4095 were asked for"):
        LabSpec(tuple(Node(f"n{number}") for number in range(MAX_NODES + 1)))


@pytest.mark.parametrize("link", [("a", "x"), ("x", "a"), ("a", "a")])
def test_a_link_joins_two_nodes_of_the_lab(link: tuple[str, str]) -> None:
    with pytest.raises(LabError, match="from one node of the lab to another"):
        LabSpec((Node("a"), Node("b")), {link: LinkSettings()})


def test_an_access_line_is_shared_with_a_node_that_owns_one() -> None:
    with pytest.raises(LabError, match="which is no node"):
        LabSpec((Node("broker", shares_line_with="x"),))
    with pytest.raises(LabError, match="shares that of a"):
        LabSpec((Node("a"), Node("b", shares_line_with="a"), Node("c", shares_line_with="b")))
    with pytest.raises(LabError, match="leave out its up_mbps"):
        Node("b", up_mbps=5, shares_line_with="a")


@pytest.mark.parametrize("mtu", [0, 576, 65536])
def test_an_invalid_mtu_is_refused(mtu: int) -> None:
    with pytest.raises(LabError, match="mtu must be from 1280"):
        LabSpec((Node("a"),), mtu=mtu)


def test_no_nodes_are_refused() -> None:
    with pytest.raises(LabError, match="at least one node"):
        LabSpec(())
