"""`Pairs`: a collate for preferences, one prompt with a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farflung.data.padding import IGNORED
from farflung.errors import JobError
from farflung.text import kind_of

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class Pairs:
    """Makes batches for `farflung.objectives.DPO` from pairs of answers, as `Job(collate=)`.

    An item is a dict with the tokens of "prompt", "chosen" and "rejected", lists of numbers or tensors; the
    answers are without the prompt, and with the token that ends them.

    Parameters
    ----------
    length
        The length of each row, which has a prompt, an answer and padding.
    pad
        The token that stands in padding. It is not counted, and a causal model does not see it before the
        end of an answer.
    truncate
        Cut the beginnings of prompts, and then the ends of answers, where a pair is too long, rather than
        refuse it. Both rows of a pair keep the same prompt.

    Raises
    ------
    JobError
        `length` is below 2; when called, a column is missing or is no list of tokens, a part is empty, both
        answers are equal, or a pair is too long.
    """

    length: int
    pad: int = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 2:
            raise JobError(f"length must be a whole number of at least 2, found {self.length!r}")

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        """ "chosen", "chosen_labels", "rejected" and "rejected_labels", int64 (len(items), length)."""
        import torch

        rows = [row for item in items for row in self._rows(*_parts(item))]
        chosen, rejected = rows[::2], rows[1::2]
        found = {
            "chosen": [tokens for tokens, _ in chosen],
            "chosen_labels": [labels for _, labels in chosen],
            "rejected": [tokens for tokens, _ in rejected],
            "rejected_labels": [labels for _, labels in rejected],
        }
        return {name: torch.tensor(numbers, dtype=torch.int64) for name, numbers in found.items()}

    def _rows(
        self, prompt: list[int], chosen: list[int], rejected: list[int]
    ) -> list[tuple[list[int], list[int]]]:
        """The tokens and the labels of the chosen and of the rejected row."""
        longest = max(len(chosen), len(rejected))
        if len(prompt) + longest > self.length:
            if not self.truncate:
                raise JobError(
                    f"a pair has {len(prompt)} tokens of prompt and {longest} of an answer, Pairs has"
                    f" {self.length}: make that longer, or give truncate=True"
                )
            prompt = prompt[-max(1, self.length - longest) :]
            room = self.length - len(prompt)
            chosen, rejected = chosen[:room], rejected[:room]
        if chosen == rejected:
            raise JobError("'chosen' and 'rejected' of a pair are equal, as far as they fit: leave it out")
        return [self._row(prompt, answer) for answer in (chosen, rejected)]

    def _row(self, prompt: list[int], answer: list[int]) -> tuple[list[int], list[int]]:
        rest = self.length - len(prompt) - len(answer)
        tokens = [*prompt, *answer, *[self.pad] * rest]
        return tokens, [*[IGNORED] * len(prompt), *answer, *[IGNORED] * rest]


def _parts(item: Any) -> list[list[int]]:
    """The tokens of prompt, chosen and rejected answer, none of them empty."""
    if not isinstance(item, Mapping):
        raise JobError(f"a pair must be a dict with {', '.join(map(repr, PARTS))}, found {kind_of(item)}")
    if missing := [name for name in PARTS if name not in item]:
        raise JobError(
            f"a pair has {', '.join(map(repr, PARTS))}, this one lacks {missing[0]!r}: found {sorted(item)}"
        )
    return [_tokens(name, item[name]) for name in PARTS]


def _tokens(name: str, value: Any) -> list[int]:
    import torch

    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise JobError(f"{name!r} of a pair is no list of tokens: {value!r:.60}") from None
    if not tensor.numel():
        cure = (
            "begin it with a token" if name == PARTS[0] else "leave the pair out, or end answers with a token"
        )
        raise JobError(f"{name!r} of a pair is empty: {cure}")
    if tensor.ndim != 1 or tensor.is_floating_point():
        raise JobError(f"{name!r} of a pair must be one list of whole numbers, found {value!r:.60}")
    return [int(token) for token in tensor.tolist()]
