"""What `start_afresh` and `run_free` make the kernel's BBR do, on a line whose rate is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.lab.network import Network
from farflung.lab.spec import LabSpec, LinkSettings, Node

pytestmark = [pytest.mark.usefixtures("lab_machine"), pytest.mark.lab, pytest.mark.faults]

REPOSITORY = Path(__file__).parents[2]
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
LINE = LinkSettings(20, 10)
LINE_BYTES_PER_SECOND = 20e6 / 8

DRAIN = """
import socket
with socket.create_server(("::", 7701), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print(flush=True)
    connection, _ = server.accept()
while connection.recv(65536):
    pass
"""

SEND = """
import json, socket, sys, time
from farflung.transport.net import sockets

connection = socket.create_connection((sys.argv[1], 7701))
sockets.ask_for_congestion_control(connection, "bbr")
sockets.limit_unsent(connection, 65536)

def send(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.sendall(bytes(16384))

def state():
    rate, gain = sockets._bbr(connection)
    most = connection.getsockopt(socket.SOL_SOCKET, sockets._SO_MAX_PACING_RATE, 8)
    return {"rate": rate, "gain": gain, "most": int.from_bytes(most, sys.byteorder),
            "name": sockets.congestion_control(connection)}

send(3)
said = {"before": state()}
rate = said["before"]["rate"]
most = said["before"]["most"]
said["began_half_full"] = sockets.start_afresh(connection, rate / 2) or state()["most"] != most
said["began"] = sockets.start_afresh(connection, rate)
while not state()["gain"]:  # it knows nothing before the first answer
    send(0.01)
said["afresh"] = state()
said["again"] = sockets.start_afresh(connection, rate)
said["free_at_once"] = sockets.run_free(connection)
send(3)
said["found"] = state()
said["free"] = sockets.run_free(connection)
said["after"] = state()
print(json.dumps(said))
"""


def test_bbr_restarts_and_is_paced_until_it_has_measured_its_rate_again() -> None:
    if "bbr" not in AVAILABLE.read_text().split():
        pytest.skip("this kernel has no BBR")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    with Network(LabSpec((Node("a"), Node("b")), {("a", "b"): LINE, ("b", "a"): LINE})) as network:
        drain = network.popen("b", [sys.executable, "-c", DRAIN], stdout=subprocess.PIPE)
        assert drain.stdout is not None
        drain.stdout.readline()
        argv = [sys.executable, "-c", SEND, network.address("b")]
        told, _ = network.popen("a", argv, stdout=subprocess.PIPE, env=environment).communicate(timeout=60)
        drain.communicate(timeout=20)
        if network.stats().void:
            pytest.skip("the machine was too busy for the lab to keep its times")
    said = json.loads(told)
    before, afresh, found, after = (said[name] for name in ("before", "afresh", "found", "after"))
    assert before["rate"] == pytest.approx(LINE_BYTES_PER_SECOND, rel=0.15)
    assert said["began"] and not said["began_half_full"] and not said["again"]
    assert afresh["name"] == "bbr"
    assert afresh["gain"] > 2 > before["gain"]  # it tries out how fast the path is
    assert before["rate"] < afresh["most"] < 1.5 * before["rate"] < before["most"]
    assert not said["free_at_once"]
    assert found["gain"] < 2 and found["rate"] == pytest.approx(LINE_BYTES_PER_SECOND, rel=0.15)
    assert said["free"] and after["most"] == before["most"]
