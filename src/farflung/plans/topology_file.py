"""Read and write topologies as JSON files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from farflung.errors import TopologyError
from farflung.files import write_atomically
from farflung.plans.topology import WORKER_ID, Topology, WorkerSpec

MOST_BYTES = 64 * 1024 * 1024
_KINDS = {
    "float": "a number",
    "int": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def read_topology(path: Path) -> Topology:
    """Read the topology in the file at `path`.

    Unknown keys are errors, because a misspelt `loss` would otherwise be ignored. Keys that start with `x-`
    are the user's own and are skipped.

    Raises
    ------
    TopologyError
        The file cannot be read, is larger than 64 MiB, is not JSON, or breaks a rule of `Topology`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise TopologyError(f"cannot read the topology {path}: {error.strerror or error}") from None
    try:
        return decode_topology(data)
    except ValueError as error:
        raise TopologyError(f"{path} is not a topology: {error}") from None


def decode_topology(data: bytes) -> Topology:
    """The topology in a JSON document; raises ValueError if it is not valid."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not JSON ({_place(data, str(error))})") from None
    known = _known_keys(document, Topology, "a topology")
    workers = known.get("workers")
    if isinstance(workers, list):
        known["workers"] = [_known_keys(worker, WorkerSpec, "a worker") for worker in workers]
    try:
        return msgspec.convert(known, Topology)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(str(error), _ids(known))) from None


def encode_topology(topology: Topology) -> bytes:
    """`topology` as a JSON document: name and notes first, then one line for each worker and each row."""
    fields = msgspec.to_builtins(topology).items()
    entries = [f"{_text(key)}: {_text(value)}" for key, value in fields if not isinstance(value, tuple)]
    entries += [f"{_text(key)}: {_lines(value)}" for key, value in fields if isinstance(value, tuple)]
    return ("{\n" + ",\n".join(entries) + "\n}\n").encode()


def write_topology(topology: Topology, path: Path) -> None:
    """Write `topology` to the file at `path`; raises TopologyError if that fails."""
    try:
        write_atomically(path, encode_topology(topology))
    except OSError as error:
        raise TopologyError(f"cannot write the topology {path}: {error.strerror or error}") from None


def _known_keys(document: object, kind: type[msgspec.Struct], what: str) -> dict[str, object]:
    if not isinstance(document, dict):
        raise ValueError(f"{what} must be a JSON object, found {type(document).__name__}")
    names = kind.__struct_fields__
    for key in document:
        if key not in names and not key.startswith("x-"):
            close = difflib.get_close_matches(key[:60], names, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(
                f"{key[:60]!r} is not a key of {what}: {hint}(a key of your own must start with 'x-')"
            )
    return {key: value for key, value in document.items() if key in names}


def _place(data: bytes, error: str) -> str:
    """The JSON decoder's message and, if it names a byte, the line number and the text there."""
    match = re.search(r" \(byte (\d+)\)$", error)
    if match is None:
        return error
    at = int(match[1])
    start = max(data.rfind(b"\n", 0, at) + 1, at - 40)
    there = data[start : at + 20].partition(b"\n")[0].decode(errors="replace")
    line = data.count(b"\n", 0, at) + 1
    return f"{error[: match.start()]} in line {line}: {there!r}"


def _in_words(error: str, ids: Sequence[str]) -> str:
    """Rewrite a type error of msgspec in JSON's terms, naming the value as `Topology`'s own errors do."""
    match = re.fullmatch(r"(.*?)(?: - at `\$\.?([^`]*)`)?", error, re.DOTALL)
    message, path = (match[1], match[2]) if match else (error, None)
    kinds = re.fullmatch(r"Expected `([^`]+)`, got `([^`]+)`", message)
    if kinds is None:  # our own rules name the value; msgspec's message on missing fields does not
        return f"{_where(path, ids)}: {message}" if path and message.startswith("Object ") else message
    expected, got = (
        " or ".join(_KINDS.get(kind, kind) for kind in each.split(" | ")) for each in kinds.groups()
    )
    return f"{_where(path or '', ids)}: expected {expected}, found {got}"


def _where(path: str, ids: Sequence[str]) -> str:
    """Describe the value at a path such as `workers[0].tflops` or `latency_ms[0][1]`."""

    def called(number: str) -> str:
        return ids[int(number)] if int(number) < len(ids) else f"number {number}"

    if found := re.fullmatch(r"workers\[(\d+)\]\.(\w+)", path):
        return f"{found[2]} of worker {called(found[1])}"
    if found := re.fullmatch(r"(\w+)\[(\d+)\]\[(\d+)\]", path):
        return f"{found[1]} from {called(found[2])} to {called(found[3])}"
    if found := re.fullmatch(r"workers\[(\d+)\]", path):
        return f"worker {called(found[1])}"
    if found := re.fullmatch(r"(\w+)\[(\d+)\]", path):
        return f"{found[1]}, the entry of worker {called(found[2])}"
    return path or "it"


def _ids(document: dict[str, object]) -> list[str]:
    """The ids of a document's workers, or their numbers if an id is not valid."""
    workers = document.get("workers")
    ids = [worker.get("id") for worker in workers] if isinstance(workers, list) else []
    return [
        id if isinstance(id, str) and WORKER_ID.fullmatch(id) else f"number {number}"
        for number, id in enumerate(ids)
    ]


def _lines(values: tuple[object, ...]) -> str:
    return "[\n  " + ",\n  ".join(map(_text, values)) + "\n]"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
