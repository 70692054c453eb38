"""A web server may answer anything: a reader gets right bytes or one line, and is never held for long."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.certificates import TestAuthority
from tests.support.web import answering, web

from farflung.errors import WeightsError
from farflung.transport.security.names import holder_name
from farflung.weights import connections
from farflung.weights import ranges as ranges_module
from farflung.weights.allowed import Address
from farflung.weights.connections import LEAST_BYTES, LEAST_SECONDS, Pace
from farflung.weights.ranges import HttpRanges, whole_file

MUCH = 2**26
PART = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/100\r\n"


def read(url: str, size: int = 4) -> bytes:
    ranges = HttpRanges(url, None)
    buffer = memoryview(bytearray(size))
    try:
        ranges.read(0, [buffer])
    finally:
        ranges.close()
    return bytes(buffer)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_server_that_sends_more_than_it_said_is_cut_off(chunked: bool) -> None:
    """It would send 64 MiB more, all of which a reader could take into memory."""
    block = bytes(2**20)
    sent = 0

    def answer(connection: socket.socket, request: bytes) -> None:
        nonlocal sent
        if chunked:
            connection.sendall(PART + b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n")
        else:
            connection.sendall(PART + b"Content-Length: %d\r\n\r\nabcd" % (4 + MUCH))
        while sent < MUCH:
            connection.sendall(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
            sent += len(block)

    with answering(answer) as url:
        assert read(url) == b"abcd"
        assert sent < MUCH // 2


def test_a_small_file_that_never_ends_is_refused() -> None:
    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(bytes(2**16))

    with answering(answer) as url, pytest.raises(WeightsError, match="has more than 100 bytes"):
        whole_file(url, 100)


def trickle(before: bytes, byte: bytes) -> Callable[[socket.socket, bytes], None]:
    """Send something now and then, for ever."""

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(before)
        pause = threading.Event()
        while True:
            connection.sendall(byte)
            pause.wait(0.01)

    return answer


@pytest.mark.parametrize(
    ("before", "byte"),
    [
        (b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99999/100000\r\n\r\n", b"a"),
        (b"HTTP/1.1 206 Partial Content\r\nA: ", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99999/100000\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n",
            b"-1\r\n",
        ),
    ],
    ids=["body", "header", "continue", "chunks"],
)
def test_a_server_that_trickles_is_given_up(
    before: bytes, byte: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LEAST_SECONDS", 0.2)
    with answering(trickle(before, byte)) as url:
        with pytest.raises(WeightsError, match=r"/ cannot be read: less than 1048576 bytes came in 0.2 s"):
            read(f"{url}/", 10**5)
        with pytest.raises(WeightsError, match="cannot be read"):
            whole_file(f"{url}/", 10**7)


def test_a_server_that_breaks_off_after_each_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is progress, so this could go on for as long as the file has bytes."""
    monkeypatch.setattr(connections, "LEAST_SECONDS", 0.2)

    def answer(connection: socket.socket, request: bytes) -> None:
        wanted = request.partition(b"Range: bytes=")[2].partition(b"\r\n")[0]
        connection.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %s/10\r\n\r\na" % wanted)

    with answering(answer) as url, pytest.raises(WeightsError, match="less than 1048576 bytes came"):
        read(url, 2**21)


def test_a_server_may_be_as_slow_as_the_least_rate() -> None:
    now = 0.0
    pace = Pace("a", lambda: False, lambda: now)
    for _ in range(5):
        now += LEAST_SECONDS - 1
        pace.check()
        pace.received(LEAST_BYTES)
    now += LEAST_SECONDS
    pace.received(LEAST_BYTES - 1)
    with pytest.raises(WeightsError, match="less than 1048576 bytes came in 120 s"):
        pace.check()
    pace.begin()
    pace.check()


def test_a_reader_is_stopped_while_its_server_is_silent() -> None:
    asked, stop = threading.Event(), threading.Event()
    failures: list[str] = []

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(PART + b"\r\nab")
        asked.set()
        connection.recv(1)  # until the reader has gone

    with answering(answer) as url:
        ranges = HttpRanges(url, None)
        ranges.is_stopped = stop.is_set

        def work() -> None:
            with pytest.raises(WeightsError) as caught:
                ranges.read(0, [memoryview(bytearray(4))])
            failures.append(str(caught.value))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert asked.wait(60)
        stop.set()
        thread.join(20)  # less than what silence is given
    assert failures == [f"{url} is not read any more: reading was stopped"]


