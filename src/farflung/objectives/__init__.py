"""Objectives of fine-tuning beyond a model's own loss, as modules for `Job(model=)`.

DPO
    Learns preferences between pairs of answers.
"""

from farflung.objectives.dpo import DPO

__all__ = ["DPO"]
