"""A lab with real namespaces, TUN devices, packets and processes."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from farflung.errors import LabError
from farflung.lab import registry
from farflung.lab.network import Network
from farflung.lab.running_lab import find
from farflung.lab.spec import LabSpec, LinkSettings, Node
from farflung.lab.switch import control
from farflung.lab.switch.process import Start

pytestmark = [pytest.mark.usefixtures("lab_machine"), pytest.mark.lab]
PAIR = LabSpec((Node("a"), Node("b")))
WAIT_SECONDS = 60


def a_name() -> str:
    """Of a lab: whoever else runs these tests on this machine has another one."""
    return secrets.token_hex(4)


def reaches(network: Network, source: str, address: str, within_seconds: int = 30) -> bool:
    """Whether a ping is answered."""
    argv = ["ping", "-c", "1", "-W", str(within_seconds), address]
    return network.popen(source, argv, stdout=subprocess.DEVNULL).wait() == 0


def round_trip_ms(network: Network, source: str, address: str) -> float:
    argv = ["ping", "-c", "3", "-i", "0.05", "-q", address]
    words, _ = network.popen(source, argv, stdout=subprocess.PIPE, text=True).communicate()
    return float(words.rpartition("= ")[2].split("/")[0])


def dials(network: Network, source: str, address: str, port: int) -> bool:
    """Whether a TCP connection comes about."""
    program = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
    argv = [sys.executable, "-c", program, address, str(port)]
    return network.popen(source, argv, stderr=subprocess.DEVNULL).wait() == 0


def listens(network: Network, node: str, port: int) -> subprocess.Popen[bytes]:
    """A program that accepts on all addresses of a node, IPv4 and IPv6."""
    program = (
        "import socket, sys\n"
        "where = ('::', int(sys.argv[1]))\n"
        "server = socket.create_server(where, family=socket.AF_INET6, dualstack_ipv6=True)\n"
        "print(flush=True)\n"
        "while True: server.accept()\n"
    )
    argv = [sys.executable, "-c", program, str(port)]
    process = network.popen(node, argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def host_state() -> list[str]:
    """What the host's own network looks like."""
    commands = ["ip -o addr", "ip route show table all", "ip -6 route", "nft list ruleset", "ip rule"]
    told = [subprocess.run(command.split(), capture_output=True, text=True).stdout for command in commands]
    return [*told, *(str(path) for path in sorted(Path("/sys/class/net").iterdir()))]


def namespaces_of(lab: str) -> list[str]:
    folder = Path("/run/netns")
    return [path.name for path in folder.glob(f"farflung-{lab}-*")] if folder.exists() else []


def left_behind(lab: str) -> list[str]:
    """Namespaces and files of a lab."""
    return namespaces_of(lab) + [path.name for path in registry.FOLDER.glob(f"{lab}.*")]


