"""What probes and passing traffic find out about paths whose settings are known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.support.certificates import TestAuthority

from farflung.lab.network import Network
from farflung.lab.spec import LabSpec, LinkSettings, Node
from farflung.transport.link.stats import LinkStatus
from farflung.transport.probing.probe import PairEstimate
from farflung.transport.timeouts import PROBE_SECONDS

pytestmark = [pytest.mark.usefixtures("lab_machine"), pytest.mark.lab]

REPOSITORY = Path(__file__).parents[2]
OWN_LATENCY_MS = 0.1  # what the lab's switch and two kernels take, which a LAN's millisecond shows
MOST_AGAIN = 2  # a machine that is busy for a moment measures what it is busy with
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Ends:
    """A lab of two nodes, with somebody who serves on `b`."""

    def __init__(self, network: Network, folder: Path) -> None:
        authority = TestAuthority(folder)
        self._network = network
        self._dialler = [str(path) for path in authority.files("a", "worker")]
        listener = [str(path) for path in authority.files("b", "worker")]
        self._address = f"{network.address('b')}:7700"
        self.serving = self._start("b", "serve", *listener)
        assert self.serving.stdout is not None and self.serving.stdout.readline()

    def probed(self) -> PairEstimate:
        """What a probe from a to b finds."""
        out, _ = self._start("a", "probe", *self._dialler).communicate(timeout=60)
        return msgspec.json.decode(out, type=PairEstimate)

    def traffic(self, size: int, gap_seconds: float, times: int) -> tuple[LinkStatus, LinkStatus]:
        """What sender and receiver of a step's traffic have seen."""
        numbers = [str(size), str(gap_seconds), str(times)]
        out, _ = self._start("a", "send", *self._dialler, *numbers).communicate(timeout=120)
        assert self.serving.stdout is not None
        seen = self.serving.stdout.readline()
        return msgspec.json.decode(out, type=LinkStatus), msgspec.json.decode(seen, type=LinkStatus)

    def _start(self, node: str, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "tests.lab.ends", role, self._address, *arguments]
        return self._network.popen(node, argv, stdout=subprocess.PIPE, cwd=REPOSITORY, env=ENVIRONMENT)


@contextmanager
def ends(folder: Path, there: LinkSettings, back: LinkSettings | None = None) -> Iterator[Ends]:
    spec = LabSpec((Node("a"), Node("b")), {("a", "b"): there, ("b", "a"): back or there})
    with Network(spec) as network:
        two = Ends(network, folder)
        try:
            yield two
            if network.stats().void:
                pytest.skip("the machine was too busy for the lab to keep its times")
        finally:
            two.serving.kill()
            two.serving.communicate()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("there", "back"),
    [
        (LinkSettings(8, 50), None),
        (LinkSettings(100, 20), None),
        (LinkSettings(100, 1), None),
        (LinkSettings(8, 25), LinkSettings(50, 25)),
        (LinkSettings(50, 25), LinkSettings(8, 25)),
        (LinkSettings(100, 25, loss=0.01), None),
    ],
    ids=["8 Mbit/s", "100 Mbit/s", "1 ms", "8 of 8/50", "50 of 50/8", "1 % lost"],
)
def test_a_probe_finds_a_pairs_settings_within_a_tenth(
    tmp_path: Path, there: LinkSettings, back: LinkSettings | None
) -> None:
    assert there.bandwidth_mbps is not None
    with ends(tmp_path, there, back) as two:
        found = two.probed()
        for _ in range(MOST_AGAIN):
            if off(found, there):
                found = two.probed()
    assert not off(found, there), off(found, there)
    assert found.bytes_sent * 8 / 1e6 <= 0.05 * 60 * there.bandwidth_mbps


def off(found: PairEstimate, there: LinkSettings) -> list[str]:
    """What differs from what the lab is set to."""
    wrong = []
    if found.bandwidth_mbps != pytest.approx(there.bandwidth_mbps, rel=0.1):
        wrong.append(f"{found.bandwidth_mbps} Mbit/s, set to {there.bandwidth_mbps}")
    if abs(found.latency_ms - there.latency_ms) > 0.1 * there.latency_ms + OWN_LATENCY_MS:
        wrong.append(f"{found.latency_ms} ms, set to {there.latency_ms}")
    if found.seconds > PROBE_SECONDS:
        wrong.append(f"took {found.seconds} s, at most {PROBE_SECONDS} are given")
    return wrong


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("there", "size"),
    [(LinkSettings(8, 50), 200_000), (LinkSettings(100, 20), 2_000_000)],
    ids=["8 Mbit/s", "100 Mbit/s"],
)
def test_a_steps_traffic_shows_a_pairs_settings(tmp_path: Path, there: LinkSettings, size: int) -> None:
    with ends(tmp_path, there) as two:
        sender, receiver = two.traffic(size, gap_seconds=0.3, times=8)
    assert there.bandwidth_mbps is not None
    assert receiver.incoming_mbps == pytest.approx(there.bandwidth_mbps, rel=0.15)
    assert sender.latency_ms == pytest.approx(there.latency_ms, rel=0.15)
