"""Byte ranges over HTTP: whole in spite of broken connections, and only from where they may come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.web import Web, web

from farflung.errors import WeightsError
from farflung.weights import ranges as module
from farflung.weights.allowed import Allowed
from farflung.weights.ranges import HttpRanges, Ranges, open_ranges, whole_file

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "a").write_bytes(CONTENT)
    with web(tmp_path) as running:
        yield running


def read(ranges: Ranges, offset: int, *sizes: int) -> list[bytes]:
    buffers = [memoryview(bytearray(size)) for size in sizes]
    try:
        ranges.read(offset, buffers)
    finally:
        ranges.close()
    return [bytes(buffer) for buffer in buffers]


def opened(server: Web, *prefixes: str, path: str = "/a") -> Ranges:
    return open_ranges(server.url + path, Allowed.parse(prefixes or [server.url]))


def test_neighbours_come_in_one_request(server: Web) -> None:
    assert read(opened(server), 10, 5, 0, 7) == [CONTENT[10:15], b"", CONTENT[15:22]]
    assert server.asked == [("/a", "bytes=10-21")]


def test_a_connection_is_used_again(server: Web) -> None:
    ranges = opened(server)
    for offset in (0, 100):
        buffer = memoryview(bytearray(3))
        ranges.read(offset, [buffer])
        assert buffer == CONTENT[offset : offset + 3]
    ranges.close()


def test_a_broken_connection_costs_only_what_has_not_come(server: Web) -> None:
    server.cuts = [30, 0, 20]
    assert read(opened(server), 0, 50, 50) == [CONTENT[:50], CONTENT[50:100]]
    assert [wanted for _, wanted in server.asked] == [
        "bytes=0-99",
        "bytes=30-99",
        "bytes=30-99",
        "bytes=50-99",
    ]


def test_a_server_that_is_busy_is_asked_again_but_not_for_ever(server: Web) -> None:
    server.busy = 2
    assert read(opened(server), 0, 4) == [CONTENT[:4]]
    server.busy = 100
    with pytest.raises(WeightsError, match="cannot be read: the server says 503"):
        read(opened(server), 0, 4)


def test_a_server_without_ranges_is_said_to_be_one(server: Web) -> None:
    server.ranges = False
    with pytest.raises(WeightsError, match="its server does not answer ranges"):
        read(opened(server), 3, 4)


def test_a_file_that_is_too_short_or_missing_is_named(server: Web) -> None:
    with pytest.raises(WeightsError, match="/a cannot be read"):
        read(opened(server), len(CONTENT) - 3, 4)
    with pytest.raises(WeightsError, match="/b cannot be read: the server says 404"):
        read(opened(server, path="/b"), 0, 4)


def test_a_server_that_is_not_there_is_named(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    server.close()
    with pytest.raises(WeightsError, match=r"http://127.0.0.1:\d+/a cannot be read: Connection refused"):
        read(opened(server), 0, 4)


def test_a_private_address_is_reached_only_if_the_owner_names_it(server: Web) -> None:
    with pytest.raises(WeightsError, match="not among the URLs"):
        opened(server, "https://example.org")
    with pytest.raises(WeightsError, match=r"127.0.0.1 has an address that is not public"):
        read(open_ranges("https://127.0.0.1/a", Allowed()), 0, 4)
    assert server.asked == []


def test_a_redirect_is_followed_only_to_what_is_allowed(server: Web, tmp_path: Path) -> None:
    with web(tmp_path) as other:
        server.redirect = other.url
        assert read(opened(server, server.url, other.url), 0, 4) == [CONTENT[:4]]
        with pytest.raises(WeightsError, match=r"a redirect leads to http://127.0.0.1:\d+/a, which is no"):
            read(opened(server), 0, 4)
        assert len(other.asked) == 1
        server.redirect = server.url
        with pytest.raises(WeightsError, match="redirects more than 5 times"):
            read(opened(server), 0, 4)


def test_where_a_redirect_leads_is_asked_anew_if_that_has_ended(server: Web, tmp_path: Path) -> None:
    with web(tmp_path) as other:
        server.redirect = other.url
        ranges = HttpRanges(f"{server.url}/a", None)
        ranges.read(0, [memoryview(bytearray(4))])
        (tmp_path / "b").write_bytes(CONTENT)
        other.folder = tmp_path / "gone"
        server.redirect = ""
        assert read(ranges, 4, 4) == [CONTENT[4:8]]


def test_a_version_is_a_strong_tag_only(server: Web) -> None:
    for etag, version in (('"1"', '"1"'), ('W/"1"', ""), ("", "")):
        server.etag = etag
        ranges = opened(server)
        read(ranges, 0, 1)
        assert ranges.version() == version


def test_a_file_below_an_allowed_folder_is_read_and_no_link_leads_out(tmp_path: Path) -> None:
    models, secret = tmp_path / "models", tmp_path / "secret"
    models.mkdir()
    (models / "a b").write_bytes(CONTENT)
    secret.write_bytes(b"secret")
    (models / "link").symlink_to(secret)
    allowed = Allowed.parse([f"file://{models}"])
    assert read(open_ranges(f"file://{models}/a%20b", allowed), 1, 2) == [CONTENT[1:3]]
    with pytest.raises(WeightsError, match="leads out of what"):
        open_ranges(f"file://{models}/link", allowed)
    with pytest.raises(WeightsError, match="names a host"):
        open_ranges("file://elsewhere/models/a", None)
    with pytest.raises(WeightsError, match="too short"):
        read(open_ranges(f"file://{models}/a%20b", allowed), len(CONTENT), 1)


def test_a_file_in_a_store_is_read_through_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/bucket/a", CONTENT)
    allowed = Allowed.parse(["memory://bucket"])
    assert read(open_ranges("memory://bucket/a", allowed), 5, 3, 4) == [CONTENT[5:8], CONTENT[8:12]]
    with pytest.raises(WeightsError, match="memory://bucket/b cannot be read"):
        read(open_ranges("memory://bucket/b", allowed), 0, 1)
    with pytest.raises(WeightsError, match="not among the URLs"):
        open_ranges("memory://bucket/a", Allowed())


def test_a_small_file_is_read_whole_or_is_not_there(
    server: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (server.url, f"file://{tmp_path}"):
        assert whole_file(f"{place}/a", len(CONTENT)) == CONTENT
        assert whole_file(f"{place}/b", 10) == b""
    with pytest.raises(WeightsError, match="more than 10 bytes"):
        whole_file(f"{server.url}/a", 10)
    server.ranges = False
    assert whole_file(f"{server.url}/a", len(CONTENT)) == CONTENT
    monkeypatch.setattr(module, "SILENCE_SECONDS", 1)
    server.close()
    with pytest.raises(WeightsError, match="Connection refused"):
        whole_file(f"{server.url}/a", 10)
