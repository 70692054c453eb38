"""A broker's folder and a worker's: event log, tokens, certificates, measurements, keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from tests.golden.samples import members, samples

from farflung.broker.core import facts
from farflung.broker.core.blobs import digest_of
from farflung.broker.core.snapshots import encode_snapshot
from farflung.broker.core.state import State, replay
from farflung.broker.security.authority import Authority
from farflung.broker.security.authority_key import AUTHORITY_KEY_FILE
from farflung.broker.security.signing import sign_authority
from farflung.broker.storage import store
from farflung.broker.storage.store import STORE_FILE, Store, TokenRecord
from farflung.broker.survey.measurements import Measurement, row
from farflung.protocol.copies import StateVersion
from farflung.protocol.worker import SegmentProgram
from farflung.transport.net.address_file import write_address
from farflung.transport.security.certificates import certificate_to_pem, key_to_pem
from farflung.transport.security.identity import AUTHORITY_FILE, KEY_FILE, Identity, read_key

FILE = "broker.json"

MADE_AT = 1_750_000_000.0
YEARS = 9 * 365 * 24 * 3600.0
"""How long certificates are good for: the authority's own ends after ten."""
_BLOBS = [b"a graph", msgspec.msgpack.encode(SegmentProgram(1, b"a program", {"weight": 4}))]
DIGESTS = [bytes([number]) * 32 for number in (1, 2, 3)]


def record(folder: Path) -> None:
    """Write the store as a broker leaves it, and in one document what stands in it and the other files."""
    with TemporaryDirectory() as name, patch.object(store.time, "time", return_value=MADE_AT):
        broker, worker = Path(name) / "broker", Path(name) / "worker"
        decisions = list(_history())
        _fill(broker, worker, decisions)
        data = (broker / STORE_FILE).read_bytes()
        (folder / STORE_FILE).write_bytes(data)
        document: dict[str, Any] = {
            "facts": [facts.encode(fact).hex() for fact in decisions],
            "state": summary(replay(decisions)),
            "blobs": [blob.hex() for blob in _BLOBS],
            "tokens": [[token.digest.hex(), *_columns(token)] for token in _tokens()],
            "measurements": [list(map(_text, row(one))) for one in _measurements()],
            "broker": _files(broker),
            "worker": _files(worker),
        }
    (folder / FILE).write_text(json.dumps(document, indent=1) + "\n")


def summary(state: State) -> dict[str, Any]:
    """Of a broker's state what a restart must not change, in plain values."""
    workers = {
        name: [one.connected, one.job, list(one.where.addresses), one.boot, one.relay_mbps, one.trouble]
        for name, one in sorted(state.workers.items())
    }
    jobs = {
        name: [one.state, one.reason, one.step, one.attempt, list(one.members), len(one.codecs), one.unable]
        for name, one in sorted(state.jobs.items())
    }
    return {"workers": workers, "jobs": jobs}


def restore(document: dict[str, str], folder: Path) -> None:
    """Lay the files of a folder out again, keys for their owner only."""
    folder.mkdir()
    for name, data in document.items():
        (folder / name).write_bytes(bytes.fromhex(data))
        (folder / name).chmod(0o600)


