"""The schedule policy, used by both runtime and simulator: which task a device runs next. Pure.

policy
    Choose the next forward, backward or accumulate task of a worker.
feeding
    Choose the next segment that gets model inputs.
units
    The order of a job's training steps and evaluation passes.
"""

from farflung.schedule.feeding import WINDOWS_AHEAD, Feeding
from farflung.schedule.policy import MOST_WAITING, Needs, Policy, Task, TaskKind, needs_of
from farflung.schedule.units import Rounds, Unit, Units, UnitWindow

__all__ = [
    "MOST_WAITING",
    "WINDOWS_AHEAD",
    "Feeding",
    "Needs",
    "Policy",
    "Task",
    "TaskKind",
    "Rounds",
    "Unit",
    "UnitWindow",
    "Units",
    "needs_of",
]
