"""How the links of one run are written: a rung for every link, or for each, and perhaps another one later."""

from __future__ import annotations

from dataclasses import dataclass

DENSE = "dense"


@dataclass(frozen=True)
class Phase:
    """Until the share `until` of all steps: the rung of each link in order, the last one for all after it."""

    until: float
    rungs: tuple[str, ...]

    def rung(self, link: int) -> str:
        """Of the boundary behind segment `link`."""
        return self.rungs[min(link, len(self.rungs) - 1)]


@dataclass(frozen=True)
class Way:
    """What a run does on its links, phase after phase.

    As text: phases stand behind one another with a comma, each but the last with `@` and the share of all
    steps at which it ends; the rungs of several links with a `;`. So `row-topk30-int4/masked30-int4@0.8,int8`
    is sparse for four fifths of the run and 8 bits after that.
    """

    text: str
    phases: tuple[Phase, ...]

    @staticmethod
    def of(text: str) -> Way:
        """Read a way.

        Raises
        ------
        ValueError
            A share is no number, or shares do not rise from 0 to 1.
        """
        phases, before = [], 0.0
        parts = text.split(",")
        for number, part in enumerate(parts):
            rungs, at, share = part.partition("@")
            if bool(at) == (number == len(parts) - 1):
                raise ValueError(f"{text!r}: every phase but the last needs @SHARE, and the last has none")
            until = float(share) if at else 1.0
            if not before < until <= 1.0:
                raise ValueError(f"{text!r}: shares must rise from 0 to 1, found {until:g}")
            phases.append(Phase(until, tuple(rungs.split(";"))))
            before = until
        return Way(text, tuple(phases))

    def phase(self, step: int, steps: int) -> Phase:
        """The one that step `step` of `steps` belongs to; what comes after the last belongs to the last."""
        return next((p for p in self.phases if step < round(p.until * steps)), self.phases[-1])

    @property
    def single(self) -> str | None:
        """The rung, if there is one for all links at all times."""
        rungs = {rung for phase in self.phases for rung in phase.rungs}
        return rungs.pop() if len(rungs) == 1 else None


def halves(rung: str) -> tuple[str, str]:
    """The codecs of activations and of gradients that a rung names."""
    forward, _, backward = rung.partition("/")
    return forward, backward or forward
