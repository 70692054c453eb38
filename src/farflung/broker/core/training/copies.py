"""When the state of a job is copied to its submitter while training goes on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from farflung.schedule import Unit, Units


@dataclass(frozen=True)
class Copies:
    """The copies of one job's state, of which at most one is under way.

    The state is to be copied after each `every` steps (0: never), and after the next step if `due`: the
    submitter asked for it, or an earlier copy was under way when it was its turn. `under_way` is the unit
    whose copy the submitter has not stored yet. `stable` is the newest unit at which the job can begin with a
    state that the submitter has. It could not store the last `refused` ones.
    """

    every: int = 0
    due: bool = False
    under_way: int | None = None
    stable: int = 0
    refused: int = 0

    def takes(self, units: Units, unit: Unit, is_best: bool = False) -> bool:
        """Whether the state right after `unit` is to be copied, as it is due or the best one found.

        `units` are the job's.
        """
        is_due = units.ends_step(unit) and self._is_due_after(unit)
        return self.under_way is None and (is_best or is_due)

    def decided(self, unit: Unit, keep: bool) -> Copies:
        """The copies once `unit` is decided; `keep` says that its copy is under way."""
        if keep:
            return replace(self, due=False, under_way=unit.number)
        return replace(self, due=self._is_due_after(unit))

    def asked(self) -> Copies:
        """The copies once the submitter asks for one."""
        return replace(self, due=True)

    def stored(self, unit: int) -> Copies:
        """The copies once the submitter has stored the one under way, after `unit`."""
        return replace(self, under_way=None, stable=unit + 1, refused=0)

    def failed(self) -> Copies:
        """The copies once the submitter could not store the one under way."""
        return replace(self, under_way=None, refused=self.refused + 1)

    def interrupted(self) -> Copies:
        """The copies once the attempt has ended: one under way may never arrive, so another is due."""
        return replace(self, due=self.due or self.under_way is not None, under_way=None)

    def _is_due_after(self, unit: Unit) -> bool:
        return self.due or (unit.train and self.every > 0 and (unit.step + 1) % self.every == 0)
