"""Metrics of an evaluation, for `Job(metrics=)`.

Workers run no code of yours, so a metric is captured into the graph like the loss, and only scalars travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
LABELS = ("labels", "label", "targets", "target", "y")
"""Names under which `Accuracy` looks for the classes of a batch, in this order."""


@dataclass(frozen=True)
class Accuracy:
    """The share of targets whose class has the highest score, over all targets but those that are -100.

    Scores are float (batch, ..., classes), or (batch, classes, ...) as `cross_entropy` takes them, and
    targets int64 (batch, ...). It is exact: evaluations add up hits and targets, of which a microbatch
    may have up to 2^24.

    Parameters
    ----------
    labels
        The name of the targets in a batch; by default the first of "labels", "label", "targets", "target" and
        "y" that it has.
    outputs
        The name of the scores in what the model returns, as a key or an attribute; by default what the model
        returns if that is a tensor, else "logits".
    shift
        Score position t by the target of position t + 1, as causal language models from Hugging Face are
        trained.
    """

    labels: str | None = None
    outputs: str | None = None
    shift: bool = False

    def __call__(self, outputs: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The hits and the counted targets of a batch, float32 scalars.

        Raises
        ------
        KeyError
            The batch or the outputs lack what it needs.
        """
        import torch

        scores, labels = self._scores(outputs), self._labels(batch)
        if self.shift:
            scores, labels = scores[:, :-1], labels[:, 1:]
        is_last = scores.ndim == labels.ndim + 1 and scores.shape[1:-1] == labels.shape[1:]
        hits = scores.argmax(-1 if is_last else 1) == labels
        counted = labels != IGNORED
        return torch.logical_and(hits, counted).float().sum(), counted.float().sum()

    def _scores(self, outputs: Any) -> Tensor:
        import torch

        if self.outputs is None and isinstance(outputs, torch.Tensor):
            return outputs
        name = self.outputs or "logits"
        scores = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if not isinstance(scores, torch.Tensor) or scores.ndim < 2:
            raise KeyError(f"accuracy needs {name!r}, scores by class, in what the model returns")
        return scores

    def _labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        names = LABELS if self.labels is None else (self.labels,)
        for name in names:
            if name in batch:
                return batch[name]
        raise KeyError(f"accuracy needs one of {', '.join(names)} in a batch, which has {', '.join(batch)}")


def reward_accuracy(outputs: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The share of pairs whose chosen answer has the larger reward, for `farflung.objectives.DPO`.

    It returns the number of such pairs and of all, float32 scalars. Without any training, all rewards are 0,
    and so is the share.

    Raises
    ------
    KeyError
        The outputs have no rewards.
    """
    import torch

    chosen, rejected = outputs["chosen_rewards"], outputs["rejected_rewards"]
    wins = (chosen > rejected).float()
    return wins.sum(), torch.ones_like(wins).sum()


class Perplexity:
    """The exponential of the validation loss, which must be a mean cross entropy in nats.

    The submitter computes it from the loss of the whole evaluation, so no worker computes anything for it.
    """

    def __call__(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Raise TypeError: it is a function of the loss, not of a batch."""
        raise TypeError("perplexity is computed from the validation loss: use it in Job(metrics=)")


accuracy = Accuracy()
perplexity = Perplexity()
