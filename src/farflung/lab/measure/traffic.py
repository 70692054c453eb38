"""Measure between nodes of a running lab with plain traffic: `flow` programs in the nodes, and ping."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from farflung.errors import LabError
from farflung.lab.machine import require_program
from farflung.lab.measure.flow import Bulk, Probes
from farflung.lab.running_lab import RunningLab
from farflung.lab.spec import LinkSettings
from farflung.lab.switch.shaper import FRAME_OVERHEAD

PORT = 7791
UDP_HEADERS = 28  # IPv4 and UDP
FLOOD = 1.25  # of the rate, to measure what comes through
PINGS = 5
_Result = TypeVar("_Result", Bulk, Probes)


def bulk_mbps(
    network: RunningLab,
    flows: Sequence[tuple[str, str]],
    window_bytes: int,
    skip_seconds: float,
    seconds: float,
) -> float:
    """Payload rate of all flows together, each a TCP connection with this window (0: the kernel's choice)."""
    times = (str(window_bytes), str(skip_seconds), str(seconds))
    receivers = [_start(network, target, "receive", str(PORT), *times) for _, target in flows]
    senders = [_send(network, source, "send", network.address(target), str(PORT)) for source, target in flows]
    bulks = [_result_of(receiver, Bulk) for receiver in receivers]
    for sender in senders:
        sender.wait()
    return sum(bulk.mbps for bulk in bulks)


def flooded_mbps(
    network: RunningLab, flow: tuple[str, str], asked: LinkSettings, seconds: float, mtu: int
) -> float:
    """Payload rate that arrives if more UDP is sent than the rate allows."""
    assert asked.bandwidth_mbps is not None
    size = mtu - UDP_HEADERS
    count = round(FLOOD * asked.bandwidth_mbps * 1e6 / 8 / (mtu + FRAME_OVERHEAD) * seconds)
    found = probes(network, *flow, count, seconds, size)
    return (found.received - 1) * size * 8e-6 / found.seconds if found.received > 1 else 0.0


def probes(network: RunningLab, source: str, target: str, count: int, seconds: float, size: int) -> Probes:
    listener = _start(network, target, "listen", str(PORT), str(count))
    counts = (str(count), str(seconds), str(size))
    _send(network, source, "probe", network.address(target), str(PORT), *counts).wait()
    return _result_of(listener, Probes)


def ping_ms(network: RunningLab, source: str, target: str) -> float:
    require_program("ping", "a measurement of round trips")
    argv = ["ping", "-q", "-c", str(PINGS), "-i", "0.2", network.address(target)]
    words, _ = network.popen(source, argv, stdout=subprocess.PIPE, text=True).communicate()
    try:
        return float(words.rpartition("= ")[2].split("/")[1])
    except (IndexError, ValueError):
        raise LabError(f"{target} does not answer a ping from {source}") from None


def _start(network: RunningLab, node: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a receiving end and wait until it can be reached."""
    process = network.popen(node, _program(*arguments), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _send(network: RunningLab, node: str, *arguments: str) -> subprocess.Popen[bytes]:
    return network.popen(node, _program(*arguments))


def _program(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "farflung.lab.measure.flow", *arguments]


def _result_of(receiver: subprocess.Popen[bytes], kind: type[_Result]) -> _Result:
    """The result that a receiving end prints."""
    output, _ = receiver.communicate()
    try:
        return msgspec.json.decode(output, type=kind)
    except msgspec.DecodeError:
        raise LabError(f"a measuring program failed with exit code {receiver.returncode}") from None
