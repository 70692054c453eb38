"""`checkpoint.json`: which step of which run a checkpoint holds, and its files. Keys are only ever added."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

import farflung
from farflung.errors import CheckpointError
from farflung.runtime.monitoring import Monitored
from farflung.runtime.training import Training
from farflung.text import printable

FORMAT = 1

RECORD = "checkpoint.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
BUFFERS = "non_persistent.safetensors"
CODERS = "coders.msgpack"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
"""The files of an adapter, as PEFT names them."""

FILES = (MODEL, OPTIMIZER, BUFFERS, CODERS, *ADAPTER)
"""What a checkpoint may hold beside its record; the first is always there."""

Count = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class StoredFile(msgspec.Struct, frozen=True):
    """Size and digest of one file."""

    bytes: Count
    sha256: Sha256


class ModelIdentity(msgspec.Struct, frozen=True):
    """The captured model: the digest of its OP-DAG's wire form, and how many numbers its parameters have.

    If some are frozen, `base_sha256` is a digest of all tensors that no step changes; a checkpoint leaves
    those out. `quantize` is the format of its quantized matrices; the others are of the model itself.
    """

    graph_sha256: Sha256
    numbers: Count
    base_sha256: Sha256 | None = None
    quantize: str = ""


class DataIdentity(msgspec.Struct, frozen=True):
    """The training data: how many items, and the digest of each of some, spread evenly.

    `is_repeatable` is false if an item differed when it was read a second time, as with random augmentation.
    `order` says what chooses each step's items: the type of the sampler, or "seeded permutation". Earlier
    versions of farflung did not say.
    """

    items: Count
    digests: list[Sha256]
    is_repeatable: bool
    order: str | None = None


class RunIdentity(msgspec.Struct, frozen=True):
    """What identifies a run: the model, the training settings and the data."""

    model: ModelIdentity
    training: Training
    data: DataIdentity


class Versions(msgspec.Struct, frozen=True):
    """The versions of farflung and torch that wrote a checkpoint."""

    farflung: str
    torch: str

    @classmethod
    def own(cls) -> Versions:
        """Those of this process."""
        import torch

        return cls(farflung.__version__, str(torch.__version__))


class CutSegment(msgspec.Struct, frozen=True):
    """One segment of the cut that was in force: its workers, and the parameters and buffers that it owned."""

    segment: Count
    workers: list[str]
    owns: list[str]


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`checkpoint.json`.

    `run` is a random name that a run keeps when it is resumed, `job` the job's name. The checkpoint holds the
    state after `step` steps, the last of which was applied in `attempt` and had `loss`. The state of
    coders fits plans whose cut has the digest `cut_sha256`. `files` gives sizes and digests. `monitored` is
    what the monitors of the training settings have found; unless the weights are `evaluated`, the evaluation
    that is due after this step is still to come; so is the merge of replicas unless they have `merged`.
    """

    format: int = FORMAT
    run: Annotated[str, Meta(min_length=1)]
    job: str
    step: Count
    attempt: Count
    loss: float | None
    identity: RunIdentity
    versions: Versions
    cut: list[CutSegment] = []
    cut_sha256: str = ""
    files: dict[str, StoredFile] = {}
    monitored: list[Monitored] = []
    evaluated: bool = True
    merged: bool = True


class _Format(msgspec.Struct):
    format: int


def decode_record(document: bytes, where: str, step: int) -> CheckpointRecord:
    """Read the `checkpoint.json` of the checkpoint at `where`, which must be of that step.

    Raises
    ------
    CheckpointError
        It is damaged, of a newer format or of another step, or it names files that no checkpoint has.
    """
    try:
        version = msgspec.json.decode(document, type=_Format).format
        if version > FORMAT:
            raise CheckpointError(
                f"{where} has format {version}, this farflung reads up to {FORMAT}: use a newer farflung"
            )
        record = msgspec.json.decode(document, type=CheckpointRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}/{RECORD} is damaged or foreign: {printable(str(error))}") from None
    if record.step != step:
        raise CheckpointError(f"{where}/{RECORD} is of step {record.step}: its folder was renamed")
    if MODEL not in record.files or not record.files.keys() <= set(FILES):
        found = printable(", ".join(record.files)[:200])
        raise CheckpointError(f"{where}/{RECORD} names the files {found or 'none'}: it is damaged or foreign")
    return record
