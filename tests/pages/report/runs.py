"""Run folders for tests of pages: written by the writer of run folders, with times of the test's own."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.client.output.test_run_folder import row, summary

from farflung.client.output.records import LinkRow, StepRow, ValidationRow
from farflung.client.output.run_folder import RunFolder
from farflung.plans import LinkCodec, Placement

BEGAN = 1_790_000_000.0
WORKERS = ("home", "lab")


def step_row(step: int, at: float | None, attempt: int = 1, loss: float | None = None) -> StepRow:
    """A step that ended `at` seconds after the run began, on links of both workers."""
    links = [LinkRow(*WORKERS, 4000, 1000, 4.0), LinkRow(*WORKERS[::-1], 4000, 4000, 1.0)]
    when = None if at is None else BEGAN + at
    found = row(step, 5.0 - step / 100 if loss is None else loss)
    return msgspec.structs.replace(found, attempt=attempt, links=links, at=when)


class Writer:
    """Writes a run folder; times are seconds since the run began."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.create(path)
        self.path = self.folder.path

    def event(self, at: float, what: str, /, **facts: object) -> None:
        """Add an event."""
        self.folder.add_event(BEGAN + at, what, **facts)

    def planned(self, at: float, attempt: int = 1, workers: tuple[str, ...] = WORKERS) -> None:
        """Add the plan of an attempt."""
        placements = [Placement(number, [worker], 10, 2000, 5) for number, worker in enumerate(workers)]
        codecs = [LinkCodec(workers[0], workers[1], "int8", 3.9)] if len(workers) > 1 else []
        self.event(
            at, "planned", attempt=attempt, workers=workers, prediction=None, unable={}, notes=[],
            placements=placements, codecs=codecs,
        )  # fmt: skip

    def step(self, step: int, at: float | None, attempt: int = 1, loss: float | None = None) -> None:
        """Add a step."""
        self.folder.add_step(step_row(step, at, attempt, loss))

    def evaluation(self, step: int, at: float, loss: float, attempt: int = 1) -> None:
        """Add an evaluation, with its event."""
        self.folder.add_validation(ValidationRow(step, loss, {"accuracy": 0.5}, attempt, BEGAN + at))
        self.event(at, "validated", step=step, loss=loss)

    def ended(self, at: float, state: str = "done", reason: str = "") -> None:
        """End the run."""
        self.event(at, "ended", state=state, reason=reason)
        self.folder.write_summary(msgspec.structs.replace(summary(state), reason=reason))
        self.folder.close()


def run_with_a_fault(path: Path) -> Path:
    """A run of 6 steps over 30 s: after the third, a worker is lost, and the third is done again."""
    run = Writer(path)
    run.event(0, "submitted", name="gpt", broker="127.0.0.1:7700")
    run.event(1, "waiting", job="job-1", state="waiting for 1 more worker")
    run.planned(3)
    run.event(5, "running", loading_seconds=2.0)
    run.evaluation(0, 6, 5.5)
    for step in (1, 2, 3):
        run.step(step, 6 + step)
    reason = "worker lab was lost at step 4"
    run.event(12, "rolled back", attempt=1, unit=3, step=2, done=3, reason=reason)
    run.planned(14, attempt=2, workers=("home", "attic"))
    run.event(16, "running", loading_seconds=2.0)
    for step in (3, 4, 5, 6):
        run.step(step, 14 + step, attempt=2)
    run.event(21, "codecs", step=6, changes=[change("home", "attic")], words=[])
    run.evaluation(6, 24, 2.25, attempt=2)
    run.event(25, "collecting", step=6, state="done", reason="")
    run.ended(30)
    return run.path


def change(source: str, target: str, reason: str = "the link is slow") -> dict[str, object]:
    """A link's new codec, as an event has it."""
    return {"source": source, "target": target, "codec": "bf16", "ratio": 2.0, "reason": reason}
