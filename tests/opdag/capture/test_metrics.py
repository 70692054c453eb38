"""Metrics in the graph: what they return, what is refused, and that training computes none of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.localhost.test_metrics import Classifier, Labelled, job, loss
from transformers.modeling_outputs import CausalLMOutput

import farflung
from farflung.errors import CaptureError, JobError
from farflung.opdag.capture import capture
from farflung.opdag.partition import Partition, legal_positions

BATCH = {
    "x": torch.stack([Labelled()[item]["x"] for item in range(4)]),
    "labels": torch.stack([Labelled()[item]["labels"] for item in range(4)]),
}


def with_metric(metric: Any) -> Any:
    return capture(Classifier(), BATCH, loss, metrics={"found": metric})


def test_training_runs_the_nodes_that_it_runs_without_metrics() -> None:
    plain = capture(Classifier(), BATCH, loss).graph
    graph = with_metric(farflung.metrics.accuracy).graph
    assert len(graph.metrics["found"]) == 2 and len(graph.nodes) > len(plain.nodes)
    (segment,) = Partition(graph, [], 4).segments()
    assert segment.metrics and [node.op for node in segment.without_metrics().nodes] == [
        node.op for node in plain.nodes
    ]
    assert not legal_positions(graph)[len(plain.nodes) : len(graph.nodes)].any()


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda outputs, batch: outputs.argmax(-1), r"the metric 'found' must return .*, or two: a sum and"),
        (
            lambda outputs, batch: torch.linalg.svdvals(outputs).max(),
            r"'found' cannot run on workers: op .* not in the opset",
        ),
        (lambda outputs, batch: 1.0 if outputs.sum() > 0 else 0.0, r"control flow|depends on"),
        (lambda outputs, batch: float(outputs.shape[-1]), r"must return its mean .* found a? ?float"),
    ],
)
def test_a_metric_that_no_worker_can_compute_is_refused_in_one_line(metric: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words) as refused:
        with_metric(metric)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"validation": None}, r"give Job\(validation=\)"),
        ({"metrics": {"loss": print}}, "other than 'loss'"),
        ({"metrics": {"a b": print}}, "must be a word"),
        ({"metrics": {"found": 3}}, "must be callable"),
        ({"metrics": [print]}, "must be a dict"),
    ],
)
def test_metrics_of_a_job_are_functions_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        job(**changes)


def test_accuracy_finds_scores_and_classes() -> None:
    scores, labels = torch.eye(4)[None, [0, 1, 3]], torch.tensor([[0, -100, 2]])
    expected = (1.0, 2.0)
    for outputs in (scores, {"logits": scores}, CausalLMOutput(logits=scores), scores.transpose(1, 2)):
        hits, counted = farflung.metrics.accuracy(outputs, {"label": labels})
        assert (hits.item(), counted.item()) == expected
    shifted = farflung.metrics.Accuracy(shift=True, labels="next")
    hits, counted = shifted(scores, {"next": torch.tensor([[7, 0, 1]])})
    assert (hits.item(), counted.item()) == (2.0, 2.0)
    with pytest.raises(KeyError, match="accuracy needs one of labels"):
        farflung.metrics.accuracy(scores, {"x": labels})
    with pytest.raises(KeyError, match="'logits'"):
        farflung.metrics.accuracy({}, {})
