"""How likely a causal language model finds the targets of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from farflung.errors import JobError
from farflung.metrics import IGNORED
from farflung.text import kind_of


def scores_of(outputs: Any, owner: str) -> Tensor:
    """The scores by class in what a model returned: a tensor, or its key or attribute `logits`.

    Raises
    ------
    JobError
        There are none; `owner` is named.
    """
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if not isinstance(found, Tensor) or found.ndim < 2:
        raise JobError(
            f"{owner} must return logits, scores by class, as a tensor or under that name, found"
            f" {kind_of(outputs)}"
        )
    return found


def next_targets(labels: Tensor) -> Tensor:
    """The target of each place, int64 (batch, length): the label of the next one; the last has none."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the log probabilities of each row's targets, (batch,).

    Parameters
    ----------
    logits : (batch, length, classes)
    labels : int64 (batch, length)
        Place t scores the label of place t + 1; -100 does not count.
    """
    targets = next_targets(labels)
    # Not cross_entropy(reduction="none"): where the batch may vary, torch.export takes it for a mean.
    scores = F.log_softmax(logits, dim=-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return scores.where(targets != IGNORED, 0.0).sum(1)
