"""Objectives of fine-tuning beyond a model's own loss, as modules for `Job(model=)`.

DPO
    Learns preferences between pairs of answers.
Distillation
    Learns what a teacher predicts.
"""

from farflung.objectives.distillation import Distillation
from farflung.objectives.dpo import DPO

__all__ = ["DPO", "Distillation"]
