"""JSON that scripts read: keys are only ever added."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden.documents import FILE, device, keys, profile_store
from tests.golden.formats import VERSIONS

from farflung.workload.profile_store import recall

KEPT = {
    version.name: json.loads((version / FILE).read_text())
    for version in VERSIONS
    if (version / FILE).exists()
}
NEWEST = list(KEPT)[-1]


def test_every_key_of_every_document_is_still_there(tmp_path: Path) -> None:
    found = keys(tmp_path)
    for version, recorded in KEPT.items():
        missing = {
            name: sorted(set(paths) - set(found.get(name, ()))) for name, paths in recorded["keys"].items()
        }
        assert {name: paths for name, paths in missing.items() if paths} == {}, version


def test_every_document_is_recorded(tmp_path: Path) -> None:
    assert keys(tmp_path).keys() == KEPT[NEWEST]["keys"].keys()


@pytest.mark.parametrize("version", KEPT)
def test_times_of_a_device_are_found_again(version: str, tmp_path: Path) -> None:
    kept = KEPT[version]["profile store"]
    (tmp_path / kept["name"]).write_text(kept["text"])
    known = recall(device(), tmp_path)
    assert len(known.nodes) == len(known.updates) == 2


def test_times_are_kept_as_they_were_recorded(tmp_path: Path) -> None:
    assert profile_store(tmp_path / "cache") == KEPT[NEWEST]["profile store"]