def _history() -> Iterator[Any]:
    """Every kind of fact, in an order that can be: one job that ends, one that runs, one that waits."""
    at = iter(range(1, 1000))

    def fact(kind: type, **fields: object) -> Any:
        return replace(samples(kind)[0], at=float(next(at)), **fields)

    for number in range(1, 5):
        yield fact(facts.WorkerAdmitted, worker=f"w-{number}", boot=f"boot-{number}")
    yield fact(facts.WorkerMoved, worker="w-1")
    yield fact(facts.WorkerMeasured, worker="w-1")
    for number in range(1, 4):
        digest = digest_of(_BLOBS[0])
        resumed = {"unit": 2, "attempts": 3} if number == 3 else {"unit": 0, "attempts": 0}
        named = {"job": f"job-{number}", "number": number, "graph": b"", "graph_digest": digest}
        yield fact(facts.JobSubmitted, **named, **resumed)
    for job in ("job-1", "job-2"):
        others = ["w-1", "w-2", "w-3", "w-4"]
        yield fact(facts.JobPlanning, job=job, attempt=1, workers=others, restores=False)
        yield fact(facts.JobRequeued, job=job, unable={"w-9": "lacks an op"})
        yield fact(facts.JobPlanning, job=job, attempt=2, workers=others, restores=False)
        loading = {"programs": {1: digest_of(_BLOBS[1])}, "steering": None}
        yield fact(facts.JobLoading, job=job, sources={}, **loading)
        yield fact(facts.JobRunning, job=job)
        for unit in range(3):
            yield fact(facts.UnitDecided, job=job, attempt=2, unit=unit, keep=unit == 1, stops=False)
        yield fact(facts.VersionStable, job=job, version=StateVersion(2, 2))
        yield fact(facts.CopyAsked, job=job)
        yield fact(facts.CopyStored, job=job, unit=1)
        yield fact(facts.CodecsDecided, job=job, attempt=2, unit=3)
        yield fact(facts.JobMoves, job=job, attempt=2)
        yield fact(facts.JobRolledBack, job=job, attempt=2, unit=2)
        yield fact(facts.JobRestoring, job=job, attempt=3)
        yield fact(facts.JobRunning, job=job)
        yield fact(facts.JobReplaying, job=job, attempt=4)
        yield fact(facts.JobRunning, job=job)
        yield fact(facts.JobRolledBack, job=job, attempt=4, unit=2)
        yield fact(facts.PlanGivenUp, job=job)
        yield fact(facts.JobPlanning, job=job, attempt=5, workers=others)
        yield fact(facts.JobLoading, job=job, **loading)
        yield fact(facts.JobRolledBack, job=job, attempt=5, unit=2)
        yield fact(facts.VersionGivenUp, job=job, unit=2)
        yield fact(facts.JobPlanning, job=job, attempt=6, workers=others, restores=False)
        yield fact(facts.JobLoading, job=job, sources={}, **loading)
        yield fact(facts.JobRunning, job=job)
        yield fact(facts.UnitDecided, job=job, attempt=6, unit=2, keep=False, stops=False)
        yield fact(facts.ShareChecked, job=job, version=StateVersion(6, 2))
        yield fact(facts.VersionFailed, job=job, version=StateVersion(6, 2))
        yield fact(facts.JobRegrouped, job=job, attempt=7)
        yield fact(facts.JobMended, job=job, attempt=8)
        if job == "job-1":
            yield fact(facts.JobEnding, job=job, state="done")
            yield fact(facts.JobCollecting, job=job, state="done")
            yield fact(facts.JobEnded, job=job, state="done", reason="")
    yield fact(facts.SubmitterAway, job="job-2")
    yield fact(facts.SubmitterReturned, job="job-2", attempt=7)
    yield fact(facts.SubmitterAway, job="job-3")
    yield fact(facts.WorkerAway, worker="w-3")
    yield fact(facts.WorkerLost, worker="w-4")
    yield fact(facts.WorkerLeaving, worker="w-2")
    yield fact(facts.WorkerReleased, worker="w-2")
    yield fact(facts.MemberRemoved, member="w-4", role="worker")
    yield fact(facts.MemberRemoved, member="w-1", role="worker")
    yield fact(facts.MemberAllowed, member="w-4")
    yield fact(facts.WorkerBlamed, job="job-2", worker="w-2", unit=9)
    yield fact(facts.WorkerSuspected, job="job-2", worker="w-2")
    yield fact(facts.WorkerBlamed, job="job-2", worker="w-3", unit=9)


def _fill(broker: Path, worker: Path, decisions: list[Any]) -> None:
    broker.mkdir(mode=0o700)
    worker.mkdir(mode=0o700)
    for folder, name, seed in (
        (broker, AUTHORITY_KEY_FILE, 1),
        (broker, KEY_FILE, 2),
        (worker, KEY_FILE, 3),
    ):
        (folder / name).write_bytes(key_to_pem(ec.derive_private_key(seed * 10**30 + 7, ec.SECP256R1())))
        (folder / name).chmod(0o600)
    with Store(broker) as kept:
        blobs = {digest_of(blob): blob for blob in _BLOBS}
        middle = len(decisions) // 2
        snapshot = encode_snapshot(replay(decisions[:middle]))
        kept.append([facts.encode(fact) for fact in decisions[:middle]], blobs, (), snapshot)
        kept.append([facts.encode(fact) for fact in decisions[middle:]])
        kept.write_measurements([row(one) for one in _measurements()])
        for token in _tokens():
            kept.add_token(token)
        authority = _authority(broker, kept)
        authority.identity()
        key = ec.derive_private_key(3 * 10**30 + 7, ec.SECP256R1())
        pem = authority._issue(("w-1", "worker"), key.public_key(), DIGESTS[0])
        Identity.write(worker, pem, certificate_to_pem(authority.certificate), "192.0.2.7:7700")
        write_address(broker, "[::]:7700")


def _authority(folder: Path, kept: Store) -> Authority:
    key = read_key(folder, AUTHORITY_KEY_FILE)
    (folder / AUTHORITY_FILE).write_bytes(certificate_to_pem(sign_authority(key, MADE_AT)))
    return Authority.open(folder, kept, lambda: MADE_AT, YEARS)


def _tokens() -> list[TokenRecord]:
    roles = ("worker", "submitter", "viewer")
    return [
        TokenRecord(digest, role, 5, at, MADE_AT + at, None if at == 2 else MADE_AT - at)
        for at, (digest, role) in enumerate(zip(DIGESTS, roles, strict=True))
    ]


def _columns(token: TokenRecord) -> list[object]:
    return [token.role, token.uses, token.used, token.expires_at, token.made_at]


def _measurements() -> list[Measurement]:
    """Of different workers: the store keeps one of each pair and line."""
    found = [one for kind in members(Measurement) for one in samples(kind)]
    return [replace(one, **{one.__struct_fields__[0]: f"w-{at}"}) for at, one in enumerate(found, 1)]


def _text(value: str | bytes) -> str:
    return value.hex() if isinstance(value, bytes) else value


def _files(folder: Path) -> dict[str, str]:
    left_out = (STORE_FILE, "broker.lock")
    return {
        path.name: path.read_bytes().hex()
        for path in sorted(folder.iterdir())
        if not path.name.startswith(left_out)
    }
