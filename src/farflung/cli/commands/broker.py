"""`farflung broker`: membership, jobs, plans and step commits, on one port; its backups."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.pages import WebJobsOption, WebOption, WebTokenOption, pages_at
from farflung.cli.options.relaying import RelayOption
from farflung.cli.process.passphrase import (
    CaOption,
    PassphraseFile,
    key_source,
    new_passphrase,
    passphrase_in,
)
from farflung.cli.process.service import ExitWithParent, LogJsonOption, heed_parent, run_service
from farflung.cli.render.output import JsonOption, note, print_json
from farflung.errors import JobError
from farflung.text import count_of, format_bytes, format_utc
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.broker.backup import Contents

app = typer.Typer(rich_markup_mode=None)

ListenOption = Annotated[str, typer.Option(help="HOST:PORT to listen on.")]
OwnFolderOption = Annotated[
    Path | None,
    typer.Option(help="Folder of its certificates and event log. [default: ~/.farflung/broker]"),
]
LeaseOption = Annotated[
    float,
    typer.Option(min=1.0, max=3600.0, help="Seconds of silence after which a worker counts as lost."),
]
SurveyOption = Annotated[
    bool,
    typer.Option("--survey/--no-survey", help="Let idle workers measure each link between them once."),
]
SuspicionsOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=1000,
        metavar="N",
        help="A worker that made attempts of N jobs fail, which others got through, gets no more jobs.",
    ),
]
CertificateHoursOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=168.0,  # workers hear of removals for 8 days (broker/core/trusting/removing.py)
        metavar="HOURS",
        help="Certificates of members end after HOURS; they renew themselves at half of it.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        envvar="FARFLUNG_STORE",
        metavar="URL",
        help="PostgreSQL database of its event log, postgresql://USER@HOST/DATABASE; the folder remembers"
        " it. [default: a file in the folder]",
    ),
]
StandbyOption = Annotated[
    bool, typer.Option("--standby", help="Wait while another broker owns the store, then take over.")
]


@app.callback(invoke_without_command=True)
def broker(
    context: typer.Context,
    listen: ListenOption = "[::]:7700",
    folder: OwnFolderOption = None,
    lease: LeaseOption = 10.0,
    relay: RelayOption = 100.0,
    survey: SurveyOption = True,
    suspicions: SuspicionsOption = 3,
    certificate_hours: CertificateHoursOption = 24.0,
    store: StoreOption = None,
    standby: StandbyOption = False,
    ca: CaOption = None,
    passphrase_file: PassphraseFile = None,
    web: WebOption = None,
    web_token: WebTokenOption = "",
    web_jobs: WebJobsOption = None,
    as_json: LogJsonOption = False,
    exit_with_parent: ExitWithParent = None,
) -> None:
    """Run the broker until it is stopped; the first start creates its certificate authority."""
    if context.invoked_subcommand is not None:
        return
    heed_parent(exit_with_parent)
    from farflung.broker.service import serve

    where = folder_of("broker", folder)
    if web is None and web_jobs:
        raise JobError("--web-jobs limits what the page of --web shows: add --web HOST:PORT")
    pages = None if web is None else pages_at(web, web_token, web_jobs or ())
    lifetime = certificate_hours * 3600
    key = key_source(ca, passphrase_file).opened(where)
    broker = serve(where, listen, lease, relay, survey, store, standby, suspicions, lifetime, pages, key)
    run_service(broker, as_json)


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File of the backup.", dir_okay=False)]
FolderOption = Annotated[Path | None, typer.Option(help="The broker's folder. [default: ~/.farflung/broker]")]


@app.command()
def backup(
    context: typer.Context,
    file: FileArgument,
    folder: FolderOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write all that a broker needs to go on elsewhere to one file; the broker may be running.

    The file is secret: it holds the key of the broker's certificate authority, but not one that is kept apart
    (--ca). It replaces an older backup.
    """
    from farflung.broker.backup import back_up

    where = _folder(context, folder)
    found = back_up(where, file.expanduser(), key_source(ca, None))
    if as_json:
        print_json({"file": str(file), "folder": str(where), "holds": found})
        return
    note(f"backed up the broker of {where} to {file} ({_words(found)})")
    note(_SECRET[found.key].format(file=file))


