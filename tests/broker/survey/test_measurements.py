"""What a newer measurement leaves of an older one."""

from __future__ import annotations

import msgspec
import pytest
from tests.broker.survey.test_topology import known, link

from farflung.broker.survey.measurements import ENOUGH_FAILURES, PairMeasurement, read_row, row


def failed(path: str = "", failures: int = 1, problem: str = "no link came about") -> PairMeasurement:
    return link("a", "b", 0.0, 0.0, path=path, failures=failures, problem=problem)


def test_one_failed_probe_is_no_proof_and_as_many_as_are_enough_are() -> None:
    found = known()
    for count in range(1, ENOUGH_FAILURES + 3):
        found = found.updated([failed()])
        expected = "unreachable" if count >= ENOUGH_FAILURES else "not measured"
        assert found.pairs["a", "b"].state == expected


def test_a_rate_stays_known_until_no_way_is_left() -> None:
    found = known(link("a", "b", 8.0, 20.0)).updated([failed()])
    kept = found.pairs["a", "b"]
    assert (kept.bandwidth_mbps, kept.latency_ms, kept.state) == (8.0, 20.0, "measured")
    assert kept.problem == "no link came about" and not kept.is_fresh
    gone = found.updated([failed()]).pairs["a", "b"]
    assert (gone.bandwidth_mbps, gone.state) == (0.0, "unreachable")


def test_a_probe_that_finds_a_rate_ends_the_count() -> None:
    found = known(failed(), link("a", "b", 8.0), failed()).pairs["a", "b"]
    assert (found.failures, found.state) == (1, "measured")
    assert known(failed(), failed(), link("a", "b", 8.0)).pairs["a", "b"].is_fresh


def test_silence_says_nothing_of_the_way_and_neither_does_a_link_that_came_about() -> None:
    silent, reached = failed(failures=0), failed("direct", failures=0)
    assert known(*[silent] * 9).pairs["a", "b"].state == "not measured"
    assert known(failed(), silent, failed()).pairs["a", "b"].state == "unreachable"
    assert known(failed(), reached, failed()).pairs["a", "b"].state == "not measured"
    assert known(link("a", "b", 8.0), *[silent] * 9).pairs["a", "b"].state == "measured"


def test_two_members_that_could_not_link_up_twice_are_apart_until_they_do_or_may() -> None:
    probed = known(failed(), failed(), link("a", "c", 8.0))
    once = probed.with_failed_link("c", "b", "no route", 5.0)
    assert once.pairs["b", "c"].state == "not measured"
    twice = once.with_failed_link("b", "c", "no route", 6.0)
    assert {pair: one.state for pair, one in twice.pairs.items()} == {
        ("a", "b"): "unreachable",
        ("a", "c"): "measured",
        ("b", "c"): "unreachable",
        ("c", "b"): "unreachable",
    }
    assert twice.without_failed_links(lambda pair: "a" in pair) is twice
    assert twice.without_failed_links(lambda pair: "b" in pair) == probed  # what probes found stays


def test_a_measured_link_counts_as_lost_only_if_members_fail_twice_with_no_link_between() -> None:
    found = known(link("a", "b", 8.0)).with_failed_link("a", "b", "no route", 5.0)
    assert found.pairs["a", "b"].state == "measured" and found.pairs["a", "b"].failures == 1
    linked = found.without_failed_links(lambda pair: pair == ("a", "b"))
    assert linked.pairs["a", "b"].is_fresh
    assert linked.with_failed_link("a", "b", "no route", 6.0).pairs["a", "b"].state == "measured"
    assert found.with_failed_link("a", "b", "no route", 6.0).pairs["a", "b"].state == "unreachable"


def test_what_jobs_found_of_a_link_takes_nothing_from_what_probes_measured() -> None:
    """Neither for good, once the link counts as unreachable, nor in what is stored."""
    probed = known(link("a", "b", 8.0, 20.0))
    apart = probed.with_failed_link("a", "b", "no route", 5.0).with_failed_link("b", "a", "no route", 6.0)
    assert {apart.pairs[pair].state for pair in (("a", "b"), ("b", "a"))} == {"unreachable"}
    again = apart.without_failed_links(lambda pair: "a" in pair)
    assert again == probed and again.pairs == probed.pairs
    later = apart.updated([failed()])
    (stored,) = later.current([failed()])
    assert isinstance(stored, PairMeasurement)
    assert (stored.bandwidth_mbps, stored.latency_ms, stored.source) == (8.0, 20.0, "probe")
    assert apart.updated([link("a", "b", 9.0)]).pairs["a", "b"].state == "measured"  # a probe finds a link


def test_what_is_known_survives_the_store() -> None:
    found = known(link("a", "b", 8.0), failed())
    (kept,) = found.current([failed()])
    assert read_row(row(kept)[2]) == kept == found.pairs["a", "b"]
    assert known(kept).pairs == found.pairs


def test_a_row_of_before_these_counts_is_asked_for_again() -> None:
    body = msgspec.msgpack.encode(
        {"type": "pair", "sender": "a", "receiver": "b", "bandwidth_mbps": 0.0, "latency_ms": 0.0, "at": 1.0}
    )
    found = read_row(body)
    assert isinstance(found, PairMeasurement) and found.state == "not measured"


@pytest.mark.parametrize(
    ("found", "is_known"),
    [(failed(failures=0), False), (failed(failures=2), True), (link("a", "b", 8.0), True)],
)
def test_a_probe_that_showed_nothing_is_nothing_known(found: PairMeasurement, is_known: bool) -> None:
    assert known(found).among(["a", "b", "c"]) == is_known
    assert not known(found).among(["a", "c"])
