"""How the links of one run are written: a rung for every link, or for each, and perhaps another one later."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.plans.phases import Phase, phase_at, phases_of

DENSE = "dense"


@dataclass(frozen=True)
class Way:
    """What a run does on its links, phase after phase.

    As text: what a job's `codec` may be (`farflung.plans.phases`), and the rungs of several links with a `;`
    in between, the last one for all after it. So `row-topk30-int4/masked30-int4@0.8,int8` is sparse for four
    fifths of the run and 8 bits after that.
    """

    text: str
    phases: tuple[Phase, ...]

    @staticmethod
    def of(text: str) -> Way:
        """Read a way.

        Raises
        ------
        CodecError
            A share is no number, or shares do not rise between 0 and 1.
        """
        return Way(text, phases_of(text))

    def rung(self, link: int, step: int, steps: int) -> str:
        """Of the boundary behind segment `link`, at step `step` of `steps`."""
        rungs = phase_at(self.phases, step, steps).codec_pair.split(";")
        return rungs[min(link, len(rungs) - 1)]

    @property
    def rungs(self) -> set[str]:
        """Of all links at all times."""
        return {rung for phase in self.phases for rung in phase.codec_pair.split(";")}

    @property
    def single(self) -> str | None:
        """The rung, if there is one for all links at all times."""
        return self.rungs.pop() if len(self.rungs) == 1 else None


def halves(rung: str) -> tuple[str, str]:
    """The codecs of activations and of gradients that a rung names."""
    forward, _, backward = rung.partition("/")
    return forward, backward or forward
