"""The labs that run on this machine, and the removal of what a lab left when its switch was killed."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from farflung.errors import LabError
from farflung.files import write_atomically
from farflung.lab.switch import namespaces

FOLDER = Path("/run/farflung-lab")
DEFAULT_NAME = "lab"
_NAME = re.compile(r"[a-z0-9]{1,12}")


class Record(msgspec.Struct, frozen=True):
    """One lab: the process that owns it, and what must be removed when that process is gone.

    The start time of the process, in clock ticks since boot, distinguishes it from a later one with the same
    id. `is_removed` says that this process is removing what another one left.
    """

    name: str
    process_id: int
    started_ticks: int
    namespaces: tuple[str, ...]
    is_removed: bool = False


def check_name(name: str) -> None:
    """Raise `LabError` unless this is a valid name for a lab."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name[:40]!r} cannot name a lab: use up to 12 small letters and digits")


def socket_path(name: str) -> Path:
    """The Unix socket of a lab's switch."""
    return FOLDER / f"{name}.sock"


def names() -> list[str]:
    """Names of labs that run or left something behind; empty for users without access."""
    try:
        return sorted(path.stem for path in FOLDER.iterdir() if path.suffix == ".json")
    except OSError:
        return []


def claim(name: str, names: Sequence[str]) -> None:
    """Clean up after killed labs, then record that this process owns a lab and will create these namespaces.

    Raises
    ------
    LabError
        A lab of this name runs, or a namespace with one of the names exists that no lab created.
    """
    check_name(name)
    clean_stale()
    with _locked():
        if _path(name).exists():
            raise LabError(_in_the_way(_read(_path(name))))
        existing = next((room for room in names if (namespaces.NAMESPACES / room).exists()), None)
        if existing is not None:
            raise LabError(f"the namespace {existing} exists and belongs to no lab: ip netns del {existing}")
        _write(Record(name, os.getpid(), _started_ticks(os.getpid()) or 0, tuple(names)))


def release(name: str) -> None:
    """Remove the record of a lab whose namespaces are gone."""
    with _locked():
        _forget(name)


def clean_stale() -> list[str]:
    """Remove what labs left whose switch was killed; returns their names.

    It may take seconds to end what still runs in them. Other labs may start and end meanwhile: this process
    owns what it removes, which becomes stale again if this process is killed.
    """
    with _locked():
        stale = _take_over()
    for at, record in enumerate(stale):
        try:
            namespaces.remove(record.namespaces)
        except BaseException:
            with _locked():
                for left in stale[at:]:
                    _write(left)
            raise
        with _locked():
            _forget(record.name)
    return [record.name for record in stale]


def _take_over() -> list[Record]:
    """Take over labs whose owner is gone; returns their records as they were."""
    records = []
    for path in sorted(FOLDER.glob("*.json")):
        record = _read(path)
        if _started_ticks(record.process_id) != record.started_ticks:
            own = msgspec.structs.replace(
                record,
                name=path.stem,
                process_id=os.getpid(),
                started_ticks=_started_ticks(os.getpid()) or 0,
                is_removed=True,
            )
            _write(own)
            records.append(msgspec.structs.replace(record, name=path.stem))
    return records


def _in_the_way(owner: Record) -> str:
    if owner.is_removed:
        return f"process {owner.process_id} is removing what a lab called {owner.name} left: wait a moment"
    process = f"process {owner.process_id}"
    return f"a lab called {owner.name} runs already ({process}): farflung lab down, or give --name"


def _write(record: Record) -> None:
    write_atomically(_path(record.name), msgspec.json.encode(record), mode=0o600)


def _forget(name: str) -> None:
    socket_path(name).unlink(missing_ok=True)
    _path(name).unlink(missing_ok=True)


def _read(path: Path) -> Record:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError) as error:
        raise LabError(f"{path} does not describe a lab ({error}): remove it") from None
    if not all(name.startswith(namespaces.PREFIX) and "/" not in name for name in record.namespaces):
        raise LabError(f"{path} names namespaces that no lab made: remove it")
    return record


def _started_ticks(process_id: int) -> int | None:
    """Start time of a process; None if there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"


@contextmanager
def _locked() -> Iterator[None]:
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(FOLDER / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            os.close(descriptor)
