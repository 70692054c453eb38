"""`Distillation`: a student learns what a frozen teacher predicts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from farflung.errors import JobError
from farflung.metrics import IGNORED
from farflung.objectives.log_likelihood import next_targets, scores_of


class Distillation(nn.Module):
    """Trains a student to predict what a teacher does (arXiv 1503.02531, section 2).

    The loss is soft * T^2 * KL(teacher || student), both softened by the temperature T, and (1 - soft) times
    the student's cross entropy with the labels; both are means over the labels that are not -100. Both models
    are nodes of one graph, so their layers are cut and placed like those of any other. The teacher is frozen,
    in evaluation mode, and without gradients: nothing crosses backward through its segments.

    Both are called with all entries of a batch but "labels", and give `logits`: (batch, classes) or, of
    language models, (batch, length, classes), with the same classes in the same order.

    Parameters
    ----------
    student, teacher
        The models. Parameters of the teacher no longer require gradients afterwards.
    temperature
        T, above 0: the higher, the more the teacher's small probabilities count.
    soft
        The weight of the teacher's predictions, above 0 and up to 1; that of the labels is the rest.
    shift
        Place t is scored by the label of place t + 1, as causal models of transformers are trained. It is for
        logits with a length only.

    Raises
    ------
    JobError
        A number is out of range, both models share parameters, or the student has none to train; when called,
        the models have other classes, or one has no logits.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        temperature: float = 2.0,
        soft: float = 0.5,
        *,
        shift: bool = True,
    ) -> None:
        super().__init__()
        _require_between("temperature", temperature, math.inf)
        _require_between("soft", soft, 1.0)
        if not {*student.parameters()}.isdisjoint(teacher.parameters()):
            raise JobError("student and teacher share parameters: give the teacher a copy (copy.deepcopy)")
        if not any(parameter.requires_grad for parameter in student.parameters()):
            raise JobError("the student has no parameter to train: set requires_grad on some")
        self.student = student
        self.teacher = teacher.requires_grad_(False).eval()
        self.temperature, self.soft, self.shift = float(temperature), float(soft), shift

    def train(self, mode: bool = True) -> Distillation:
        """Set the student's mode; the teacher's is always that of evaluation."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, labels: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """The loss, and the student's logits for metrics.

        Parameters
        ----------
        labels : int64 (batch,) or (batch, length)
            Classes; -100 does not count. At least one must count.
        inputs
            What both models are called with.
        """
        with torch.no_grad():
            taught = scores_of(self.teacher(**inputs), "the teacher")
        logits = scores_of(self.student(**inputs), "the student")
        if taught.shape[1:] != logits.shape[1:]:
            raise JobError(
                f"student and teacher must have the same places and classes, found logits of"
                f" {tuple(logits.shape[1:])} and {tuple(taught.shape[1:])} a sample"
            )
        targets = next_targets(labels) if self.shift and logits.ndim == 3 else labels
        loss = self.soft * self.temperature**2 * self._divergence(logits, taught, targets)
        if self.soft < 1.0:
            hard = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)
            loss = loss + (1.0 - self.soft) * hard
        return {"loss": loss, "logits": logits}

    def _divergence(self, logits: Tensor, taught: Tensor, targets: Tensor) -> Tensor:
        """The mean of KL(teacher || student) over counted places."""
        student = F.log_softmax(logits / self.temperature, dim=-1)
        teacher = F.log_softmax(taught / self.temperature, dim=-1)
        of_each = (teacher.exp() * (teacher - student)).sum(-1)
        counted = targets != IGNORED
        return of_each.where(counted, 0.0).sum() / counted.sum()


def _require_between(name: str, value: Any, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= most or value == math.inf:
        limit = f" and at most {most:g}" if most < math.inf else ""
        raise JobError(f"{name} must be a number above 0{limit}, found {value!r}")
