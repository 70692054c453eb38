"""`farflung lab`: slow, lossy, NATed networks on this machine."""

from __future__ import annotations

import typer

from farflung.cli import lab_calibrate, lab_change, lab_list, lab_run, lab_up

app = typer.Typer(help="Slow, lossy, NATed networks on this machine (Linux, root).")
app.command("run")(lab_run.run)
app.command("list")(lab_list.list_testbeds)
app.command("up")(lab_up.up)
app.command("down")(lab_up.down)
app.command("exec")(lab_change.execute)
app.command("set")(lab_change.change)
app.command("cut")(lab_change.cut)
app.command("heal")(lab_change.heal)
app.command("stats")(lab_change.stats)
app.command("calibrate")(lab_calibrate.calibrate)