@app.command()
def restore(
    context: typer.Context, file: FileArgument, folder: FolderOption = None, as_json: JsonOption = False
) -> None:
    """Make a broker's folder from a backup, in a folder that is new or empty.

    Start the broker with this folder then, at the address of the old one, which must never run again. Only
    with a store on PostgreSQL may both run: one works, and the other one stands by.
    """
    from farflung.broker import backup as backups

    where = _folder(context, folder)
    found = backups.restore(file.expanduser(), where)
    if as_json:
        print_json({"file": str(file), "folder": str(where), "holds": found})
        return
    note(f"restored the broker of {file} to {where} ({_words(found)})")
    if found.key == "apart":
        note("the authority's key is not in the backup: start the broker with --ca")
    if found.store:
        note(f"a broker on {where} takes over once the other one is gone: farflung broker --standby")
    else:
        note("never start the broker that it is a backup of again: two would disagree")


_SECRET = {
    "plain": "keep {file} secret: who has it can pose as your broker and every member of its fleet",
    "encrypted": "keep {file} secret: who has it and the passphrase can pose as your broker and its members",
    "apart": "the authority's key, which is kept apart, is not in {file}: keep a copy of it elsewhere",
}


@app.command()
def passphrase(
    context: typer.Context,
    folder: FolderOption = None,
    ca: CaOption = None,
    passphrase_file: PassphraseFile = None,
    new_passphrase_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the new passphrase. [default: ask for it]")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Store the key unencrypted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Encrypt the key of the broker's authority by a passphrase, or by another one; the broker may run.

    The next start of the broker needs the passphrase. Older backups still hold the key as it was.
    """
    from farflung.broker.security.authority_key import change_passphrase

    where, source = _folder(context, folder), key_source(ca, passphrase_file)
    new = None
    if not remove:
        new = new_passphrase() if new_passphrase_file is None else passphrase_in(new_passphrase_file)
    file = change_passphrase(where, source, new)
    if as_json:
        print_json({"file": str(file), "encrypted": new is not None})
        return
    state = "not encrypted any more" if new is None else "encrypted; the broker needs the passphrase to start"
    note(f"{file} is {state}")


@app.command()
def rotate(
    context: typer.Context,
    folder: FolderOption = None,
    overlap_days: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=90.0,
            metavar="DAYS",
            help="So long members trust both keys; 0: all must join again with new tokens.",
        ),
    ] = 8.0,
    ca: CaOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the key of the broker's authority by a new one. Stop the broker first, and start it again then.

    Members renew their certificates within the overlap by themselves. Back the broker up again.
    """
    from farflung.broker.security.rotation import rotate as replace_key

    where = _folder(context, folder)
    source = key_source(ca, passphrase_file).opened(where)
    done = replace_key(where, source, time.time(), overlap_days * 86_400)
    if as_json:
        print_json({"folder": str(where), "fingerprint": done.fingerprint.hex(), "ends_at": done.ends_at})
        return
    until = f"members trust both until {format_utc(done.ends_at)}, and renew by themselves once it runs again"
    note(f"the broker of {where} has a new key; {until if overlap_days else 'all members must join again'}")
    note("older backups have the old key: back the broker up again, and hand it over to one that stands by")


def _folder(context: typer.Context, given: Path | None) -> Path:
    """The folder, whether --folder stands behind `backup` or, as for the broker itself, before it."""
    before: Path | None = None if context.parent is None else context.parent.params.get("folder")
    return folder_of("broker", given or before)


def _words(found: Contents) -> str:
    numbers = {"worker": found.workers, "job": found.jobs, "token": found.tokens}
    counted = [count_of(number, word) for word, number in numbers.items() if number is not None]
    if found.store:
        held = ", ".join(counted) or "the log and the tokens"
        return f"its authority; {held} in {found.store}, which needs a backup of its own"
    return f"{', '.join(counted)}, {format_bytes(found.bytes)}"
