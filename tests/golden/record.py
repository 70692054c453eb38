"""Record today's formats: `python -m tests.golden.record v2 [FILE...]`, such as `broker.json frames.json`.

A version that is there is never written over: when you change a format on purpose, record another version and
leave the older files alone, which must stay readable. `v1` holds everything. A later version holds those
formats of `formats.json` that differ from what older versions recorded, and the other files that you name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden import broker_folder, coders, documents, frame_bytes
from tests.golden.formats import FILE, FORMATS, ROOM, Format, all_tags, newest, tag_of
from tests.golden.samples import members, samples

from farflung.planner.codecs.ladder import Loss


def main(folder: Path, files: list[str]) -> None:
    """Write every format that is not recorded as it is today, and the other files that are named."""
    before = {name: entry for name, (_, entry) in newest().items()}
    folder.mkdir()
    made: dict[str, Any] = {}
    for name, kind in FORMATS.items():
        values = _values(kind)
        tags = all_tags(kind.kind)
        if name not in before or (before[name].tags, before[name].values) != (tags, values):
            texts = {tag: [_text(kind, data) for data in found] for tag, found in values.items()}
            made[name] = {"tags": tags, "values": texts}
    _write(folder / FILE, made)
    for file in files:
        OTHERS[file](folder)


def _documents(folder: Path) -> None:
    with TemporaryDirectory() as name:
        _write(folder / documents.FILE, documents.made(Path(name)))


OTHERS: dict[str, Callable[[Path], None]] = {
    broker_folder.FILE: broker_folder.record,
    coders.FILE: lambda folder: _write(folder / coders.FILE, coders.made()),
    documents.FILE: _documents,
    frame_bytes.FILE: lambda folder: _write(folder / frame_bytes.FILE, frame_bytes.made()),
}


def _values(kind: Format) -> dict[str, list[bytes]]:
    if kind.kind == dict[str, Loss]:
        return {"": [kind.encode({f"int8/eden{at}": one}) for at, one in enumerate(samples(Loss), 2)]}
    return {tag_of(one): [kind.encode(made) for made in samples(one)] for one in members(kind.kind)}


def _text(kind: Format, data: bytes) -> str:
    return data.decode() if kind.document else data.hex()


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(ROOM / sys.argv[1], list(OTHERS) if sys.argv[1] == "v1" else sys.argv[2:])
