"""Capture an `nn.Module` and its loss as an OP-DAG, with `torch.export`; only this part of opdag needs torch.

`lints`, `module_state`, `python_state` and `regions` each detect a kind of model that would otherwise be
captured wrongly without an error; `lint_results` reports what they found.
"""

from farflung.opdag.capture.capture import Capture, capture
from farflung.opdag.capture.draft import Origin
from farflung.opdag.capture.lint_results import LINTS, Verdict
from farflung.opdag.capture.loss import LossModule

__all__ = ["LINTS", "Capture", "LossModule", "Origin", "Verdict", "capture"]
