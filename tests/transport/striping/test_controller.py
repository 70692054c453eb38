from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import pytest

from farflung.transport.net.sockets import PathState, path_state
from farflung.transport.options import LinkOptions
from farflung.transport.striping.controller import MAXIMUM_CONNECTIONS, StripeController, fills_alone, is_full

EVERY = 0.05


class Busy:
    """A link that is never idle, whose rate depends on how many connections it uses."""

    def __init__(self, rate: Callable[[int], float], controller: StripeController | None = None) -> None:
        self.controller = controller or StripeController()
        self.rate = rate
        self.now = 0.0
        self.history = [self.controller.wanted]

    def run(self, seconds: float) -> list[int]:
        """The numbers of connections that were wanted, one after the other."""
        end = self.now + seconds
        while self.now < end:
            self.now += EVERY
            if self.controller.on_ack(round(self.rate(self.controller.wanted) * EVERY), self.now):
                self.history.append(self.controller.wanted)
                self.controller.on_opened(self.controller.wanted)
        return self.history


def test_a_link_that_gains_by_more_connections_gets_all_of_them_within_seconds() -> None:
    assert Busy(lambda count: 4e5 * count).run(4) == [1, 4, 16]


def test_a_link_that_one_connection_fills_goes_back_to_one_and_rarely_tries_again() -> None:
    busy = Busy(lambda count: 1e6)
    assert busy.run(4) == [1, 4, 1]
    assert busy.run(60) == [1, 4, 1, 4, 1, 4, 1]
    assert busy.run(60) == [1, 4, 1, 4, 1, 4, 1, 4, 1]


def test_a_link_that_four_connections_fill_keeps_four() -> None:
    assert Busy(lambda count: min(count, 4) * 1e6).run(10) == [1, 4, 16, 4]


def test_a_link_that_begins_to_lose_packets_is_widened_later() -> None:
    busy = Busy(lambda count: 1e6)
    busy.run(4)
    busy.rate = lambda count: 1e5 * count
    assert busy.run(30)[-1] == 16


def test_nothing_is_judged_before_the_connections_stand() -> None:
    controller = StripeController()
    changes = [controller.on_ack(50_000, turn * EVERY) for turn in range(400)]
    assert sum(changes) == 1 and controller.wanted == 4
    controller.on_opened(3)
    assert not any(controller.on_ack(1, 20 + turn * EVERY) for turn in range(400))
    controller.on_opened(4)
    assert any(controller.on_ack(1, 40 + turn * EVERY) for turn in range(400))
    assert controller.wanted == 1


def test_a_path_that_is_full_or_lossless_is_not_tried() -> None:
    state = PathState(100, 0.3, 0.1)
    busy = Busy(lambda count: 1e5 * count, StripeController(path=lambda: state))
    assert busy.run(20) == [1]
    state = PathState(0, 0.1, 0.1)
    assert busy.run(20) == [1]
    state = PathState(100, 0.11, 0.1)
    assert busy.run(5) == [1, 4, 16]


def test_the_kernel_tells_how_a_path_does() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connection,
    ):
        state = path_state(connection)
    assert path_state(connection) is None
    if sys.platform == "linux":
        assert state is not None and state.retransmitted == 0
        assert 0 < state.least_round_trip_seconds <= 10 * state.round_trip_seconds < 10
    assert is_full(PathState(5, 0.2, 0.1)) and not is_full(PathState(5, 0.1, 0.1)) and not is_full(None)


def test_idle_time_does_not_count() -> None:
    controller = StripeController()
    for turn in range(1000):
        controller.on_idle()
        assert not controller.on_ack(1000, turn * 1.0)
    assert controller.wanted == 1


@pytest.mark.parametrize(
    ("options", "congestion_control", "most"),
    [
        (LinkOptions(), "bbr", 1),
        (LinkOptions(), "cubic", MAXIMUM_CONNECTIONS),
        (LinkOptions(), "unknown", MAXIMUM_CONNECTIONS),
        (LinkOptions(connections=3), "cubic", 3),
        (LinkOptions(connections=2), "bbr", 2),
    ],
)
def test_options_say_how_wide_a_link_may_get(
    options: LinkOptions, congestion_control: str, most: int
) -> None:
    controller = options.controller(congestion_control)
    assert Busy(lambda count: 1e5 * count, controller).run(20)[-1] == most


def test_a_link_has_at_most_sixteen_connections() -> None:
    with pytest.raises(ValueError, match="1 to 16 connections, found 17"):
        LinkOptions(connections=17)
    with pytest.raises(ValueError, match="found 0"):
        LinkOptions(connections=0)


def test_bbr_fills_a_lossy_path_alone() -> None:
    assert fills_alone("bbr") and not fills_alone("cubic") and not fills_alone("unknown")
