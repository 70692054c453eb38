"""What a broker leaves in its folder for those who make tokens beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.transport.net.address_file import ADDRESS_FILE, read_address, write_address


@pytest.mark.parametrize("address", ["[::]:7700", "127.0.0.1:45123", "broker.example:1"])
def test_the_address_of_a_broker_is_found_in_its_folder(tmp_path: Path, address: str) -> None:
    write_address(tmp_path, "127.0.0.1:1")
    write_address(tmp_path, address)
    assert read_address(tmp_path) == address


@pytest.mark.parametrize("found", [b"", b"no port:x", b"\xff\xfe", b"a" * 10_000])
def test_what_is_no_address_is_none(tmp_path: Path, found: bytes) -> None:
    assert read_address(tmp_path) is None
    (tmp_path / ADDRESS_FILE).write_bytes(found)
    assert read_address(tmp_path) is None


def test_a_folder_that_takes_no_files_stops_no_broker(tmp_path: Path) -> None:
    write_address(tmp_path / "missing", "[::]:7700")
    assert read_address(tmp_path / "missing") is None