LOCATIONS = [
    b"http://[",
    b"//[x]y/",
    b"http://a:b/",
    b"http://h\xe9st\xff/",
    b"\xe9\xff",
    b"http:",
    b"http:///x",
]


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_redirect_to_nonsense_is_one_line(location: bytes) -> None:
    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location)

    with answering(answer) as url, pytest.raises(WeightsError) as caught:
        read(f"{url}/a")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


STATUS = [b"", b"\x00\xff", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 206 \xff\r\n" + b"a: b\r\n" * 200 + b"\r\n"]
LENGTHS = [b"Content-Length: -5", b"Content-Length: 1e9", b"Transfer-Encoding: chunked\r\nA: b\r\n\r\nzz"]


@pytest.mark.parametrize("sent", [*STATUS, *(PART + length + b"\r\n\r\n" for length in LENGTHS)])
def test_an_answer_that_is_no_http_is_one_line(sent: bytes) -> None:
    server = answering(lambda connection, request: connection.sendall(sent))
    with server as url, pytest.raises(WeightsError, match="cannot be read") as caught:
        read(url)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("sent", STATUS)
def test_a_small_file_that_is_no_http_is_one_line(sent: bytes) -> None:
    server = answering(lambda connection, request: connection.sendall(sent))
    with server as url, pytest.raises(WeightsError, match="cannot be read"):
        whole_file(url, 100)


def test_a_server_with_a_certificate_may_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits end while TLS has a record to come. A certificate that no authority issued is named."""
    authority = TestAuthority(tmp_path)
    certificate, holder, key = authority.files("a", "worker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(holder, key)
    monkeypatch.setattr(connections, "WAKE_SECONDS", 0.01)
    name = holder_name("a", "worker")

    def answer(connection: socket.socket, request: bytes) -> None:
        pause = threading.Event()
        for sent in (PART[:9], PART[9:], b"Connection: close\r\n\r\na", b"b", b"cd"):
            connection.sendall(sent)
            pause.wait(0.05)

    with answering(answer, context) as url:
        port = int(url.rpartition(":")[2])
        monkeypatch.setattr(ranges_module, "addresses", lambda host, _: [Address("127.0.0.1", port)])
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert read(f"https://{name}:{port}/") == b"abcd"
        with pytest.raises(WeightsError, match="its certificate is not valid: Hostname mismatch"):
            read(f"https://another.example:{port}/")
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(WeightsError, match="its certificate is not valid: "):
            read(f"https://{name}:{port}/")


def test_a_url_may_have_letters_that_a_request_may_not(tmp_path: Path) -> None:
    (tmp_path / "größe").write_bytes(b"abcdef")
    with web(tmp_path) as server:
        assert read(f"{server.url}/größe?ä=ö") == b"abcd"
        assert read(f"{server.url}/gr%C3%B6%C3%9Fe") == b"abcd"
        paths = [path for path, _ in server.asked]
        assert paths == ["/gr%C3%B6%C3%9Fe?%C3%A4=%C3%B6", "/gr%C3%B6%C3%9Fe"]
        target = f"{server.url}/größe".encode()

        def answer(connection: socket.socket, request: bytes) -> None:
            connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % target)

        with answering(answer) as url:
            assert read(f"{url}/a") == b"abcd"


def test_what_is_not_sent_does_not_count_as_read() -> None:
    """Answers that end too soon are asked for again from where they ended."""
    cuts = itertools.chain([b"a", b"b"], itertools.repeat(b"cd"))

    def answer(connection: socket.socket, request: bytes) -> None:
        wanted = request.partition(b"Range: bytes=")[2].partition(b"\r\n")[0]
        connection.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %s/4\r\n\r\n" % wanted)
        connection.sendall(next(cuts))

    with answering(answer) as url:
        assert read(url) == b"abcd"
