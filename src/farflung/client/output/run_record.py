"""`run.json`: the name of a run, and the options that it keeps when resumed. Keys are only ever added."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

import farflung
from farflung.client.output.checkpoints.record import RunIdentity, Sha256, Versions
from farflung.errors import CheckpointError
from farflung.text import printable

FORMAT = 1
RUN = "run.json"

Text = Annotated[str, Meta(max_length=4096)]
Number = Annotated[int, Meta(ge=0, le=10**9)]

_NOT_AT_A_BROKER = ("local", "backends", "device")
_NOT_LOCAL = ("broker", "folder", "workers", "on", "topology", "home", "with_local_worker")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `farflung train` that a resumed run keeps, as they were typed; None: not given.

    `codec` has each `--codec`, `set_` each `--set`. `folder` is that of the identity. The other names are
    those of the options.
    """

    steps: Number | None = None
    set_: Annotated[list[Text], Meta(max_length=1000)] | None = msgspec.field(name="set", default=None)
    local: Number | None = None
    backends: Text | None = None
    device: Text | None = None
    broker: Text | None = None
    folder: Text | None = None
    workers: Number | None = None
    on: Text | None = None
    topology: Text | None = None
    scheduler: Text | None = None
    efficiency: float | None = None
    recompute: Text | None = None
    replicas: Text | None = None
    inner_steps: Number | None = None
    codec: Annotated[list[Text], Meta(max_length=10_000)] | None = None
    sum_codec: Text | None = None
    text: Text | None = None
    precision: Text | None = None
    checkpoint_every: Text | None = None
    checkpoint_to: Text | None = None
    patience: Text | None = None
    log: Text | None = None
    home: Text | None = None
    with_local_worker: bool | None = None

    def over(self, earlier: RunOptions, has_token: bool = False) -> RunOptions:
        """These options, and those of the earlier run where nothing is given here.

        Local workers take the place of a broker's, and the other way round; a number of workers takes the
        place of their names. A token says which broker, so the earlier one's address is not kept then. Of
        `set_` each field is an option of its own.
        """
        dropped = self._dropped(has_token)
        kept = {
            name: getattr(earlier, name)
            for name in self.__struct_fields__
            if getattr(self, name) is None and name not in dropped
        }
        if self.local is not None and earlier.backends is not None and self.backends is None:
            kept["backends"] = ",".join(earlier.backends.split(",")[: self.local])
        if self.set_ is not None:
            kept["set_"] = _set_over(self.set_, earlier.set_ or [])
        return msgspec.structs.replace(self, **kept)

    def _dropped(self, has_token: bool) -> set[str]:
        """Options of an earlier run that contradict these."""
        dropped: set[str] = set()
        if self.local is not None:
            dropped.update(_NOT_LOCAL)
        elif has_token or any(getattr(self, name) is not None for name in _NOT_LOCAL):
            dropped.update(_NOT_AT_A_BROKER)
        if has_token:
            dropped.add("broker")
        if self.workers is not None:
            dropped.add("on")
        if self.on is not None:
            dropped.add("workers")
        return dropped

    def without_password(self) -> RunOptions:
        """The same, without user and password in the URL of `checkpoint_to`."""
        from farflung.client.output.checkpoints.object_store import without_credentials

        if self.checkpoint_to is None:
            return self
        return msgspec.structs.replace(self, checkpoint_to=without_credentials(self.checkpoint_to))

    def as_kept(self) -> RunOptions:
        """The same for a file that others may read in another current folder: absolute, without password."""
        changes = {name: absolute(value) for name in ("text", "folder") if (value := getattr(self, name))}
        if self.topology is not None and Path(self.topology).exists():
            changes["topology"] = absolute(self.topology)
        if self.checkpoint_to is not None and "://" not in self.checkpoint_to:
            changes["checkpoint_to"] = absolute(self.checkpoint_to)
        return msgspec.structs.replace(self.without_password(), **changes)


def _set_over(given: list[str], earlier: list[str]) -> list[str]:
    """What `--set` gives of each field: here, or else in the earlier run, in the order of that."""

    def names(text: str, other: str) -> bool:
        """Whether both set one field, which may be written in short: `lr`, `optimizer.lr`."""
        one, two = (f".{each.partition('=')[0].strip()}" for each in (text, other))
        return one.endswith(two) or two.endswith(one)

    found = [next((one for one in given if names(one, old)), old) for old in earlier]
    return found + [one for one in given if one not in found]


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job at a broker, and what a process must have in common with its submitter to take that place.

    `broker` is HOST:PORT of the broker. `identity` and `versions` are as in a checkpoint; `values` is a
    digest of some of the values with which the model began.
    """

    job: Text
    broker: Text
    identity: RunIdentity
    versions: Versions
    values: Sha256


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`.

    `run` is a random name that the run keeps when it is resumed; checkpoints have it, too. `farflung` is the
    version that wrote this file, `job` the path of the job file, empty for a job from Python. `options` are
    those of the newest part of the run. `submitted` is its job, once a broker has accepted it.
    """

    format: int = FORMAT
    run: Annotated[str, Meta(min_length=1, max_length=128)]
    farflung: str
    job: Text
    options: RunOptions
    submitted: SubmittedJob | None = None

    @classmethod
    def of(cls, job: str, options: RunOptions, run: str | None = None) -> RunRecord:
        """The record of a run that begins now; a resumed one has the name `run` already."""
        return cls(
            run=run or secrets.token_hex(16),
            farflung=farflung.__version__,
            job=absolute(job) if job else "",
            options=options.as_kept(),
        )


def read_record(folder: Path) -> RunRecord:
    """Read `run.json` of a run folder.

    Raises
    ------
    CheckpointError
        There is no such file, it is damaged or foreign, or of a newer format.
    """
    path = folder / RUN
    try:
        document = path.read_bytes()
        version = msgspec.json.decode(document, type=_Format).format
        if version > FORMAT:
            raise CheckpointError(
                f"{path} has format {version}, this farflung reads up to {FORMAT}: use a newer farflung"
            )
        return msgspec.json.decode(document, type=RunRecord)
    except OSError as error:
        raise CheckpointError(
            f"expected a run to resume in {folder}, but {RUN} cannot be read ({error.strerror}): give a run"
            " folder, or start a new run without --resume"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is damaged or foreign: {printable(str(error))}: start a new run without --resume"
        ) from None


class _Format(msgspec.Struct):
    format: int


def absolute(path: str | Path) -> str:
    """A path that holds in any current folder."""
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - resolve() would follow links
