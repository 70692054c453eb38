"""Which labs run on this machine, and the cleaning up after those whose switch was killed."""

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
    """One lab: the process that owns it, and what must be removed when that is gone.

    A process is told from a later one of the same number by when it started, in clock ticks since boot.
    `is_removed` says that this process is removing what another one left.
    """

    name: str
    process_id: int
    started_ticks: int
    namespaces: tuple[str, ...]
    is_removed: bool = False


def check_name(name: str) -> None:
    """Raises `LabError` unless a lab can be called so."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name[:40]!r} cannot name a lab: use up to 12 small letters and digits")


def socket_path(name: str) -> Path:
    """Where the switch of a lab listens."""
    return FOLDER / f"{name}.sock"


def names() -> list[str]:
    """The labs that run, or left something behind; none for a user who may not look."""
    try:
        return sorted(path.stem for path in FOLDER.iterdir() if path.suffix == ".json")
    except OSError:
        return []


def claim(name: str, names: Sequence[str]) -> None:
    """Record that this process owns a lab and will make these namespaces; clean up after the dead first.

    Raises
    ------
    LabError
        A lab of this name runs, or a namespace of that name exists which no lab made.
    """
    check_name(name)
    clean_stale()
    with _locked():
        if _path(name).exists():
            raise LabError(_in_the_way(_read(_path(name))))
        taken = next((room for room in names if (namespaces.NAMESPACES / room).exists()), None)
        if taken is not None:
            raise LabError(f"the namespace {taken} exists and belongs to no lab: ip netns del {taken}")
        _write(Record(name, os.getpid(), _started_ticks(os.getpid()) or 0, tuple(names)))


def release(name: str) -> None:
    """Forget a lab whose namespaces are gone."""
    with _locked():
        _forget(name)


def clean_stale() -> list[str]:
    """Remove what labs left whose switch was killed; their names.

    To end what still runs there may take seconds. Other labs come and go meanwhile: what is being removed
    belongs to this process, and is stale again if that is killed, too.
    """
    with _locked():
        stale = _taken_over()
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


def _taken_over() -> list[Record]:
    """The records of labs whose owner is gone, as they were; this process owns them now."""
    found = []
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
            found.append(msgspec.structs.replace(record, name=path.stem))
    return found


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
    """When a process started; None if there is none, or only its remains."""
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
