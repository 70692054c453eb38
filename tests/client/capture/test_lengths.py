"""A job with batches of several lengths is captured and compared at each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support import lengths
from tests.support.lengths import LENGTHS, Positions, classifier, language, texts

import farflung
from farflung.client.capture import check
from farflung.client.capture.check import capture_job, check_job
from farflung.client.capture.report import report_of
from farflung.errors import CaptureError, JobError
from farflung.opdag.buckets import lengths_of

torch.set_num_threads(1)


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["language", "classifier"])
def test_a_right_job_passes_and_each_length_is_compared(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    whole = check.compare

    def compare(comparison: Any, steps: Any, *others: Any) -> Any:
        seen.update(batch["input_ids"].shape[1] for step in steps for batch in step)
        return whole(comparison, steps, *others)

    monkeypatch.setattr(check, "compare", compare)
    items = texts(longest=32) if kind == "language" else None
    job = getattr(lengths, kind)(**({"data": items[:8] * 2 + items} if items else {}))
    report = check_job(job, segments=3, steps=1)
    assert report.ok and report.segments == 3 and report.loss_difference == 0.0
    assert seen == set(LENGTHS)


def test_lengths_that_no_item_has_are_compared_with_cut_ones() -> None:
    long = [{"input_ids": torch.arange(1, 31), "labels": torch.arange(1, 31)} for _ in range(16)]
    report = check_job(language(data=long, validation=None), segments=2, steps=1)
    assert report.ok and report.steps == 2  # one of them with the other lengths


def test_a_captured_job_says_its_lengths() -> None:
    captured = capture_job(classifier())
    assert lengths_of(captured.graph, LENGTHS[-1]) == LENGTHS
    assert any("gradients compared" in verdict.words for verdict in captured.verdicts)
    said = "captured at lengths 8, 16 and 32; all figures are those of 32"
    assert said in report_of(classifier(), captured, False, None).remarks


def test_a_graph_that_is_wrong_at_one_length_is_found() -> None:
    """The model computes otherwise where it is exported."""

    class Scaled(Positions):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            loss = super().forward(input_ids, labels)
            is_short = input_ids.shape[1] == 8
            return loss * 2 if is_short and not torch.compiler.is_exporting() else loss

    with pytest.raises(CaptureError, match=r"^with batches of length 8, the captured graph and your module"):
        capture_job(language(model=Scaled(32)))


def test_a_table_of_positions_that_is_too_short_is_named_with_the_length() -> None:
    words = (
        r"^with batches of length 32, the model's own forward fails.*; at 16 it does not: has it enough pos"
    )
    with pytest.raises(CaptureError, match=words):
        capture_job(language(model=Positions(16)))


def test_a_quantized_base_has_the_lengths_of_the_job() -> None:
    job = language()
    for name, parameter in job.model.named_parameters():
        parameter.requires_grad_("head" in name or "norm" in name)
    captured = capture_job(language(model=job.model, quantize="int8", validation=None))
    assert lengths_of(captured.graph, LENGTHS[-1]) == LENGTHS
    assert captured.quantization is not None and captured.quantization.matrices


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"codec": "int8"},
            "codec='int8' needs batches of one length: give Pad one, or leave codec out",
        ),
        ({"codec": "auto"}, "codec='auto' needs batches of one length"),
        ({"compiled": True}, "a compiled job has batches of one length: give Pad one, or leave compiled out"),
        ({"lengths": range(1, 19)}, "a job has at most 16 lengths, Pad has 18: drop some"),
    ],
)
def test_what_several_lengths_cannot_have_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        language(**changes)


def test_a_loader_may_pad_to_several_lengths() -> None:
    data = torch.utils.data.DataLoader(texts(), batch_size=8, collate_fn=farflung.data.Pad(LENGTHS))  # type: ignore[arg-type, var-annotated]
    job = language(data=data, collate=None, validation=None)
    assert job.lengths == LENGTHS and job.training().lengths == LENGTHS
    assert language(lengths=32).lengths == ()