def wait_until_gone(lab: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while left_behind(lab) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_behind(lab) == []


def test_packets_have_the_set_latency_and_nothing_is_left_behind() -> None:
    before = host_state()
    links = {("a", "b"): LinkSettings(8, 20), ("b", "a"): LinkSettings(50, 30)}
    with Network(LabSpec(PAIR.nodes, links)) as network:
        for address in (network.address("b"), network.address6("b")):
            assert round_trip_ms(network, "a", address) >= 50
        network.set("a", "b", latency_ms=60)
        assert round_trip_ms(network, "a", network.address("b")) >= 90
        stats = network.stats()
        assert stats.link("a", "b").packets >= 9
        assert stats.link("a", "b").bytes > 9 * 84 - 1
        assert stats.priority
        assert host_state() == before
    assert host_state() == before
    assert left_behind(network.name) == []


def test_cut_and_heal() -> None:
    with Network(LabSpec((Node("a"), Node("b"), Node("c")))) as network:
        network.cut("a", "b")
        assert not reaches(network, "a", network.address("b"), within_seconds=1)
        assert not reaches(network, "b", network.address("a"), within_seconds=1)
        assert reaches(network, "a", network.address("c"))
        network.heal("a", "b")
        assert reaches(network, "a", network.address("b"))
        network.cut("c")
        assert not reaches(network, "a", network.address("c"), within_seconds=1)
        network.heal()
        assert reaches(network, "a", network.address("c"))
        assert network.stats().link("a", "b").cut_drops >= 1


def test_a_node_behind_nat_dials_out_and_is_not_reached() -> None:
    spec = LabSpec((Node("home", behind_nat=True), Node("server")))
    with Network(spec) as network:
        listens(network, "server", 7700)
        listens(network, "home", 7700)
        for address in (network.address("server"), network.address6("server")):
            assert dials(network, "home", address, 7700)
        for address in (network.address("home"), network.address6("home")):
            assert not dials(network, "server", address, 7700)
        assert dials(network, "home", network.local_address("home"), 7700)


@pytest.mark.parametrize("behind_nat", [False, True])
def test_a_node_gets_another_address(behind_nat: bool) -> None:
    with Network(LabSpec((Node("a", behind_nat=behind_nat), Node("b")))) as network:
        old = network.address("a")
        assert reaches(network, "b", old)
        new = network.readdress("a")
        assert new == network.address("a") != old
        assert reaches(network, "b", new)
        assert not reaches(network, "b", old, within_seconds=1)
        assert reaches(network, "a", network.address6("b"))


def test_homes_share_a_line_and_a_lan() -> None:
    nodes = (Node("a", up_mbps=8, down_mbps=8), Node("broker", shares_line_with="a"), Node("b"))
    links = {("a", "b"): LinkSettings(latency_ms=20), ("b", "a"): LinkSettings(latency_ms=20)}
    with Network(LabSpec(nodes, links)) as network:
        assert round_trip_ms(network, "broker", network.address("b")) >= 40
        assert round_trip_ms(network, "broker", network.address("a")) < 20


def test_two_labs_run_side_by_side_and_one_name_once() -> None:
    with Network(PAIR) as first, Network(PAIR) as second:
        assert reaches(first, "a", first.address("b"))
        assert reaches(second, "a", second.address("b"))
        taken = f"a lab called {second.name} runs already"
        with pytest.raises(LabError, match=taken), Network(PAIR, second.name):
            pass
        assert reaches(second, "a", second.address("b"))


def test_a_running_lab_is_found_and_taken_down_from_outside() -> None:
    with Network(PAIR) as network:
        lab = find(network.name)
        assert lab.nodes == ["a", "b"]
        lab.down()
        assert left_behind(network.name) == []
        with pytest.raises(LabError, match=f"no lab called {network.name} runs"):
            find(network.name)
        with pytest.raises(LabError, match="does not answer"):
            network.stats()


def test_mistakes_are_errors_of_one_line_and_change_nothing() -> None:
    with Network(PAIR) as network:
        for mistake, words in (
            (lambda: network.set("a", "b", bandwidth_mbps=-1), "bandwidth_mbps must be from 0.001"),
            (lambda: network.set("a", "x", loss=0.1), "no node of this lab is called 'x'; it has a, b"),
            (lambda: network.set("a", "b", bandwidth_mbps=5e-324), "bandwidth_mbps must be from 0.001"),
            (lambda: network.set_node("a", up_mbps=0.002, down_mbps=0), "down_mbps of a must be from 0.001"),
            (lambda: network.cut("a", "a"), "from one node of the lab to another"),
            (lambda: network.cut("y"), "no node of this lab is called 'y'"),
            (lambda: network.address("z"), "is called 'z'"),
        ):
            with pytest.raises(LabError, match=words):
                mistake()
        assert round_trip_ms(network, "a", network.address("b")) < 300  # at 0.002 Mbit/s a packet takes 392


FLOOD = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(20_000):
    sock.sendto(bytes(100), (sys.argv[1], 9))
"""


def test_every_packet_of_a_flood_is_accounted_for() -> None:
    with Network(PAIR) as network:
        os.kill(network._process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
        network.popen("a", [sys.executable, "-c", FLOOD, network.address("b")]).wait()
        os.kill(network._process.pid, signal.SIGCONT)  # type: ignore[union-attr]
        reaches(network, "a", network.address("b"), within_seconds=1)
        stats = network.stats(reset=True)
        assert stats.unread_packets >= 18_000
        assert stats.unread_packets + stats.link("a", "b").packets >= 20_000
        assert network.stats().unread_packets == 0


def test_programs_end_with_the_lab() -> None:
    with Network(PAIR) as network:
        process = network.popen("a", ["sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # it is in its namespace
    assert process.wait(WAIT_SECONDS) != 0


def test_programs_have_time_to_end_in_order() -> None:
    tidy = "trap 'sleep 3; exit 7' TERM; echo; while :; do sleep 0.1; done"
    with Network(PAIR) as network:
        process = network.popen("a", ["setsid", "sh", "-c", tidy], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
    assert process.wait(WAIT_SECONDS) == 7


FAREWELL = """
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
peer = socket.create_connection((sys.argv[1], 7000), 10)
print(flush=True)
signal.sigwait([signal.SIGTERM])
peer.sendall(b"farewell")
sys.exit(0 if peer.recv(1) == b"!" else 1)
"""
HEARER = """
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
server = socket.create_server(("0.0.0.0", 7000))
print(flush=True)
peer, _ = server.accept()
heard = b""
while len(heard) < 8: heard += peer.recv(8)
peer.sendall(b"!")
peer.recv(1)
"""


def test_ending_programs_can_still_send_over_the_network() -> None:
    with Network(PAIR) as network:
        processes = []
        for node, program in (("b", HEARER), ("a", FAREWELL)):
            argv = [sys.executable, "-c", program, network.address("b")]
            processes.append(network.popen(node, argv, stdout=subprocess.PIPE))
            assert processes[-1].stdout is not None
            processes[-1].stdout.readline()
    assert [process.wait(WAIT_SECONDS) for process in processes] == [0, 0]


OWNER = """
import sys, time
from farflung.lab.network import Network
from farflung.lab.switch.process import Start
from farflung.lab.spec import LabSpec, Node
with Network(LabSpec((Node("a", behind_nat=True), Node("b"))), sys.argv[1]) as network:
    print(network._process.pid, flush=True)
    time.sleep(1000)
"""


def started_owner(lab: str) -> tuple[subprocess.Popen[str], int]:
    """A process that holds a lab, and the process of its switch."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, lab], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lab_ends_with_its_owner(number: signal.Signals) -> None:
    before = host_state()
    lab = a_name()
    owner, _ = started_owner(lab)
    owner.send_signal(number)
    owner.wait(WAIT_SECONDS)
    wait_until_gone(lab)
    assert host_state() == before


def test_a_switch_that_is_stopped_while_it_starts_leaves_nothing() -> None:
    lab = a_name()
    spec = LabSpec((Node("a", behind_nat=True), Node("b"), Node("c")))
    start = msgspec.msgpack.encode(Start(lab, spec, os.getpid()))
    for wait in (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4):
        command = [sys.executable, "-P", "-m", "farflung.lab.switch.process"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
            process.stdin.write(start)
            process.stdin.close()
            time.sleep(wait)
            process.terminate()
            time.sleep(wait / 10)
            process.send_signal(signal.SIGINT)
            # Of two signals that wait for a process that has not begun, the lower number comes first.
            assert process.wait(WAIT_SECONDS) in (0, -signal.SIGTERM, -signal.SIGINT)
            assert process.stderr.read() == b""
        assert left_behind(lab) == []


def test_a_lab_whose_switch_was_killed_is_cleaned_by_the_next_start() -> None:
    before, lab = host_state(), a_name()
    owner, switch = started_owner(lab)
    with registry._locked():  # whoever starts a lab on this machine meanwhile would clean it
        os.kill(owner.pid, signal.SIGSTOP)
        os.kill(switch, signal.SIGKILL)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(WAIT_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while Path(f"/proc/{switch}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert namespaces_of(lab)
        with pytest.raises(LabError, match=f"the switch of lab {lab} was killed: farflung lab down"):
            find(lab)
    with Network(PAIR) as network:
        assert left_behind(lab) == []
        assert reaches(network, "a", network.address("b"))
    assert host_state() == before


def test_a_deleted_device_is_dropped() -> None:
    with Network(LabSpec((Node("a"), Node("b"), Node("c")))) as network:
        network.popen("a", ["ip", "link", "del", "wan0"]).wait()
        network.stats(reset=True)
        assert not reaches(network, "b", network.address("a"), within_seconds=1)
        stats = network.stats()
        # At real-time priority a busy loop would take the machine.
        assert stats.cpu_seconds < stats.seconds / 2
        assert reaches(network, "b", network.address("c"))


def test_the_switch_loads_no_torch_or_numpy() -> None:
    program = (
        "import sys, farflung.lab.switch.process; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_garbage_on_the_control_socket_does_no_harm() -> None:
    with Network(PAIR) as network:
        for noise in (b"\xff" * 100, b"\0\0\0\5abcde", os.urandom(5000)):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(WAIT_SECONDS)
                client.connect(str(registry.socket_path(network.name)))
                client.sendall(noise)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(100) == b""
        assert reaches(network, "a", network.address("b"))


def test_a_client_that_reads_no_answers_is_not_served_forever() -> None:
    with Network(PAIR) as network, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(registry.socket_path(network.name)))
        client.settimeout(1)
        with pytest.raises(TimeoutError):
            client.sendall(control.encode(control.AskNodes()) * 500_000)
        assert reaches(network, "a", network.address("b"))
        client.settimeout(WAIT_SECONDS)
        assert client.recv(100)


SEND_AND_SUM = """
import hashlib, socket, sys
blocks = [bytes([n]) * 65536 for n in range(64)]
with socket.create_connection((sys.argv[1], 7701)) as connection:
    for block in blocks:
        connection.sendall(block)
print(hashlib.sha256(b"".join(blocks)).hexdigest())
"""
RECEIVE_AND_SUM = """
import hashlib, socket
with socket.create_server(("::", 7701), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print(flush=True)
    connection, _ = server.accept()
digest = hashlib.sha256()
while block := connection.recv(65536):
    digest.update(block)
print(digest.hexdigest())
"""


@pytest.mark.parametrize("behind_nat", [False, True])
@pytest.mark.parametrize("offload", [False, True])
def test_bytes_arrive_intact_and_are_counted_as_on_a_wire(offload: bool, behind_nat: bool) -> None:
    nodes = (Node("a", behind_nat=behind_nat), Node("b"))
    links = {("a", "b"): LinkSettings(200, 1), ("b", "a"): LinkSettings(200, 1)}
    with Network(LabSpec(nodes, links, segmentation_offload=offload)) as network:
        for address in (network.address("b"), network.address6("b")):
            network.stats(reset=True)
            program = [sys.executable, "-c", RECEIVE_AND_SUM]
            receiver = network.popen("b", program, stdout=subprocess.PIPE, text=True)
            assert receiver.stdout is not None
            receiver.stdout.readline()
            program = [sys.executable, "-c", SEND_AND_SUM, address]
            sent, _ = network.popen("a", program, stdout=subprocess.PIPE, text=True).communicate()
            assert receiver.stdout.readline() == sent
            receiver.wait()
            carried = network.stats().link("a", "b").bytes
            assert 64 * 65536 * 1.03 < carried < 64 * 65536 * 1.2  # headers of every segment
