"""Losses of jobs over time, from one status after another, in bounded memory."""

from __future__ import annotations

import msgspec

from farflung.protocol.viewer import JobStatus

MOST_POINTS = 1000


class JobCurve(msgspec.Struct):
    """Columns of equal length: steps that were done, Unix seconds at which that was seen, and the loss then.

    `every` is the least number of steps between two points. It grows as a curve does, so that a curve holds
    at most 1,000 points; where a job went back, later points are dropped. `validated` and `validation` are
    columns, too: steps after which the model was evaluated, and the losses then.
    """

    step: list[int] = []
    at: list[float] = []
    loss: list[float | None] = []
    every: int = 1
    validated: list[int] = []
    validation: list[float | None] = []

    def add(self, step: int, at: float, loss: float | None) -> None:
        """Add what a job was at."""
        while self.step and self.step[-1] > step:
            self._cut(len(self.step) - 1)
        if self.step and step < self.step[-1] + self.every:
            return
        self.step.append(step)
        self.at.append(at)
        self.loss.append(loss)
        if len(self.step) > MOST_POINTS:
            self._halve()

    def add_validation(self, step: int, loss: float | None) -> None:
        """Add what the newest validation found."""
        while self.validated and self.validated[-1] >= step:
            self.validated.pop()
            self.validation.pop()
        self.validated.append(step)
        self.validation.append(loss)
        if len(self.validated) > MOST_POINTS:
            del self.validated[1::2], self.validation[1::2]

    def _halve(self) -> None:
        for column in (self.step, self.at, self.loss):
            del column[1::2]
        self.every *= 2

    def _cut(self, count: int) -> None:
        for column in (self.step, self.at, self.loss):
            del column[count:]


class Curves:
    """The curves of the jobs that a status lists."""

    def __init__(self) -> None:
        self.of_jobs: dict[str, JobCurve] = {}

    def add(self, jobs: list[JobStatus], at: float) -> None:
        """Add what jobs are at now; one that has not begun, or is not listed any more, has no curve."""
        for job in jobs:
            if job.step > 0:
                self.of_jobs.setdefault(job.job, JobCurve()).add(job.step, at, job.loss)
            if job.validated_step is not None:
                curve = self.of_jobs.setdefault(job.job, JobCurve())
                curve.add_validation(job.validated_step, job.validation_loss)
        listed = {job.job for job in jobs}
        self.of_jobs = {name: curve for name, curve in self.of_jobs.items() if name in listed}
