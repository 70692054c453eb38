"""`farflung status`: workers, jobs and the backup pool, as the broker sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.folders import folder_of, home
from farflung.cli.identity import TokenText, obtain_identity
from farflung.cli.output import duration, print_json, print_text, table
from farflung.errors import IdentityError
from farflung.wording import counted

if TYPE_CHECKING:
    from farflung.protocol.messages import Status
    from farflung.protocol.viewer import JobStatus, LinkView, WorkerStatus
    from farflung.transport.identity import Identity
    from farflung.transport.tokens import TokenRole

ROLES: tuple[TokenRole, ...] = ("submitter", "viewer", "worker")


def status(
    broker: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="[default: the one joined]")] = None,
    token: TokenText = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the identity lies. [default: one under ~/.farflung]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Show workers, jobs and the backup pool."""
    found = asyncio.run(_ask(broker, token, folder))
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            print_text(line)


async def _ask(broker: str | None, token: str | None, folder: Path | None) -> Status:
    from farflung.client.inquiry import ask_status

    return await ask_status(await any_identity(broker, token, folder))


async def any_identity(broker: str | None, token: str | None, folder: Path | None) -> Identity:
    """Whoever this user is: a token's holder, the identity in `folder`, or the first one there is."""
    if token is not None:
        from farflung.transport.tokens import Token

        role = Token.parse(token).role
        return await obtain_identity(folder_of(role, folder), role, broker, token)
    folders = [folder] if folder is not None else [folder_of(role, None) for role in ROLES]
    present = [path for path in folders if (path / "identity.json").exists()]
    if not present:
        raise IdentityError(
            f"there is no identity under {folder or home()}: on the broker run"
            " `farflung token create --role viewer`, then here `farflung status --broker HOST:PORT --token T`"
        )
    return await obtain_identity(present[0], "viewer", broker, None)


def _lines(status: Status) -> Iterable[str]:
    from farflung.local.opset_findings import opset_findings

    yield f"broker {status.version}, up {duration(status.uptime_seconds)}"
    yield f"{status.workers_counted()}, {len(status.backup_pool)} in the backup pool"
    yield from table(
        ("worker", "state", "device", "computes with", "site", "address", "seen", "job"),
        map(_worker, status.workers),
    )
    for finding in opset_findings(status.workers):
        yield finding.found
    yield counted(len(status.jobs), "job")
    yield from table(("job", "name", "state", "step", "loss", "samples/s", "reason"), map(_job, status.jobs))
    over = {job.job for job in status.jobs if job.state in ("done", "failed", "cancelled")}
    links = [view for view in status.links if view.job not in over]
    written = {(job.job, one.source, one.target): one.codec for job in status.jobs for one in job.codecs}
    ends = counted(len(links), "end")
    yield f"links: {ends}; the broker relays up to {status.relay_mbps:g} Mbit/s for others"
    carried = {
        (job.job, link.source, link.target): (link.ratio, link.coding_seconds / max(1, job.step))
        for job in status.jobs
        for link in job.links
    }
    rows = (_link(view, written, carried.get((view.job, view.holder, view.report.peer))) for view in links)
    headings = ("link", "path", "paced by", "round trip", "sends at", "written by", "ratio", "codecs a step")
    yield from table(headings, rows)


def _worker(worker: WorkerStatus) -> tuple[str, ...]:
    seen = f"{worker.last_seen_seconds:.0f} s ago" if worker.last_seen_seconds >= 0 else "not yet"
    return (
        worker.worker,
        worker.state,
        worker.device,
        worker.framework,
        worker.site,
        worker.address,
        seen,
        worker.job,
    )


def _link(
    view: LinkView, written: Mapping[tuple[str, str, str], str], carried: tuple[float | None, float] | None
) -> tuple[str, ...]:
    """`carried`: bytes of the tensors in fp32 over those on the wire, and CPU seconds of codecs a step."""
    link = view.report.link
    ends = f"{view.holder} -> {view.report.peer}"
    if link is None:
        return ends, "none: farflung doctor says what was tried", "", "", "", "", "", ""
    round_trip = "" if link.round_trip_ms is None else f"{link.round_trip_ms:.1f} ms"
    rate = "" if link.rate_mbps is None else f"{link.rate_mbps:.1f} Mbit/s"
    codec = written.get((view.job, view.holder, view.report.peer), "")
    ratio, seconds = carried or (None, 0.0)
    shrunk = "" if ratio is None else f"{ratio:.2f}x"
    coding = f"{1e3 * seconds:.1f} ms" if seconds else ""
    return ends, link.path, link.congestion_control, round_trip, rate, codec, shrunk, coding


def _job(job: JobStatus) -> tuple[str, ...]:
    loss = "emulated" if job.emulated else "" if job.loss is None else f"{job.loss:.4f}"
    speed = "" if job.samples_per_second is None else f"{job.samples_per_second:.1f}"
    return job.job, job.name, job.state, f"{job.step}/{job.steps}", loss, speed, job.reason
