"""Distillation equals its formula, and the teacher's segments have nothing to train and get no gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support import adapters, distilled
from tests.support.distilled import LENGTH, Classifier, job, language_pair, vectors
from torch import Tensor, nn
from torch.nn import functional as F

import farflung
from farflung.client.capture.check import capture_shapes
from farflung.client.run.microbatches import NO_TARGET
from farflung.errors import CaptureError, JobError
from farflung.objectives import Distillation
from farflung.opdag.segment import Segment
from farflung.planner import plan_graph
from farflung.runtime.parity.steps import received

T, SOFT = 3.0, 0.7


def plain(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """The loss over rows of scores (count, classes), one counted label at a time."""
    losses = []
    for own, taught, label in zip(student, teacher, labels.tolist(), strict=True):
        if label != -100:
            p, q = (taught / T).softmax(0), (own / T).softmax(0)
            soft = (p * (p / q).log()).sum() * T * T
            losses.append(SOFT * soft - (1 - SOFT) * own.log_softmax(0)[label])
    return torch.stack(losses).mean()


def test_loss_and_gradients_of_classifiers_are_those_of_the_formula() -> None:
    batch = {name: torch.stack([one[name] for one in vectors()[:6]]) for name in ("x", "labels")}
    batch["labels"][2] = -100
    pair = Distillation(Classifier(1), Classifier(2), T, SOFT)
    found = pair(**batch)
    found["loss"].backward()
    student, teacher = Classifier(1), Classifier(2)
    with torch.no_grad():
        taught = teacher(batch["x"])
    expected = plain(student(batch["x"]), taught, batch["labels"])
    expected.backward()
    assert torch.allclose(found["loss"], expected, rtol=1e-6)
    for ours, theirs in zip(pair.student.parameters(), student.parameters(), strict=True):
        assert theirs.grad is not None and torch.allclose(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7)
    assert all(parameter.grad is None for parameter in pair.teacher.parameters())


def test_places_of_language_models_are_scored_by_the_next_label() -> None:
    batch = {
        name: torch.stack([adapters.Sentences()[at][name] for at in range(3)])
        for name in ("input_ids", "labels")
    }
    student, teacher = language_pair()
    found = Distillation(student, teacher, T, SOFT)(**batch)["loss"]
    with torch.no_grad():
        taught = teacher(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
    own = student(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
    assert torch.allclose(found, plain(own, taught, batch["labels"][:, 1:].flatten()), rtol=1e-6)


def test_a_teacher_that_agrees_costs_nothing_and_stays_in_evaluation_mode() -> None:
    student = Classifier(1)
    pair = Distillation(student, Classifier(1), soft=1.0).train()
    batch = {name: torch.stack([one[name] for one in vectors()[:6]]) for name in ("x", "labels")}
    assert float(pair(**batch)["loss"].detach()) == pytest.approx(0.0, abs=1e-6)
    assert student.training and not any(part.training for part in pair.teacher.modules())


def cut(of: farflung.Job, workers: int) -> list[Segment]:
    """The segments of a job's graph on so many workers."""
    planned = plan_graph(
        capture_shapes(of).graph, of.microbatches, of.microbatch_size, [f"w{n}" for n in range(workers)]
    )
    return list(received(planned.programs, of.microbatch_size))


@pytest.mark.cases(1)
@pytest.mark.parametrize("tied", [True, False])
def test_segments_of_the_teacher_train_nothing_and_scores_do_not_cross(tied: bool) -> None:
    segments = cut(distilled.language_job(tied=tied), 4)
    of_teacher = [one for one in segments if all("student" not in entry.name for entry in one.inputs)]
    assert of_teacher
    for segment in of_teacher:
        assert not segment.differentiable and not any(entry.trainable for entry in segment.inputs)
    for segment in segments:  # the student's scores have a gradient
        frozen = [segment.values[value] for value in {*segment.receives} - {*segment.differentiable}]
        assert (4, LENGTH, adapters.WORDS) not in [tuple(one.shape_at(4)) for one in frozen]


@pytest.mark.cases(1)
@pytest.mark.parametrize("make", [distilled.job, distilled.language_job])
def test_distillation_trains_as_eager(make: Callable[[], farflung.Job]) -> None:
    report = farflung.check(make())
    assert report.ok and report.loss_difference == 0.0 and report.segments == 4


def shared() -> nn.Module:
    one = Classifier(1)
    return Distillation(one, one)


def frozen() -> nn.Module:
    return Distillation(Classifier(1).requires_grad_(False), Classifier(2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (shared, "student and teacher share parameters"),
        (frozen, "the student has no parameter to train"),
        (lambda: Distillation(Classifier(1), Classifier(2), 0.0), "temperature must be a number above 0"),
        (
            lambda: Distillation(Classifier(1), Classifier(2), soft=1.5),
            "soft must be a number above 0 and at most 1",
        ),
    ],
)
def test_unfit_pairs_are_refused_in_a_line(make: Any, words: str) -> None:
    with pytest.raises(JobError, match=words):
        make()


def test_other_classes_and_outputs_without_scores_are_named_before_a_job_begins() -> None:
    other = Distillation(Classifier(1), Classifier(2, classes=7))
    with pytest.raises((JobError, CaptureError), match="must have the same places and classes"):
        capture_shapes(job(model=other))
    with pytest.raises((JobError, CaptureError), match="the teacher must return logits"):
        capture_shapes(job(model=Distillation(Classifier(1), Summing())))


class Summing(nn.Module):
    """Returns no scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x)).sum()


def test_labels_that_are_all_masked_end_a_run_in_a_line() -> None:
    items = [{**one, "labels": torch.tensor(-100)} for one in vectors()]
    with pytest.raises(JobError, match="a microbatch has no target that counts") as found:
        capture_shapes(job(data=items, counted="labels"))
    assert str(found.value) == NO_TARGET
