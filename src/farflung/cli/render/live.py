"""A run on a terminal: the plan as a table, one live bar at a time, validation losses as lines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from farflung.cli.render.output import loss_words, metric_words
from farflung.cli.render.plan import chosen_lines, plan_table, planned_lines
from farflung.cli.render.progress import RemainingTime, advice_on, moving_line, returned_words
from farflung.client.output.progress import Observer, ProgressCallback, goes_on, no_progress
from farflung.client.output.records import StepRow
from farflung.protocol.messages import CodecsChosen, Planned
from farflung.schedule import Unit
from farflung.text import format_bytes, format_clock, format_number, printable

BAR_WIDTH = 16
OTHERS_WIDTH = len("collecting") + BAR_WIDTH + len("0:00:00") + 3
"""Width of a bar's row without the facts, including gaps."""


class _Facts(ProgressColumn):
    """The facts of the newest metric row, as many as fit on the screen, in order."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        first, *others = task.fields["facts"]
        room = self._console.width - OTHERS_WIDTH
        for fact in others:
            if len(first) + 2 + len(fact) <= room:
                first = f"{first}  {fact}"
        return Text(first, no_wrap=True, overflow="ellipsis")


class _Left(ProgressColumn):
    """The remaining time of the bar's phase, if it is known."""

    def render(self, task: Task) -> Text:
        remaining: RemainingTime = task.fields["remaining"]
        seconds = remaining.seconds(task.total or 0.0)
        return Text("" if seconds is None or task.finished else format_clock(seconds))


class LiveObserver(Observer):
    """Draws on standard error. A bar belongs to one phase, such as loading, training or collecting."""

    def __init__(self, steps: int, is_local: bool = False) -> None:
        self._steps, self._is_local = steps, is_local
        self._total_bytes = 0
        # Neither markup nor emoji: parts of the text come from workers and the broker.
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH, complete_style="cyan", finished_style="green"),
            _Facts(self._console),
            _Left(),
            console=self._console,
        )
        self._clock = ExitStack()  # while the job waits or is planned
        self._waiting = self._wait = ""
        self._tell: ProgressCallback = no_progress
        self._bars: dict[str, TaskID] = {}
        self._remaining: dict[str, RemainingTime] = {}

    def waiting(self, words: str) -> None:
        if goes_on(words, self._waiting):
            self._tell(printable(words))
            return
        self._waiting = words
        self._clock.close()
        self._console.print(printable(words))
        if advice := advice_on(words, self._is_local):
            self._console.print(advice)
        if self._bars:  # a clock beside them would overwrite what they draw
            self._tell = self._show_wait
            self._tell(printable(words))
            return
        self._tell = self._clock.enter_context(moving_line())
        self._tell(printable(words).partition(" ")[0])

    def _show_wait(self, words: str) -> None:
        """A bar for what a run waits for that has others; none for a state in one word, such as "running"."""
        self._hide(self._wait)
        if " " in words:
            self._wait = words.partition(" ")[0]
            self._show(self._wait, 0, None, [words])

    def planned(self, planned: Planned) -> None:
        self._clock.close()
        self._console.print(plan_table(planned.plan))
        for line in planned_lines(planned):
            self._console.print(line, markup=False)

    def loading(self, sent_bytes: int, total_bytes: int) -> None:
        self._show(
            "loading", sent_bytes, total_bytes, [f"{format_bytes(sent_bytes)} of {format_bytes(total_bytes)}"]
        )

    def running(self) -> None:
        if "training" in self._remaining:  # an attempt before this one
            self._remaining["training"].restart()

    def working(self, unit: Unit, microbatches: int) -> None:
        done = f"{microbatches}/{unit.microbatches} microbatches"
        if unit.merges:
            self._show("merging", 0, 1, [f"the replicas after {unit.step} steps"])
            return
        self._hide("merging")
        if not unit.train:
            self._show("validating", microbatches, unit.microbatches, [done, f"after {unit.step} steps"])
        elif unit.step == 0:  # a later evaluation shows the row of the step before it
            self._show("training", 0, self._steps, [f"step 0/{self._steps}", done])

    def stepped(self, row: StepRow) -> None:
        self._hide("merging")
        self._total_bytes += row.bytes_on_wire or 0
        facts = [f"step {row.step}/{self._steps}", f"loss {loss_words(row.loss)}"]
        if row.samples_per_second is not None:
            facts.append(f"{format_number(row.samples_per_second)} samples/s")
        facts.append(f"{format_bytes(self._total_bytes)} on the wire")
        self._show("training", row.step, self._steps, facts)

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        self._hide("validating")
        words = f"validation loss after {step} steps: {loss_words(loss)}"
        self._console.print(words + metric_words(metrics))

    def checkpointed(self, step: int, place: str) -> None:
        self._console.print(f"checkpoint of step {step} saved in {place}", markup=False)

    def noted(self, words: str) -> None:
        self._console.print(words)

    def warned(self, words: str) -> None:
        self._console.print(f"warning: {words}")

    def returned(self, job: str, step: int) -> None:
        self._console.print(returned_words(job, step), markup=False)

    def codecs_chosen(self, chosen: CodecsChosen) -> None:
        for line in chosen_lines(chosen):
            self._console.print(line, markup=False)

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        facts = [f"{format_bytes(received_bytes)} of {format_bytes(total_bytes)}"]
        self._show("collecting", received_bytes, total_bytes, facts)

    def evaluating(self, words: str) -> None:
        self._show("evaluating", 0, None, [words])

    def close(self) -> None:
        """Leave the last bar on the screen and stop drawing."""
        self._hide("evaluating")
        self._clock.close()
        self._progress.stop()

    def _hide(self, phase: str) -> None:
        if phase in self._bars:
            self._progress.remove_task(self._bars.pop(phase))

    def _show(self, phase: str, done: int, total: int | None, facts: list[str]) -> None:
        """Draw a phase's bar; without a `total` it only moves, as nothing is known of how far it is."""
        self._clock.close()
        if phase != self._wait:
            self._hide(self._wait)
        if phase not in self._bars:
            self._progress.start()
            remaining = self._remaining[phase] = RemainingTime()
            self._bars[phase] = self._progress.add_task(phase, total=total, facts=facts, remaining=remaining)
        if done:
            self._remaining[phase].came(done)
        self._progress.update(self._bars[phase], completed=done, total=total, facts=facts)
