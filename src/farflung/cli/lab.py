"""`farflung lab`: slow, lossy, NATed networks on this machine."""

from __future__ import annotations

import typer

from farflung.cli import lab_list, lab_run

app = typer.Typer(help="Slow, lossy, NATed networks on this machine (Linux, root).")
app.command("run")(lab_run.run)
app.command("list")(lab_list.list_testbeds)
