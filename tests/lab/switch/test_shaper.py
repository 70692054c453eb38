import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.lab.spec import LinkSettings
from farflung.lab.switch.shaper import FRAME_OVERHEAD, Channel, Path, Pipe

GAPS = st.lists(st.floats(0, 0.05), min_size=1, max_size=60)
SIZES = st.integers(40, 1500)
CLOSE = 1e-9

rates = st.one_of(st.none(), st.floats(0.1, 1000))
settings = st.builds(
    LinkSettings,
    bandwidth_mbps=rates,
    latency_ms=st.floats(0, 200),
    jitter_ms=st.floats(0, 50),
    loss=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    queue_ms=st.one_of(st.none(), st.floats(1, 300)),
)


def packets(data: st.DataObject) -> list[tuple[float, int]]:
    """Times, in ascending order, with sizes."""
    times, now = [], 0.0
    for gap in data.draw(GAPS):
        now += gap
        times.append(now)
    return [(time, data.draw(SIZES)) for time in times]


@given(st.floats(0.1, 1000), st.floats(1, 300), st.data())
def test_a_pipe_is_never_faster_than_its_rate_and_keeps_order(
    mbps: float, queue_ms: float, data: st.DataObject
) -> None:
    pipe = Pipe(mbps, queue_ms)
    last = 0.0
    for now, size in packets(data):
        end = pipe.enter(size, now)
        if end is None:
            assert last - now > queue_ms / 1e3 - CLOSE
            continue
        needed = (size + FRAME_OVERHEAD) * 8e-6 / mbps
        assert end >= max(now, last) + needed - CLOSE
        assert end - now <= queue_ms / 1e3 + needed + CLOSE
        last = end


@given(settings, rates, rates, st.data())
def test_a_channel_accounts_for_every_packet(
    link: LinkSettings, up: float | None, down: float | None, data: st.DataObject
) -> None:
    channel = Channel(0, 1, Pipe(up, 200), Path(link), Pipe(down, 200))
    draw = data.draw(st.randoms(use_true_random=False)).random
    sent = packets(data)
    arrivals = []
    for now, size in sent:
        due = channel.send(size, now, draw)
        if due is None:
            continue
        assert due >= now + link.latency_ms / 1e3 - CLOSE
        arrivals.append((due, size))
    assert arrivals == sorted(arrivals, key=lambda arrival: arrival[0])
    ends = [(channel.arrive(size, due), size) for due, size in arrivals]
    delivered = [(end, size) for end, size in ends if end is not None and channel.deliver(size)]
    assert [end for end, _ in delivered] == sorted(end for end, _ in delivered)
    assert channel.delivered_packets == len(delivered)
    assert channel.delivered_bytes == sum(size for _, size in delivered)
    assert channel.delivered_packets + channel.queue_drops + channel.loss_drops == len(sent)


@given(settings, st.data())
def test_a_path_adds_its_latency_and_at_most_its_jitter_to_a_lone_packet(
    link: LinkSettings, data: st.DataObject
) -> None:
    end = Path(link).travel(1.0, data.draw(st.randoms(use_true_random=False)).random)
    least = 1.0 + link.latency_ms / 1e3
    assert least <= end <= least + link.jitter_ms / 1e3 + CLOSE


def test_channels_that_share_an_access_line_share_its_rate() -> None:
    line = Pipe(8, 200)
    first = Channel(0, 1, line, Path(LinkSettings()), None)
    second = Channel(0, 2, line, Path(LinkSettings()), None)
    ends = [channel.send(1000 - FRAME_OVERHEAD, 0.0, lambda: 0.5) for channel in (first, second)]
    assert ends == [0.001, 0.002]


def test_a_loss_of_one_drops_all_packets_and_zero_none() -> None:
    for loss, lost in ((1.0, 20), (0.0, 0)):
        channel = Channel(0, 1, None, Path(LinkSettings(loss=loss)), None)
        for step in range(20):
            channel.send(100, step, lambda: 0.999999)
        assert channel.loss_drops == lost


def test_a_cut_drops_packets_in_flight_too() -> None:
    channel = Channel(0, 1, None, Path(LinkSettings(latency_ms=50)), None)
    assert channel.send(100, 0.0, lambda: 0.5) == 0.05
    channel.is_cut = True
    assert not channel.deliver(100)
    assert channel.send(100, 0.1, lambda: 0.5) is None
    assert channel.cut_drops == 2


def test_a_shorter_delay_does_not_let_later_packets_overtake() -> None:
    path = Path(LinkSettings(latency_ms=100))
    channel = Channel(0, 1, None, path, None)
    assert channel.send(100, 0.0, lambda: 0.5) == 0.1
    path.change(LinkSettings(latency_ms=10))
    assert channel.send(100, 0.01, lambda: 0.5) == 0.1
    assert channel.send(100, 0.2, lambda: 0.5) == pytest.approx(0.21)
