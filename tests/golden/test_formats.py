"""What older versions wrote is read, and today's code writes the bytes that were recorded last.

A renamed class, field or literal changes bytes here: keep the old name on the wire (`tag=`, `rename=`), or
record a new version (see `tests.golden.record`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.golden.formats import FORMATS, VERSIONS, Recorded, all_tags, newest, recorded, top_tags
from tests.golden.record import main

NEWEST = newest()
EVERY = [(version.name, name, entry) for version in VERSIONS for name, entry in recorded(version).items()]


def test_every_format_is_recorded() -> None:
    assert NEWEST.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_tags_are_those_that_were_recorded(name: str) -> None:
    kind, (_, entry) = FORMATS[name].kind, NEWEST[name]
    assert sorted(entry.values) == top_tags(kind)
    assert entry.tags == all_tags(kind)
    written = b"".join(data for values in entry.values.values() for data in values)
    assert [tag for tag in entry.tags if tag.encode() not in written] == []


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_what_was_recorded_last(name: str) -> None:
    for tag, values in NEWEST[name][1].values.items():
        for data in values:
            decoded = FORMATS[name].decode(data)
            assert _tag(name, data) == tag
            assert FORMATS[name].encode(decoded) == data
            assert FORMATS[name].decode(FORMATS[name].encode(decoded)) == decoded


@pytest.mark.parametrize(("version", "name", "entry"), EVERY, ids=[f"{v}-{n}" for v, n, _ in EVERY])
def test_what_any_version_wrote_is_read_and_nothing_is_lost(version: str, name: str, entry: Recorded) -> None:
    for values in entry.values.values():
        for data in values:
            again = FORMATS[name].encode(FORMATS[name].decode(data))
            assert _lost(_plain(name, data), _plain(name, again)) == []


def test_no_version_is_written_over(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        main(tmp_path, [])


def _plain(name: str, data: bytes) -> Any:
    """The same without any types."""
    if FORMATS[name].document:
        return msgspec.json.decode(data)
    return msgspec.msgpack.decode(data[4:] if name in ("lab request", "lab answer") else data, strict=False)


def _tag(name: str, data: bytes) -> str:
    """By which name the bytes call themselves."""
    plain = _plain(name, data)
    if isinstance(plain, list):
        return str(plain[0])
    return str(plain.get("type", "")) if FORMATS[name].kind is not None else ""


def _lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Where what was written before is not in what is written now."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [lost for key in before for lost in _lost(before[key], after.get(key), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(after) >= len(before):
        return [lost for at, one in enumerate(before) for lost in _lost(one, after[at], f"{path}[{at}]")]
    return [] if before == after else [path]
