"""The verdict of each lint of capture on a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Outcome = Literal["ok", "remark", "refused", "not checked"]

LINTS: dict[str, str] = {
    "state": "parameters and buffers are dense, real numbers, and share memory only by a tie",
    "hooks": "no hook changes gradients",
    "custom-functions": "no autograd.Function brings a backward of its own",
    "gradient-modes": "no_grad and detach cut the same gradients",
    "control-flow": "nothing but tensors depends on the data",
    "checkpointing": "activation checkpointing is not dropped unseen",
    "autocast": "casts are those that eager makes",
    "random-numbers": "every random number comes from the job's seed",
    "python-state": "forward leaves the module's Python attributes alone",
    "buffers": "buffers change in place, none is lost",
    "opset": "every op and element type is one that workers run",
    "inputs": "every input is read, none is changed, equal ones stay apart",
    "batch-size": "sizes follow the batch, and nothing else does",
    "evaluation": "the evaluation graph computes what model.eval() does",
    "self-check": "loss, gradients and buffers are those of eager",
}
"""Every lint, and what an "ok" verdict means; in the order in which they are shown."""

BY_COMPARISON = ("evaluation", "self-check")
"""Lints that need a comparison with eager, which capture alone does not make."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of one lint. `words` are its remarks, its refusal, or why it did not check."""

    lint: str
    outcome: Outcome
    words: str = ""


class Remarks:
    """Collects the remarks of lints while a model is captured."""

    def __init__(self) -> None:
        self._words: dict[str, list[str]] = {}

    def add(self, lint: str, words: str) -> None:
        """Record a remark, once."""
        found = self._words.setdefault(lint, [])
        if words not in found:
            found.append(words)

    def verdicts(self) -> tuple[Verdict, ...]:
        """A verdict for each lint: ok without a remark, because nothing was refused."""
        return tuple(self._verdict(lint) for lint in LINTS)

    def _verdict(self, lint: str) -> Verdict:
        if words := self._words.get(lint):
            return Verdict(lint, "remark", "; ".join(words))
        return Verdict(lint, "not checked" if lint in BY_COMPARISON else "ok")


def decided(verdicts: Iterable[Verdict], *later: Verdict) -> tuple[Verdict, ...]:
    """The verdicts, with earlier ones replaced by later ones."""
    known = {verdict.lint: verdict for verdict in later}
    return tuple(known.get(verdict.lint, verdict) for verdict in verdicts)
